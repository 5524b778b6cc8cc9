#include "groups.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace conduit {

GroupIndex::GroupIndex(TableCore& table, std::uint32_t group, std::uint32_t column, std::uint32_t size)
    : table_(table), queue_(*table.queue()), group_(group), column_(column), size_(size), row_bytes_(table.columns()[column].row_bytes),
      returns_(0), seen_(table.shared().n_blocks) {}

void GroupIndex::rebuild() {
  anew_ = false;
  returns_ = queue_.state().returns[group_];
  partial_.clear();
  ready_.clear();
  std::fill(seen_.begin(), seen_.end(), Seen{});
}

// Takes in the rows that have been published since.
void GroupIndex::refresh() {
  // values of which rows were given up elsewhere leave remains: not more than a queue's worth of them
  if (anew_ || returns_ != queue_.state().returns[group_] || partial_.size() > 2 * table_.shared().max_size) rebuild();
  std::vector<std::uint32_t> slots;
  for (std::uint32_t b = 0; b < table_.shared().n_blocks; ++b) {
    const Block& block = table_.block(b);
    if (block.state.load(std::memory_order_relaxed) != kOpen) continue;
    const std::uint64_t generation = block.generation.load(std::memory_order_relaxed);
    if (seen_[b].generation != generation) seen_[b] = {generation, 0};
    const std::uint32_t base = b * table_.shared().rows_per_block, rows = block.folded.load(std::memory_order_relaxed);
    for (std::uint32_t row = seen_[b].rows; row < rows; ++row) {
      if (queue_.waits(group_, base + row)) slots.push_back(base + row);
    }
    seen_[b].rows = rows;
  }
  if (slots.empty()) return;
  anew_ = true;  // unless all of them can be read
  read(std::move(slots));
  anew_ = false;
}

void GroupIndex::read(std::vector<std::uint32_t> slots) {
  // rows of one append have one stamp; they lie in order of the births of their blocks, then of their places
  const auto place = [&](std::uint32_t slot) {
    const std::uint32_t b = table_.block_of(slot);
    return std::pair(table_.block(b).birth, slot);
  };
  std::sort(slots.begin(), slots.end(), [&](std::uint32_t a, std::uint32_t b) {
    const std::uint64_t x = queue_.stamp(a), y = queue_.stamp(b);
    return x != y ? x < y : place(a) < place(b);
  });
  for (const std::uint32_t slot : slots) {
    std::string value(row_bytes_, 0);
    queue_.read(slot, column_, value.data(), row_bytes_);
    const auto at = partial_.try_emplace(std::move(value)).first;
    at->second.push_back(table_.key_of(slot));
    if (at->second.size() < size_) continue;
    ready_.push_back(std::move(at->second));
    partial_.erase(at);
  }
}

GroupIndex::Standing GroupIndex::standing(const Keys& keys, std::vector<std::uint32_t>* slots) const {
  slots->clear();
  for (const std::uint64_t key : keys) {
    std::uint32_t slot;
    if (queue_.find(key, &slot) && queue_.waits(group_, slot)) slots->push_back(slot);
  }
  return slots->size() == keys.size() ? Standing::waits : slots->empty() ? Standing::gone : Standing::mixed;
}

Found GroupIndex::collect(const Demand& demand) {
  Found found;
  refresh();
  std::vector<std::uint32_t> slots;
  std::size_t at = 0;  // groups before it are looked at: they stay in front until they are leased, or are gone
  while (at < ready_.size()) {
    const auto group = ready_.begin() + static_cast<std::ptrdiff_t>(at);
    switch (standing(*group, &slots)) {
      case Standing::gone: ready_.erase(group); continue;
      case Standing::mixed:  // somebody has taken single rows: what is left of them forms other groups
        anew_ = true;
        refresh();
        found = {};
        at = 0;
        continue;
      case Standing::waits: break;
    }
    if (queue_.state().max_staleness >= 0 && std::any_of(slots.begin(), slots.end(), [&](std::uint32_t s) { return queue_.too_stale(s); })) {
      queue_.acknowledge(group_, slots, &QueueCounters::stale_rows);
      ready_.erase(group);
      continue;
    }
    if (demand.max_tokens > 0) {
      std::uint64_t tokens = 0;
      for (const std::uint32_t slot : slots) {  // lengths of 64 bits may add up to more than 64 bits hold
        const std::uint64_t length = queue_.length(slot, demand.tokens), room = std::numeric_limits<std::uint64_t>::max() - tokens;
        tokens += std::min(length, room);
      }
      if (tokens > demand.max_tokens - found.tokens) {
        if (found.slots.empty()) {
          found.too_large = group->front();
          found.too_large_tokens = tokens;
        }
        found.full = true;
        break;
      }
      found.tokens += tokens;
    }
    found.slots.insert(found.slots.end(), slots.begin(), slots.end());
    ++at;
    if (found.slots.size() + size_ > demand.rows) {
      found.full = true;
      break;
    }
  }
  return found;
}

std::vector<GroupIndex::Incomplete> GroupIndex::incomplete() {
  anew_ = true;
  refresh();
  std::vector<Incomplete> result;
  for (const auto& [value, keys] : partial_) {
    result.push_back({value, keys.size(), queue_.stamp(static_cast<std::uint32_t>(keys.front() & kSlotMask))});
  }
  std::sort(result.begin(), result.end(), [](const Incomplete& a, const Incomplete& b) { return std::tie(a.since_ns, a.value) < std::tie(b.since_ns, b.value); });
  return result;
}

std::vector<std::uint32_t> GroupIndex::older_than(std::uint64_t stamp) {
  anew_ = true;
  refresh();
  std::vector<std::uint32_t> slots;
  for (const auto& [value, keys] : partial_) {
    if (queue_.stamp(static_cast<std::uint32_t>(keys.front() & kSlotMask)) > stamp) continue;
    for (const std::uint64_t key : keys) slots.push_back(static_cast<std::uint32_t>(key & kSlotMask));
  }
  std::sort(slots.begin(), slots.end());
  anew_ = true;  // they are about to go
  return slots;
}

}  // namespace conduit
