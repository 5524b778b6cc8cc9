// The rows of one window, found by the links between them.
//
// No lock: the caller has drawn a ready row inside a reader epoch. What its window needs was live then, stays in place, and
// its links do not change. A reader that was expelled may walk through a block's next life: what it finds is thrown away, and
// every walk ends.
#pragma once

#include <cstdint>
#include <vector>

#include "table.hpp"

namespace conduit {

// Rows that lie one after the other: `n` from slot `first` on, of one block. kNoRow: there are none, their place is zeros.
struct StepRun {
  std::uint32_t first, n;
};

// From step `slot` on, at most `most` steps of its episode.
struct Steps {
  std::uint32_t n;      // steps found
  std::uint32_t last;   // the last of them
  std::uint32_t after;  // the row that follows it, itself where there is none
};

class Walk {
 public:
  explicit Walk(const TableCore& table) : t_(table) {}

  // Whether the `before` rows before `slot`, `most` steps from it on and a row after them all lie one after the other. One count
  // each way tells, where there are counts; where it is false they may, and the walks below will find out.
  bool together(std::uint32_t slot, std::uint32_t before, std::uint32_t most) const;
  // Appends the runs of the steps. With `last_step` a step counts though no row follows it.
  Steps forward(std::uint32_t slot, std::uint32_t most, bool last_step, std::vector<StepRun>& runs) const;
  // Appends the runs of the `most` rows before `slot`, or as many as its episode has; returns how many.
  std::uint32_t backward(std::uint32_t slot, std::uint32_t most, std::vector<StepRun>& runs);
  // Rows of the episode after `slot`, its final observation too.
  std::uint32_t remaining(std::uint32_t slot) const;
  std::uint32_t advanced(std::uint32_t slot, std::uint32_t n) const;
  // The first row of the episode, and how many there are between it and `slot`.
  std::uint32_t first(std::uint32_t slot, std::uint32_t* distance) const;

 private:
  const TableCore& t_;
  std::vector<StepRun> back_;
};

}  // namespace conduit
