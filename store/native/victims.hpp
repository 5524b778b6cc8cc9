// Which row of a table of slots leaves next where the one of the least priority does, of equal ones the oldest: a tree, fan-out
// 8, of the row that comes first of those below. Derived from raw priorities and the blocks. Under the index lock.
#pragma once

#include <cstdint>
#include <limits>

#include "layout.hpp"
#include "process.hpp"

namespace conduit {

class VictimTree {
 public:
  VictimTree() = default;
  VictimTree(const Block* blocks, float* raw, std::uint64_t slots, Victim* const* levels, const std::uint64_t* sizes, std::uint32_t n_levels);

  bool used() const { return levels_ > 0; }
  std::uint32_t first() const { return level_[levels_ - 1][0].slot; }  // kNoRow: no row is in
  // The row has come in, has gone, or has another priority.
  void changed(std::uint32_t slot) const;
  void refresh_all() const;
  bool consistent() const;

  static std::uint32_t plan(std::uint64_t slots, std::uint64_t* sizes);

 private:
  Victim candidate(std::uint64_t slot) const;
  Victim node_of(std::uint32_t level, std::uint64_t node) const;

  const Block* blocks_ = nullptr;
  float* raw_ = nullptr;
  std::uint64_t slots_ = 0;
  Victim* level_[kTreeLevels] = {};
  std::uint64_t size_[kTreeLevels] = {};
  std::uint32_t levels_ = 0;
};

// A table's; unused where its rows leave otherwise.
VictimTree victims_of(const Segments& segments, const Table& t);

}  // namespace conduit
