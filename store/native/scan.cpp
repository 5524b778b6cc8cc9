// One number of each live row, for people to look at.
#include <string.h>

#include <memory>
#include <vector>

#include "table.hpp"

namespace conduit {

// Rows in eviction order, final observations left out. The lock is held while the rows are listed, about a millisecond a
// million; a column's values are then copied without it, inside a reader epoch.
std::vector<std::byte> TableCore::scan(std::uint32_t v, Scan what, std::uint32_t column) {
  process_->check();
  std::vector<std::byte> values;
  const auto add = [&](const void* value, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(value);
    values.insert(values.end(), from, from + bytes);
  };
  std::vector<std::uint32_t> rows;
  for (;;) {
    values.clear();
    rows.clear();
    const std::unique_ptr<ReaderEpoch> epoch = process_->enter();
    {
      IndexLock lock(*this);
      fold();
      std::uint64_t younger = t_.live_steps;
      each_open_block(false, [&](std::uint32_t b) {
        const std::uint32_t base = b * t_.rows_per_block;
        for (std::uint32_t row = blocks_[b].evicted.load(std::memory_order_relaxed); row < blocks_[b].folded.load(std::memory_order_relaxed); ++row) {
          if (!is_step(base + row)) continue;
          --younger;
          if (what == Scan::column) {
            rows.push_back(base + row);
          } else if (what == Scan::priority) {
            const float raw = views_[v].raw(base + row);
            add(&raw, sizeof raw);
          } else {
            // where single rows have left from in between, their births count appends
            const std::uint64_t age = slots() ? t_.births - blocks_[b].birth : younger;
            const std::uint64_t count = what == Scan::key ? key_of(base + row) : what == Scan::times ? uses(base + row) : age;
            add(&count, sizeof count);
          }
        }
        return true;
      });
    }
    const Column& c = columns_[column];
    bool held = true;
    values.resize(what == Scan::column ? rows.size() * c.row_bytes : values.size());
    Unpacked unpacked(*this, epoch.get());
    const auto copy = [&] {
      std::byte* to = values.data();
      const std::size_t often = tiered() ? 16 : 65'536;  // a row from disk may take milliseconds
      for (std::size_t i = 0; i < rows.size() && held; ++i, to += c.row_bytes) {
        const std::uint32_t b = block_of(rows[i]);
        memcpy(to, block_data(b) + c.block_offset + (rows[i] - b * t_.rows_per_block) * c.row_bytes, c.row_bytes);
        if (i % often != often - 1) continue;
        held = epoch->progress();
        unpacked.clear();
      }
    };
    reach_disk(copy);
    if (epoch->leave() && held) return values;
  }
}

}  // namespace conduit
