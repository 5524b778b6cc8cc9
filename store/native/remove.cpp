// Tables of slots: blocks of one row, which leave one by one in any order. Their rows live and die by the protocol of blocks:
// publication seals and releases the block at once, removal retires it, and so on.
//
// A row leaves when another comes into a full table: it is chosen among those that are in before the new one is. Everything
// about the order of removal is derived: the list of open blocks from their births, the tree of victims from births and
// raw priorities.
#include "failpoints.hpp"
#include "table.hpp"

namespace conduit {

// The row that leaves next, kNoRow if there is none. Younger blocks that are open and empty are passed over: one a writer.
std::uint32_t TableCore::victim() const {
  if (t_.remover == kRemoveLeast) return victims_.first();
  for (std::uint32_t b = t_.open.last; b != kNoRow; b = links_.before(b)) {
    if (blocks_[b].live > 0) return b;
  }
  return kNoRow;
}

bool TableCore::remove_one() {
  const std::uint32_t b = victim();
  if (b == kNoRow) return false;
  FAILPOINT(remove_chosen);
  drop_rows(b, 1);
  retire(b);
  FAILPOINT(remove_done);
  return true;
}

// Room for one more row in a full table.
void TableCore::make_room() {
  while (t_.live_steps >= t_.max_size && remove_one()) {
  }
}

}  // namespace conduit
