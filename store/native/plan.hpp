// What batches of one window are made of.
#pragma once

#include <cstdint>
#include <vector>

namespace conduit {

// What one output column of a batch is made of. "count": as many values a sample as the plan says.
enum class Source : std::uint32_t {
  row = 0,         // a column of the drawn row
  successor = 1,   // a column of the row after the window's last step (next_obs)
  n_step_sum = 2,  // sum of gamma^k * column over the window's steps; float32 or float64
  sequence = 3,    // a column of every row of the window, `before` + `steps` of them; zeros where it has none
  first = 4,       // a column of the window's first row
  stack = 5,       // a column of the `stack` rows up to the drawn one; before the episode's first row that one again, or zeros
  next_stack = 6,  // the same up to the row after the window's last step
  goal = 7,        // column `column` of the drawn row, or, where it is relabelled, column `achieved` of the row with its goal
  next_goal = 8,   // the same of the row after the window's last step
  after = 9,       // a column of the row after each step, `steps` of them; zeros where the window has none
  // of the window as a whole
  terminated = 10,   // bool: of the window's last step
  truncated = 11,    // bool
  discount = 12,     // float32: gamma^m, 0 when terminated
  steps = 13,        // int32: m, the steps the window really has
  mask = 14,         // bool, `before` + `steps`: whether the window has this row
  relabelled = 15,   // bool: whether the goal is another
};
inline constexpr std::uint32_t kSources = 16;
inline constexpr bool of_columns(Source source) { return source < Source::terminated; }

struct Output {
  Source source;
  std::uint32_t column;     // where of_columns(source)
  std::uint64_t row_bytes;  // of one sample
  std::uint64_t element_bytes = 0;  // of a column whose rows vary in length: the output is int64 offsets, n * count + 1
};

// Where the goal of a relabelled row comes from. M. Andrychowicz et al., "Hindsight experience replay", NIPS 2017.
enum class Hindsight : std::uint32_t { none = 0, future = 1, last = 2, episode = 3 };

// A window and the columns it yields, laid out one after the other, each 64-byte aligned, followed by keys (uint64),
// probabilities (float64) and weights (float32).
struct Plan {
  std::vector<Output> outputs;
  std::uint32_t view = 0;       // whose rows are drawn
  std::uint32_t before = 0;     // rows of a sequence before the drawn one
  std::uint32_t steps = 0;      // steps from the drawn row on, at most; 0 = rows as stored
  std::uint32_t stack = 1;
  bool last_step = false;       // a step counts though no observation follows it
  bool pad_zeros = false;       // stacks are padded with zeros, not with the episode's first row
  double gamma = 1.0;
  bool double_reward = false;   // the reduced column is float64
  bool table_weights = false;   // importance weights are divided by the largest of the table, not of the batch
  Hindsight hindsight = Hindsight::none;
  double ratio = 0.0;           // probability of a row to be relabelled
  std::uint32_t achieved = 0;   // column of the achieved goal

  bool has(Source source) const;
  bool ragged() const;
  // Values of one sample in an output: rows of its column, or elements.
  std::uint32_t count(Source source) const;
  // Byte offset of each output for n rows, then of keys, probabilities, weights; the last element is the size of all. Behind it
  // lie the elements of rows that vary in length, output after output, each 64-byte aligned.
  std::vector<std::uint64_t> offsets(std::uint64_t n) const;
};

}  // namespace conduit
