// Numbers that are known only after their rows were: rewards of rollouts, advantages, returns.
#include "failpoints.hpp"
#include "queue.hpp"
#include "scalars.hpp"
#include "table.hpp"

namespace conduit {

UpdateCount TableCore::rewrite(const std::uint64_t* keys, std::uint64_t n, const std::vector<std::uint32_t>& columns, const std::vector<const std::byte*>& values) {
  process_->check();
  tell_losses();
  bool on_disk = false;
  UpdateCount count{0, 0};
  IndexLock lock(*this);
  fold();
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint32_t slot;
    if (!(queue_ ? queue_->find(keys[i], &slot) && !queue_->row_done(slot) : live(keys[i], &slot))) {
      ++count.stale;
      continue;
    }
    const std::uint32_t b = block_of(slot);
    if (tiered()) on_disk |= note_rewritten(b);
    for (std::size_t k = 0; k < columns.size(); ++k) {
      const Column& column = columns_[columns[k]];
      // In the order given: whoever sees a later column's number (and then fences) finds the ones before it. See gather.cpp.
      if (k > 0) std::atomic_thread_fence(std::memory_order_release);
      std::byte* at = block_data(b) + column.block_offset + (slot - b * t_.rows_per_block) * column.row_bytes;
      const auto store = [&] { store_scalar(at, values[k] + i * column.row_bytes, column.row_bytes); };
      reach_disk(store);
      FAILPOINT(rewritten);
    }
    ++count.applied;
  }
  // Once more: a sync that began meanwhile has not answered for all of them.
  if (on_disk) t_.tier.rewritten.fetch_add(1, std::memory_order_seq_cst);
  return count;
}

}  // namespace conduit
