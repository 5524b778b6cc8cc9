// Sampling: draw rows under the index lock, then copy their windows without any lock, inside a reader epoch.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "plan.hpp"
#include "staging.hpp"
#include "table.hpp"
#include "walk.hpp"

namespace conduit {

inline constexpr std::uint64_t kSmallRow = 32;  // bytes of a column's row: such are asked for ahead of all copies

// Where a row is.
struct Cursor {
  const std::byte* base;  // of its block; null: nowhere, which counts as zeros
  std::uint32_t row;
  std::uint32_t block = kNoRow;
};

enum class SampleStatus {
  ok,
  too_few,  // fewer live steps than min_size
  no_mass,  // no row that could be drawn
  limited,  // kSampleToInsert: too few inserts since
  used_up,  // the rows may not be delivered so often any more
  never,    // more rows than the limiter can ever be sure to let through
  few_rows,  // the sampler draws each row once, and there are fewer than asked for
};

struct SampleState {
  SampleStatus status = SampleStatus::ok;
  LimiterState limiter;
  double total = 0.0;
  DrawMark mark;  // of the batch that was drawn
  Drawn drawn;    // in: `index` of a batch that was drawn before and is drawn again, else kNextBatch
};

class Sampler {
 public:
  Sampler(std::shared_ptr<TableCore> table, Plan plan);

  // One attempt, without waiting for rows. Draw `i` of the batch uses Philox(seed, stream, batch). Fills `target`. Where the
  // limiter counts samples, `held` afterwards holds these, for the caller to deliver or to let go of; what it holds before, of
  // the same size, is used instead of taking more. A batch whose copy was worthless, because this reader had been stopped, is
  // undone and drawn again with the same numbers.
  SampleStatus sample(std::uint32_t n, Target* target, std::uint32_t stream, std::uint64_t batch, SampleState* state, Reservation* held);
  // After an attempt that failed: begin_wait, one more attempt, and only then wait with what begin_wait returned. So no
  // row that is published in between is slept through. Wakes early at will.
  std::uint32_t begin_wait();
  void wait(std::uint32_t signal, std::uint64_t timeout_ns, SampleStatus why);
  // Copies the windows of given live rows; false for the first key that is stale, whose position comes back. Nothing was
  // drawn: probabilities are NaN, weights 1, goals as they were.
  bool read(const std::uint64_t* keys, std::uint32_t n, Target* target, std::uint64_t* stale_at);
  // A batch of n rows that `sample` filled into `out` will not be delivered: without replacement its rows come back, unless
  // their epoch is over. What is not undone, for a killed process, say, counts as drawn.
  void undo(std::uint32_t n, const std::byte* out, const Drawn& drawn);
  const Plan& plan() const { return plan_; }
  TableCore& table() const { return *table_; }

 private:
  struct Window {
    std::uint32_t steps, before;
    std::uint8_t flags;
    float discount;
    double reduced;
  };
  SampleStatus draw(std::uint32_t n, std::uint32_t stream, std::uint64_t batch, std::uint64_t* keys, double* probabilities, SampleState* state, Reservation* held, double* beta, double* least);

  // Rows of a whole batch, in the order of the output.
  struct CopyRun {
    const std::byte* base;  // of their block; null: zeros, or where rows vary in length no elements
    std::uint32_t row, n, block = kNoRow;
  };

  // resolve.cpp: where everything is
  void prefetch(const std::uint32_t* slots, std::uint32_t n) const;
  void prefetch_successors(std::uint32_t n) const;
  void locate_rows(std::uint32_t n);
  void resolve(std::uint32_t n, const std::uint32_t* slots);
  template <class Reward>
  void resolve_steps(std::uint32_t n, const std::uint32_t* slots, std::uint64_t offset);
  void resolve_sequence(std::uint32_t i, std::uint32_t slot, std::uint32_t n);
  void resolve_stack(std::uint32_t slot, std::vector<CopyRun>& runs);
  void resolve_after(std::uint32_t i, std::uint32_t slot);
  void resolve_goal(std::uint32_t i, std::uint32_t slot);
  void prefetch_links(std::uint32_t slot) const;
  void append_runs(const std::vector<StepRun>& found, std::vector<CopyRun>& runs) const;
  Cursor locate(std::uint32_t slot) const {
    const std::uint32_t block = table_->block_of(slot);
    return {table_->block_data(block), slot - block * table_->shared().rows_per_block, block};
  }

