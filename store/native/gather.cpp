// Copying the rows of a batch out of the table.
#include <string.h>

#include <algorithm>

#include "failpoints.hpp"
#include "sampler.hpp"
#include "scalars.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kProgressBytes = 1 << 20;  // copied between two signs of life of a reader
constexpr std::size_t kProgressCells = 1 << 16;    // found between two
constexpr std::uint32_t kAhead = 12;               // rows prefetched ahead of the copy

template <class T>
void copy_numbers(const Cursor* rows, std::uint32_t n, std::uint64_t offset, std::byte* out) {
  for (std::uint32_t i = 0; i < n; ++i) copy_scalars_of<T>(rows[i].base + offset + rows[i].row * sizeof(T), 1, out + i * sizeof(T));
}

template <std::size_t kBytes>
void copy_small(const Cursor* rows, std::uint32_t n, std::uint64_t offset, std::byte* out) {
  for (std::uint32_t i = 0; i < n; ++i) memcpy(out + i * kBytes, rows[i].base + offset + rows[i].row * kBytes, kBytes);
}

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

void prefetch_row(const std::byte* at, std::uint64_t bytes) {
  for (std::uint64_t k = 0; k < std::min<std::uint64_t>(bytes, 256); k += 64) __builtin_prefetch(at + k);
}

void copy_rows(const Cursor* rows, std::uint32_t n, std::uint64_t offset, std::uint64_t bytes, std::byte* out) {
  switch (bytes) {
    case 1: return copy_numbers<std::uint8_t>(rows, n, offset, out);  // which may be such as change
    case 2: return copy_numbers<std::uint16_t>(rows, n, offset, out);
    case 4: return copy_numbers<std::uint32_t>(rows, n, offset, out);
    case 8: return copy_numbers<std::uint64_t>(rows, n, offset, out);
    case 16: return copy_small<16>(rows, n, offset, out);
    case 32: return copy_small<32>(rows, n, offset, out);
    default: break;
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch_row(rows[i + kAhead].base + offset + rows[i + kAhead].row * bytes, bytes);
    memcpy(out + i * bytes, rows[i].base + offset + rows[i].row * bytes, bytes);
  }
}

// A run of one row is the rule where environments step together, and one move where its size is known when compiled.
template <std::size_t kBytes>
std::byte* copy_run(const std::byte* from, std::uint32_t n, std::uint64_t, std::byte* to) {
  if (n == 1) memcpy(to, from, kBytes);
  else memcpy(to, from, n * kBytes);
  return to + n * kBytes;
}

std::byte* copy_wide_run(const std::byte* from, std::uint32_t n, std::uint64_t bytes, std::byte* to) {
  memcpy(to, from, n * bytes);
  return to + n * bytes;
}

using CopyRunOf = std::byte* (*)(const std::byte*, std::uint32_t, std::uint64_t, std::byte*);

std::byte* copy_changing_run(const std::byte* from, std::uint32_t n, std::uint64_t bytes, std::byte* to) {
  copy_scalars(from, n, bytes, to);
  return to + n * bytes;
}

CopyRunOf copy_run_of(const Column& column) {
  if (column.changes != 0) return copy_changing_run;
  switch (column.row_bytes) {
    case 1: return copy_run<1>;
    case 2: return copy_run<2>;
    case 4: return copy_run<4>;
    case 8: return copy_run<8>;
    case 16: return copy_run<16>;
    case 32: return copy_run<32>;
    default: return copy_wide_run;
  }
}

}  // namespace

// False when the reader was expelled: what it has copied is of no use. It looks before it starts and before each column,
// so that one who was stopped for long does not wake to copy bytes that others are writing.
bool Sampler::copy(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, Target* target) {
  if (!epoch.held()) return false;
  if (table_->tiered()) return copy_from_disk_too(epoch, n, offsets, target);
  resolve(n, slots_.data());
  if (ragged_) {
    if (!find_cells(epoch, n) || !make_room(epoch, n, offsets, target)) return false;
  }
  return gather(epoch, n, offsets, target->staging->data());
}

