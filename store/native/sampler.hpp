// Sampling: draw rows under the index lock, then copy their windows without any lock, inside a reader epoch.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "table.hpp"

namespace conduit {

// What one output column of a batch is made of.
enum class Source : std::uint32_t {
  row = 0,         // a column of the drawn row
  successor = 1,   // a column of the row that ends the window (next_obs)
  n_step_sum = 2,  // sum of gamma^k * column over the window; float32 or float64
  terminated = 3,  // bool: of the window's last step
  truncated = 4,   // bool
  discount = 5,    // float32: gamma^m, 0 when terminated
  steps = 6,       // int32: m, the steps the window really has
};

struct Output {
  Source source;
  std::uint32_t column;     // for row, successor, n_step_sum
  std::uint64_t row_bytes;
};

// A window and the columns it yields, laid out one after the other, each 64-byte aligned, followed by keys (uint64),
// probabilities (float64) and weights (float32).
struct Plan {
  std::vector<Output> outputs;
  std::uint32_t steps = 0;  // n of the n-step window; 0 = rows as stored
  double gamma = 1.0;
  bool double_reward = false;  // the reduced column is float64
  std::uint32_t view = 0;      // whose rows are drawn
  bool table_weights = false;  // importance weights are divided by the largest of the table, not of the batch

  // Byte offset of each output for n rows, then of keys, probabilities, weights; the last element is the total size.
  std::vector<std::uint64_t> offsets(std::uint64_t n) const;
};

// Where a row is.
struct Cursor {
  const std::byte* base;  // of its block
  std::uint32_t row;
};

enum class SampleStatus {
  ok,
  too_few,  // fewer live steps than min_size
  no_mass,  // no row that could be drawn
  limited,  // kSampleToInsert: too few inserts since
  used_up,  // the rows may not be delivered so often any more
  never,    // more rows than the limiter can ever be sure to let through
};

struct SampleState {
  SampleStatus status = SampleStatus::ok;
  LimiterState limiter;
  double total = 0.0;
  DrawMark mark;  // of the batch that was drawn
};

class Sampler {
 public:
  Sampler(std::shared_ptr<TableCore> table, Plan plan);

  // One attempt, without waiting for rows. Draw `i` of the batch uses Philox(seed, stream, batch). Fills `out`. Where the
  // limiter counts samples, `held` afterwards holds these, for the caller to deliver or to let go of; what it holds before, of
  // the same size, is used instead of taking more.
  SampleStatus sample(std::uint32_t n, std::byte* out, std::uint32_t stream, std::uint64_t batch, SampleState* state, Reservation* held);
  // After an attempt that failed: begin_wait, one more attempt, and only then wait with what begin_wait returned. So no
  // row that is published in between is slept through. Wakes early at will.
  std::uint32_t begin_wait();
  void wait(std::uint32_t signal, std::uint64_t timeout_ns, SampleStatus why);
  // Copies the windows of given live rows; false for the first key that is stale, whose position comes back. Nothing was
  // drawn: probabilities are NaN, weights 1.
  bool read(const std::uint64_t* keys, std::uint32_t n, std::byte* out, std::uint64_t* stale_at);
  const Plan& plan() const { return plan_; }
  TableCore& table() const { return *table_; }

 private:
  struct Window {
    std::uint32_t steps;
    std::uint8_t flags;
    float discount;
    double reduced;
  };
  SampleStatus draw(std::uint32_t n, std::uint32_t stream, std::uint64_t batch, std::uint64_t* keys, double* probabilities, SampleState* state, Reservation* held, double* beta, double* least);
  void resolve(std::uint32_t n, const std::uint32_t* slots);
  Cursor locate(std::uint32_t slot) const {
    const std::uint32_t block = table_->block_of(slot);
    return {table_->block_data(block), slot - block * table_->shared().rows_per_block};
  }
  bool copy(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, std::byte* out);
  bool gather(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, std::byte* out);
  void gather_window(const Output& output, std::uint32_t n, std::byte* to) const;
  const std::byte* address(std::uint32_t slot, const Column& column) const;

  std::shared_ptr<TableCore> table_;
  Plan plan_;
  std::vector<Window> windows_;
  std::vector<Cursor> rows_;  // of each drawn row, then of each successor
  std::vector<double> draws_;
  std::vector<std::uint32_t> slots_, spent_;
};

}  // namespace conduit