  // gather.cpp: copies
  std::byte* begin(std::uint64_t bytes, Target* target);
  bool copy(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, Target* target);
  bool find_cells(ReaderEpoch& epoch, std::uint32_t n);
  bool make_room(const ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, Target* target);
  bool gather(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, std::byte* out);
  bool bring_cells(ReaderEpoch& epoch, std::uint32_t n);
  bool copy_from_disk_too(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, Target* target);
  template <class F>
  void each_run(Source source, std::uint32_t n, F f) const;
  template <class F>
  void each_piece(std::uint32_t n, F f) const;
  bool gather_rows(ReaderEpoch& epoch, const Output& output, std::uint32_t n, std::byte* to);
  bool gather_runs(ReaderEpoch& epoch, std::size_t k, const std::vector<CopyRun>& runs, std::byte* to);
  void prefetch_runs(std::size_t k, std::size_t from, std::size_t to, const std::vector<CopyRun>& runs) const;
  void gather_goals(const Output& output, std::uint32_t n, std::byte* to) const;
  void gather_window(const Output& output, std::uint32_t n, std::byte* to) const;

  std::shared_ptr<TableCore> table_;
  Plan plan_;
  Walk walk_;
  bool ragged_, sequences_, stacks_, next_stacks_, after_, goals_, ends_;  // what the plan has
  struct Place {
    std::uint64_t offset, row_bytes;  // of a column in its block
  };
  std::vector<Place> small_rows_, small_successors_;  // which are asked for ahead
  std::vector<Window> windows_;
  std::vector<Cursor> rows_;       // of each drawn row, then of each successor
  std::vector<std::uint32_t> afters_;  // slots of the successors
  std::vector<Cursor> firsts_;     // of each window's first row
  std::vector<Cursor> goal_rows_;  // of each row with another goal
  std::vector<CopyRun> sequence_runs_, stack_runs_, next_stack_runs_, after_runs_;
  std::vector<StepRun> found_;     // scratch of one window
  std::vector<std::byte> drawn_;   // keys, probabilities and weights, until it is known how much the rows take
  std::vector<Cell> cells_;        // of each output whose rows vary in length, n times its count
  std::vector<Piece> pieces_;      // of rows on disk
  bool cold_ = true;               // they came from the disk itself of late, not from the page cache
  std::vector<double> draws_, goal_draws_;
  std::vector<std::uint32_t> slots_, spent_;
  std::uint64_t since_ = 0;        // bytes copied since the last sign of life
};

// Calls f(run) for the rows that outputs of a source copy, as resolved, in the order of the output. Of those with another goal: their own.
template <class F>
void Sampler::each_run(Source source, std::uint32_t n, F f) const {
  const auto rows = [&](const Cursor* from) {
    for (std::uint32_t i = 0; i < n; ++i) f(CopyRun{from[i].base, from[i].row, 1, from[i].block});
  };
  const auto runs = [&](const std::vector<CopyRun>& all) {
    for (const CopyRun& run : all) f(run);
  };
  switch (source) {
    case Source::successor: case Source::next_goal: return rows(rows_.data() + n);
    case Source::first: return rows(firsts_.data());
    case Source::sequence: return runs(sequence_runs_);
    case Source::stack: return runs(stack_runs_);
    case Source::next_stack: return runs(next_stack_runs_);
    case Source::after: return runs(after_runs_);
    default: return rows(rows_.data());
  }
}

}  // namespace conduit
