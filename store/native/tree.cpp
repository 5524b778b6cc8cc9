#include "tree.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "clones.hpp"
#include "descend.hpp"
#include "failpoints.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t ceil_div(std::uint64_t n, std::uint64_t d) { return (n + d - 1) / d; }

constexpr std::uint64_t kCached = 4096;  // a level of so few entries is not asked for ahead: every batch keeps it in a cache

// The order in which a line is halved by `descend`.
inline double line_sum(const double* x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

CONDUIT_CLONES void sum_lines(const double* below, double* above, std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t line = first; line <= last; ++line) above[line] = line_sum(below + line * kFanOut);
}

}  // namespace

std::uint32_t SumTree::plan(std::uint64_t leaves, std::uint64_t* sizes) {
  std::uint32_t n = 0;
  std::uint64_t size = ceil_div(leaves, kFanOut) * kFanOut;
  for (sizes[n++] = size; size > kFanOut; sizes[n++] = size) size = ceil_div(size / kFanOut, kFanOut) * kFanOut;
  return n;
}

SumTree::SumTree(double* const* levels, const std::uint64_t* sizes, std::uint32_t n_levels) : levels_(n_levels) {
  std::copy_n(levels, n_levels, level_);
  std::copy_n(sizes, n_levels, size_);
}

double SumTree::total() const { return line_sum(level_[levels_ - 1]); }

void SumTree::refresh(LineRange* ranges, std::uint32_t n) const {
  for (std::uint32_t k = 0; k + 1 < levels_; ++k) {
    const std::uint64_t lines = size_[k] / kFanOut;
    std::uint64_t touched = 0;
    for (std::uint32_t i = 0; i < n; ++i) touched += ranges[i].last - ranges[i].first + 1;
    if (touched >= lines) {  // duplicates near the root: one sweep is cheaper than all of them
      ranges[0] = {0, static_cast<std::uint32_t>(lines - 1)};
      n = 1;
    }
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
      sum_lines(level_[k], level_[k + 1], ranges[i].first, ranges[i].last);
      const LineRange up{ranges[i].first / kFanOut, ranges[i].last / kFanOut};
      if (kept > 0 && up.first >= ranges[kept - 1].first && up.last <= ranges[kept - 1].last) continue;
      ranges[kept++] = up;
    }
    n = kept;
    FAILPOINT(tree_level_written);
  }
}

void SumTree::refresh_all() const {
  for (std::uint32_t k = 0; k + 1 < levels_; ++k) sum_lines(level_[k], level_[k + 1], 0, size_[k] / kFanOut - 1);
}

void SumTree::find(const double* masses, std::uint32_t n, std::uint32_t* leaves) const {
  double mass[kDescendGroup];
  std::int64_t node[kDescendGroup];
  for (std::uint32_t start = 0; start < n; start += kDescendGroup) {
    const std::uint32_t count = std::min(kDescendGroup, n - start);
    std::copy_n(masses + start, count, mass);
    std::fill(mass + count, mass + kDescendGroup, 0.0);  // spare lanes of a vector
    std::fill_n(node, kDescendGroup, 0);
    for (std::uint32_t k = levels_; k-- > 0;) {
      descend(level_[k], mass, node, count, size_[k] / kFanOut);
      if (k == 0) break;
      if (size_[k - 1] <= kCached) continue;
      for (std::uint32_t i = 0; i < count; ++i) __builtin_prefetch(level_[k - 1] + node[i] * std::int64_t{kFanOut});
    }
    for (std::uint32_t i = 0; i < count; ++i) leaves[start + i] = static_cast<std::uint32_t>(node[i]);
  }
}

void SumTree::find_equal(const double* masses, std::uint32_t n, std::uint32_t* leaves) const {
  double mass[kDescendGroup];
  std::int64_t node[kDescendGroup];
  std::uint32_t place[kDescendGroup];  // of each draw that is still on its way, in `leaves`
  for (std::uint32_t start = 0; start < n; start += kDescendGroup) {
    std::uint32_t count = std::min(kDescendGroup, n - start);
    std::copy_n(masses + start, count, mass);
    std::fill(mass + count, mass + kDescendGroup, 0.0);  // spare lanes of a vector
    std::fill_n(node, kDescendGroup, 0);
    std::iota(place, place + count, start);
    for (std::uint32_t k = levels_; k-- > 0;) {
      descend(level_[k], mass, node, count, size_[k] / kFanOut);
      const auto full = static_cast<double>(std::uint64_t{1} << 3 * k);  // leaves below a node of this level
      std::uint32_t left = 0;
      for (std::uint32_t i = 0; i < count; ++i) {
        if (level_[k][node[i]] == full) {  // a mass at its end or beyond, by rounding, is of its last leaf
          leaves[place[i]] = static_cast<std::uint32_t>(node[i] << 3 * k) + static_cast<std::uint32_t>(std::min(mass[i], full - 1.0));
        } else if (k == 0) {
          leaves[place[i]] = static_cast<std::uint32_t>(node[i]);  // the tree is empty
        } else {
          __builtin_prefetch(level_[k - 1] + node[i] * std::int64_t{kFanOut});
          mass[left] = mass[i], node[left] = node[i], place[left++] = place[i];
        }
      }
      count = left;
      if (count == 0) break;
    }
  }
}