// Where the elements of rows that vary in length are; rows that a window lacks have none.
bool Sampler::find_cells(ReaderEpoch& epoch, std::uint32_t n) {
  const TableCore& t = *table_;
  FAILPOINT(gather_measure);
  const auto varying = [&](auto f) {  // f(run, column)
    for (const Output& output : plan_.outputs) {
      if (output.element_bytes == 0) continue;
      const Column& column = t.columns()[output.column];
      each_run(output.source, n, [&](const CopyRun& run) { f(run, column); });
    }
  };
  varying([](const CopyRun& run, const Column& column) {
    if (run.base != nullptr) prefetch_row(run.base + column.block_offset + run.row * sizeof(std::int64_t), (run.n + 1) * sizeof(std::int64_t));
  });
  cells_.clear();
  std::size_t shown = 0;
  bool held = true;
  varying([&](const CopyRun& run, const Column& column) {
    if (run.base == nullptr) {
      cells_.resize(cells_.size() + run.n);
      return;
    }
    for (std::uint32_t i = 0; i < run.n; ++i) cells_.push_back(t.ragged().cell(run.base, run.block, run.row + i, column));
    if (!held || cells_.size() - shown < kProgressCells) return;
    shown = cells_.size();
    held = epoch.progress();
  });
  return held;
}

// A target that they fit in, with what was drawn.
bool Sampler::make_room(const ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, Target* target) {
  std::uint64_t size = offsets[plan_.outputs.size() + 3];
  const Cell* cell = cells_.data();
  for (const Output& output : plan_.outputs) {
    if (output.element_bytes == 0) continue;
    std::uint64_t elements = 0;
    for (const Cell* end = cell + std::uint64_t{n} * plan_.count(output.source); cell < end; ++cell) elements += cell->elements;
    size += round_up(elements * output.element_bytes);
  }
  // What was read of a block's next life would lead astray: places and lengths are true if the reader is held still.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!epoch.held()) return false;
  std::byte* out = target->room(staging_class(size));
  const std::uint64_t extra = offsets[plan_.outputs.size()];
  memcpy(out + extra, drawn_.data() + extra, drawn_.size() - extra);
  return true;
}

bool Sampler::gather(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, std::byte* out) {
  const TableCore& t = *table_;
  prefetch_successors(n);
  since_ = 0;
  const Cell* cells = cells_.data();
  std::byte* values = out + offsets[plan_.outputs.size() + 3];  // of rows that vary in length
  for (std::size_t k = 0; k < plan_.outputs.size(); ++k) {
    const Output& output = plan_.outputs[k];
    std::byte* to = out + offsets[k];
    FAILPOINT(gather_column);
    if (!epoch.held()) return false;
    bool held = true;
    if (output.element_bytes > 0) {
      const std::uint64_t all = std::uint64_t{n} * plan_.count(output.source);
      const std::uint64_t elements = offsets_of(cells, all, reinterpret_cast<std::int64_t*>(to));
      held = copy_cells(epoch, cells, all, output.element_bytes, values, &since_);
      values += round_up(elements * output.element_bytes);
      cells += all;
    } else switch (output.source) {
      case Source::row: case Source::successor: case Source::first: held = gather_rows(epoch, output, n, to); break;
      case Source::sequence: held = gather_runs(epoch, k, sequence_runs_, to); break;
      case Source::stack: held = gather_runs(epoch, k, stack_runs_, to); break;
      case Source::next_stack: held = gather_runs(epoch, k, next_stack_runs_, to); break;
      case Source::after: held = gather_runs(epoch, k, after_runs_, to); break;
      case Source::goal: case Source::next_goal: gather_goals(output, n, to); break;
      default: gather_window(output, n, to); break;
    }
    if (!held) return false;
    // What says whether a number is there is copied before the number, and rewritten after it.
    if (of_columns(output.source) && t.columns()[output.column].changes != 0) std::atomic_thread_fence(std::memory_order_acquire);
  }
  FAILPOINT(gather_end);
  return true;
}

bool Sampler::gather_rows(ReaderEpoch& epoch, const Output& output, std::uint32_t n, std::byte* to) {
  const Cursor* from = output.source == Source::first ? firsts_.data() : rows_.data() + (output.source == Source::successor ? n : 0);
  const std::uint64_t offset = table_->columns()[output.column].block_offset;
  const auto step = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kProgressBytes / output.row_bytes));
  for (std::uint32_t start = 0; start < n; start += step) {
    const std::uint32_t count = std::min(step, n - start);
    copy_rows(from + start, count, offset, output.row_bytes, to + start * output.row_bytes);
    since_ += count * output.row_bytes;
    if (since_ < kProgressBytes) continue;
    since_ = 0;
    if (!epoch.progress()) return false;
  }
  return true;
}

