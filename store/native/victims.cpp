#include "victims.hpp"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "failpoints.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kVictimFanOut = 8;
constexpr Victim kNobody{~std::uint64_t{0}, std::numeric_limits<float>::infinity(), kNoRow};

bool before(const Victim& a, const Victim& b) { return std::tie(a.raw, a.birth) < std::tie(b.raw, b.birth); }
bool same(const Victim& a, const Victim& b) { return a.slot == b.slot && a.raw == b.raw && a.birth == b.birth; }

}  // namespace

std::uint32_t VictimTree::plan(std::uint64_t slots, std::uint64_t* sizes) {
  std::uint32_t n = 0;
  std::uint64_t size = slots;
  do {
    size = (size + kVictimFanOut - 1) / kVictimFanOut;
    sizes[n++] = size;
  } while (size > 1);
  return n;
}

VictimTree::VictimTree(const Block* blocks, float* raw, std::uint64_t slots, Victim* const* levels, const std::uint64_t* sizes,
                       std::uint32_t n_levels)
    : blocks_(blocks), raw_(raw), slots_(slots), levels_(n_levels) {
  std::copy_n(levels, n_levels, level_);
  std::copy_n(sizes, n_levels, size_);
}

// One row a block: it is in when it is folded and neither evicted nor used up.
Victim VictimTree::candidate(std::uint64_t slot) const {
  const Block& block = blocks_[slot];
  const bool in = block.state.load(std::memory_order_relaxed) == kOpen && block.live == 1 &&
                  block.evicted.load(std::memory_order_relaxed) == 0;
  if (!in) return kNobody;
  return {block.birth, std::atomic_ref(raw_[slot]).load(std::memory_order_relaxed), static_cast<std::uint32_t>(slot)};
}

Victim VictimTree::node_of(std::uint32_t level, std::uint64_t node) const {
  const std::uint64_t first = node * kVictimFanOut, last = std::min(first + kVictimFanOut, level == 0 ? slots_ : size_[level - 1]);
  Victim found = kNobody;
  for (std::uint64_t i = first; i < last; ++i) {
    const Victim child = level == 0 ? candidate(i) : level_[level - 1][i];
    if (before(child, found)) found = child;
  }
  return found;
}

void VictimTree::changed(std::uint32_t slot) const {
  std::uint64_t node = slot;
  for (std::uint32_t k = 0; k < levels_; ++k) {
    node /= kVictimFanOut;
    const Victim now = node_of(k, node);
    if (same(now, level_[k][node])) return;
    level_[k][node] = now;
    FAILPOINT(victim_written);
  }
}

void VictimTree::refresh_all() const {
  for (std::uint32_t k = 0; k < levels_; ++k) {
    for (std::uint64_t i = 0; i < size_[k]; ++i) level_[k][i] = node_of(k, i);
  }
}

bool VictimTree::consistent() const {
  for (std::uint32_t k = 0; k < levels_; ++k) {
    for (std::uint64_t i = 0; i < size_[k]; ++i) {
      if (!same(level_[k][i], node_of(k, i))) return false;
    }
  }
  return true;
}

VictimTree victims_of(const Segments& segments, const Table& t) {
  if (t.victim_levels == 0) return {};
  Victim* levels[kTreeLevels];
  for (std::uint32_t k = 0; k < t.victim_levels; ++k) levels[k] = segments.control_at<Victim>(t.victim_offset[k]);
  return {segments.control_at<Block>(t.blocks_offset), segments.control_at<float>(t.views[t.remover_view].raw_offset), t.n_blocks, levels, t.victim_size,
          t.victim_levels};
}

}  // namespace conduit