double SumTree::range_sum(std::uint64_t first, std::uint64_t last) const {
  double left = 0.0, right = 0.0;
  for (std::uint32_t k = 0; first < last; ++k) {
    if (k + 1 == levels_) {
      for (; first < last; ++first) left += level_[k][first];
      break;
    }
    while (first < last && first % kFanOut != 0) left += level_[k][first++];
    while (first < last && last % kFanOut != 0) right += level_[k][--last];
    first /= kFanOut;
    last /= kFanOut;
  }
  return left + right;
}

bool SumTree::consistent() const {
  for (std::uint32_t k = 0; k + 1 < levels_; ++k) {
    for (std::uint64_t i = 0; i < size_[k] / kFanOut; ++i) {
      if (level_[k + 1][i] != line_sum(level_[k] + i * kFanOut)) return false;
    }
  }
  return true;
}

namespace {
constexpr std::uint64_t kMaxFanOut = 64;
}

std::uint32_t ExtremeTree::plan(std::uint64_t slots, std::uint64_t* sizes) {
  std::uint32_t n = 0;
  std::uint64_t size = ceil_div(slots, kMaxFanOut);
  for (sizes[n++] = size; size > 1; sizes[n++] = size) size = ceil_div(size, kMaxFanOut);
  return n;
}

ExtremeTree::ExtremeTree(float* raw, std::uint8_t* flags, std::uint8_t ready, std::uint64_t slots, Extremes* const* levels,
                         const std::uint64_t* sizes, std::uint32_t n_levels)
    : raw_(raw), flags_(flags), ready_(ready), slots_(slots), levels_(n_levels) {
  std::copy_n(levels, n_levels, level_);
  std::copy_n(sizes, n_levels, size_);
}

Extremes ExtremeTree::node_of(std::uint32_t level, std::uint64_t node) const {
  const std::uint64_t first = node * kMaxFanOut;
  Extremes found;
  if (level == 0) {
    const std::uint64_t last = std::min(slots_, first + kMaxFanOut);
    for (std::uint64_t i = first; i < last; ++i) {
      // atomic: a writer may be filling in rows of the same line that are not published yet
      if ((std::atomic_ref(flags_[i]).load(std::memory_order_relaxed) & ready_) == 0) continue;
      found.include(Extremes::of(std::atomic_ref(raw_[i]).load(std::memory_order_relaxed)));
    }
  } else {
    const std::uint64_t last = std::min(size_[level - 1], first + kMaxFanOut);
    for (std::uint64_t i = first; i < last; ++i) found.include(level_[level - 1][i]);
  }
  return found;
}

void ExtremeTree::changed(std::uint32_t slot, float before) {
  const bool ready = (std::atomic_ref(flags_[slot]).load(std::memory_order_relaxed) & ready_) != 0;
  Extremes was = before < 0.0f ? Extremes{} : Extremes::of(before);
  Extremes now = ready ? Extremes::of(std::atomic_ref(raw_[slot]).load(std::memory_order_relaxed)) : Extremes{};
  std::uint64_t node = slot;
  for (std::uint32_t k = 0; k < levels_ && was != now; ++k) {
    node /= kMaxFanOut;
    Extremes& at = level_[k][node];
    const Extremes old = at;
    const bool lost = (was.largest >= old.largest && now.largest < old.largest) || (was.smallest <= old.smallest && now.smallest > old.smallest) ||
                      (was.least <= old.least && now.least > old.least);
    if (lost) at = node_of(k, node);
    else at.include(now);
    was = old;
    now = at;
  }
}

void ExtremeTree::refresh(std::uint32_t first_slot, std::uint32_t last_slot) {
  std::uint64_t first = first_slot, last = last_slot;
  for (std::uint32_t k = 0; k < levels_; ++k) {
    first /= kMaxFanOut;
    last /= kMaxFanOut;
    for (std::uint64_t node = first; node <= last; ++node) level_[k][node] = node_of(k, node);
  }
}

bool ExtremeTree::consistent() const {
  for (std::uint32_t k = 0; k < levels_; ++k) {
    for (std::uint64_t i = 0; i < size_[k]; ++i) {
      if (level_[k][i] != node_of(k, i)) return false;
    }
  }
  return true;
}

}  // namespace conduit
