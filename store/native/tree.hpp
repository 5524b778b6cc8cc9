// Sum tree and tree of extremes over the slots of one table, in place in the control segment.
//
// The sum tree has fan-out 8: the children of one node are one cache line, and leaves stay in slot order whatever the
// capacity (no power-of-two padding: 9.1 bytes a leaf). A node is always the sum of its eight children, in one fixed
// order, never a running total, so the tree is a function of its leaves and recovery is recomputation.
// All of it is read and written only under the table's index lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "layout.hpp"

namespace conduit {

inline constexpr unsigned kFanOut = 8;

struct LineRange {
  std::uint32_t first, last;  // lines of 8 leaves, both included
};

class SumTree {
 public:
  SumTree() = default;
  SumTree(double* const* levels, const std::uint64_t* sizes, std::uint32_t n_levels);

  double* leaves() const { return level_[0]; }
  double total() const;
  // Recomputes every ancestor of the given lines, level by level. `ranges` is scratch: it is overwritten.
  void refresh(LineRange* ranges, std::uint32_t n) const;
  void refresh_all() const;
  // For each mass in [0, total): the first leaf whose cumulative sum exceeds it. A leaf of zero is never returned while
  // total > 0; masses at or above the total give the last non-zero leaf.
  void find(const double* masses, std::uint32_t n, std::uint32_t* leaves) const;
  // The same of a tree whose leaves are 0 or 1. Below a node that is full the mass says which leaf it is: nothing more is read.
  void find_equal(const double* masses, std::uint32_t n, std::uint32_t* leaves) const;
  // Sum of leaves [first, last).
  double range_sum(std::uint64_t first, std::uint64_t last) const;
  // Whether every node equals the sum of its children.
  bool consistent() const;

  // Number of entries of each level for `leaves` leaves; returns the number of levels.
  static std::uint32_t plan(std::uint64_t leaves, std::uint64_t* sizes);

 private:
  double* level_[kTreeLevels] = {};
  std::uint64_t size_[kTreeLevels] = {};
  std::uint32_t levels_ = 0;
};

// Largest raw priority of some rows, -1 when there is none, the smallest that is above 0 and the smallest of all, infinity
// when there is none.
struct Extremes {
  float largest = -1.0f, smallest = std::numeric_limits<float>::infinity(), least = std::numeric_limits<float>::infinity();

  static Extremes of(float raw) { return {raw, raw > 0.0f ? raw : Extremes{}.smallest, raw}; }
  void include(const Extremes& other) {
    largest = std::max(largest, other.largest);
    smallest = std::min(smallest, other.smallest);
    least = std::min(least, other.least);
  }
  bool operator==(const Extremes&) const = default;
};

// Extremes of the ready rows, fan-out 64, so that a new row's default priority and the table's largest importance weight
// cost nothing to find.
class ExtremeTree {
 public:
  ExtremeTree() = default;
  // `ready`: the flag of the rows that count.
  ExtremeTree(float* raw, std::uint8_t* flags, std::uint8_t ready, std::uint64_t slots, Extremes* const* levels, const std::uint64_t* sizes,
              std::uint32_t n_levels);

  const Extremes& all() const { return level_[levels_ - 1][0]; }
  void changed(std::uint32_t slot, float before);  // raw or readiness of one slot changed; `before` = -1 if it was not ready
  void refresh(std::uint32_t first_slot, std::uint32_t last_slot);
  void refresh_all() { refresh(0, static_cast<std::uint32_t>(slots_ - 1)); }
  bool consistent() const;

  static std::uint32_t plan(std::uint64_t slots, std::uint64_t* sizes);

 private:
  Extremes node_of(std::uint32_t level, std::uint64_t node) const;

  float* raw_ = nullptr;
  std::uint8_t* flags_ = nullptr;
  std::uint8_t ready_ = 0;
  std::uint64_t slots_ = 0;
  Extremes* level_[kTreeLevels] = {};
  std::uint64_t size_[kTreeLevels] = {};
  std::uint32_t levels_ = 0;
};

}  // namespace conduit