// Asks for runs [from, to) of the column of output k, or as many as there are; what is left of the range is of the next
// output's, if that copies the same runs.
void Sampler::prefetch_runs(std::size_t k, std::size_t from, std::size_t to, const std::vector<CopyRun>& runs) const {
  if (from >= runs.size()) {
    if (k + 1 == plan_.outputs.size() || plan_.outputs[k + 1].source != plan_.outputs[k].source) return;
    from -= runs.size(), to -= runs.size(), ++k;
  }
  const Column& column = table_->columns()[plan_.outputs[k].column];
  for (std::size_t r = from; r < std::min(to, runs.size()); ++r) {
    if (runs[r].base != nullptr) prefetch_row(runs[r].base + column.block_offset + runs[r].row * column.row_bytes, runs[r].n * column.row_bytes);
  }
}

bool Sampler::gather_runs(ReaderEpoch& epoch, std::size_t k, const std::vector<CopyRun>& runs, std::byte* to) {
  const Column& column = table_->columns()[plan_.outputs[k].column];
  const std::uint64_t offset = column.block_offset, bytes = column.row_bytes;
  const CopyRunOf copy_one = copy_run_of(column);
  if (k == 0 || plan_.outputs[k - 1].source != plan_.outputs[k].source) prefetch_runs(k, 0, kAhead, runs);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    prefetch_runs(k, r + kAhead, r + kAhead + 1, runs);
    const CopyRun& run = runs[r];
    if (run.base == nullptr) {
      memset(to, 0, run.n * bytes);
      to += run.n * bytes;
    } else {
      to = copy_one(run.base + offset + run.row * bytes, run.n, bytes, to);
    }
    since_ += run.n * bytes;
    if (since_ < kProgressBytes) continue;
    since_ = 0;
    if (!epoch.progress()) return false;
  }
  return true;
}

void Sampler::gather_goals(const Output& output, std::uint32_t n, std::byte* to) const {
  const std::uint64_t offset = table_->columns()[output.column].block_offset, bytes = output.row_bytes;
  const std::uint64_t achieved = table_->columns()[plan_.achieved].block_offset;
  const Cursor* own = rows_.data() + (output.source == Source::next_goal ? n : 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    const Cursor& goal = goal_rows_[i];
    const Cursor& from = goal.base != nullptr ? goal : own[i];
    memcpy(to + i * bytes, from.base + (goal.base != nullptr ? achieved : offset) + from.row * bytes, bytes);
  }
}

// A column that belongs to the window as a whole.
void Sampler::gather_window(const Output& output, std::uint32_t n, std::byte* to) const {
  const auto fill = [&](auto* values, auto value_of) {
    for (std::uint32_t i = 0; i < n; ++i) values[i] = value_of(windows_[i]);
  };
  switch (output.source) {
    case Source::n_step_sum:
      if (plan_.double_reward) fill(reinterpret_cast<double*>(to), [](const Window& w) { return w.reduced; });
      else fill(reinterpret_cast<float*>(to), [](const Window& w) { return static_cast<float>(w.reduced); });
      break;
    case Source::terminated: fill(reinterpret_cast<bool*>(to), [](const Window& w) { return (w.flags & kTerminated) != 0; }); break;
    case Source::truncated: fill(reinterpret_cast<bool*>(to), [](const Window& w) { return (w.flags & kTruncated) != 0; }); break;
    case Source::discount: fill(reinterpret_cast<float*>(to), [](const Window& w) { return w.discount; }); break;
    case Source::mask:
      for (std::uint32_t i = 0; i < n; ++i) {
        const Window& w = windows_[i];
        std::byte* at = to + std::size_t{i} * output.row_bytes;
        if (w.before + w.steps < output.row_bytes) memset(at, 0, output.row_bytes);
        memset(at + plan_.before - w.before, 1, w.before + w.steps);
      }
      break;
    case Source::relabelled:
      for (std::uint32_t i = 0; i < n; ++i) to[i] = static_cast<std::byte>(goal_rows_[i].base != nullptr);
      break;
    default: fill(reinterpret_cast<std::int32_t*>(to), [](const Window& w) { return static_cast<std::int32_t>(w.steps); }); break;
  }
}

}  // namespace conduit
