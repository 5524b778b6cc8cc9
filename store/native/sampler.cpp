#include "sampler.hpp"

#include <string.h>

#include <algorithm>
#include <limits>

#include "clones.hpp"
#include "error.hpp"
#include "failpoints.hpp"
#include "philox.hpp"
#include "powers.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kProgressBytes = 1 << 20;  // copied between two signs of life of a reader
constexpr std::uint32_t kAhead = 12;               // rows prefetched ahead of the copy

// Importance weights, normalised by the batch's largest, or the table's where `least` is its smallest probability:
// w_i = (min p / p_i)^beta.
// T. Schaul et al., "Prioritized experience replay", ICLR 2016.
// `scratch` has room for n.
void importance_weights(const double* probabilities, std::uint32_t n, double beta, double least, double* scratch, float* weights) {
  for (std::uint32_t i = 0; i < n; ++i) least = std::min(least, probabilities[i]);
  for (std::uint32_t i = 0; i < n; ++i) scratch[i] = least / probabilities[i];
  powers(scratch, beta, scratch, n);
  for (std::uint32_t i = 0; i < n; ++i) weights[i] = static_cast<float>(scratch[i]);
}

template <std::size_t kBytes>
void copy_small(const Cursor* rows, std::uint32_t n, std::uint64_t offset, std::byte* out) {
  for (std::uint32_t i = 0; i < n; ++i) memcpy(out + i * kBytes, rows[i].base + offset + rows[i].row * kBytes, kBytes);
}

void prefetch_row(const std::byte* at, std::uint64_t bytes) {
  for (std::uint64_t k = 0; k < std::min<std::uint64_t>(bytes, 256); k += 64) __builtin_prefetch(at + k);
}

void copy_rows(const Cursor* rows, std::uint32_t n, std::uint64_t offset, std::uint64_t bytes, std::byte* out) {
  switch (bytes) {
    case 1: return copy_small<1>(rows, n, offset, out);
    case 2: return copy_small<2>(rows, n, offset, out);
    case 4: return copy_small<4>(rows, n, offset, out);
    case 8: return copy_small<8>(rows, n, offset, out);
    case 16: return copy_small<16>(rows, n, offset, out);
    case 32: return copy_small<32>(rows, n, offset, out);
    default: break;
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch_row(rows[i + kAhead].base + offset + rows[i + kAhead].row * bytes, bytes);
    memcpy(out + i * bytes, rows[i].base + offset + rows[i].row * bytes, bytes);
  }
}

}  // namespace

std::vector<std::uint64_t> Plan::offsets(std::uint64_t n) const {
  std::vector<std::uint64_t> result;
  std::uint64_t at = 0;
  const auto add = [&](std::uint64_t bytes) {
    result.push_back(at);
    at = (at + bytes + kAlign - 1) / kAlign * kAlign;
  };
  for (const Output& output : outputs) add(output.row_bytes * n);
  add(sizeof(std::uint64_t) * n);
  add(sizeof(double) * n);
  add(sizeof(float) * n);
  result.push_back(at);
  return result;
}

Sampler::Sampler(std::shared_ptr<TableCore> table, Plan plan) : table_(std::move(table)), plan_(std::move(plan)) {}

SampleStatus Sampler::sample(std::uint32_t n, std::byte* out, std::uint32_t stream, std::uint64_t batch, SampleState* state, Reservation* held) {
  TableCore& t = *table_;
  Table& shared = t.shared();
  t.process().check();
  const std::vector<std::uint64_t> offsets = plan_.offsets(n);
  const std::size_t extra = plan_.outputs.size();
  auto* keys = reinterpret_cast<std::uint64_t*>(out + offsets[extra]);
  auto* probabilities = reinterpret_cast<double*>(out + offsets[extra + 1]);
  auto* weights = reinterpret_cast<float*>(out + offsets[extra + 2]);
  draws_.resize(n);
  slots_.resize(n);
  for (;;) {
    if (!t.counts_uses()) uniform_draws(t.view(plan_.view).shared().seed, stream, batch, n, draws_.data());
    const std::unique_ptr<ReaderEpoch> epoch = t.process().enter();  // before the draw: what is drawn stays in place
    const std::uint64_t began = now_ns();
    double beta = 0.0, least = std::numeric_limits<double>::infinity();
    state->status = draw(n, stream, batch, keys, probabilities, state, held, &beta, &least);
    if (state->status != SampleStatus::ok) return state->status;
    // What was drawn makes room: writers go on while this copies.
    if (shared.limits_inserts != 0) announce(shared.inserts_waiting, shared.inserts_signal);
    const std::uint64_t drawn = now_ns();
    shared.counters.draw_ns.fetch_add(drawn - began, std::memory_order_relaxed);
    if (n > 0) importance_weights(probabilities, n, beta, least, draws_.data(), weights);
    FAILPOINT(gather_begin);
    const bool whole = copy(*epoch, n, offsets.data(), out);
    const bool valid = epoch->leave() && whole;
    const std::uint64_t gathered = now_ns();
    shared.counters.gather_ns.fetch_add(gathered - drawn, std::memory_order_relaxed);
    if (valid) {
      t.span(Stage::draw, n, began, drawn);
      t.span(Stage::gather, n, drawn, gathered);
      shared.counters.sampled_rows.fetch_add(n, std::memory_order_relaxed);
      shared.counters.sampled_batches.fetch_add(1, std::memory_order_relaxed);
      return SampleStatus::ok;
    }
    // Expelled while stopped: the copy may be of a block's next life. The batch was never delivered.
    shared.counters.discarded_batches.fetch_add(1, std::memory_order_relaxed);
  }
}

// The part of `sample` that needs the lock: slots, keys, probabilities.
SampleStatus Sampler::draw(std::uint32_t n, std::uint32_t stream, std::uint64_t batch, std::uint64_t* keys, double* probabilities, SampleState* state, Reservation* held,
                           double* beta, double* least) {
  TableCore& t = *table_;
  Table& shared = t.shared();
  const bool counted = shared.limiter == kSampleToInsert;
  IndexLock lock(t);
  FAILPOINT(draw_locked);
  t.fold();
  const ViewIndex& view = t.view(plan_.view);
  state->mark = view.mark();
  state->total = state->mark.total;
  if (!t.sample_possible(n)) {
    state->limiter = t.limiter_state();
    return SampleStatus::never;
  }
  if (shared.live_steps < t.settings().min_size) {
    state->limiter = t.limiter_state();
    return SampleStatus::too_few;
  }
  bool take = counted && !held->holds(n, t.settings().era);
  if (take) {
    state->limiter = t.limiter_state();
    if (!state->limiter.admits(n) && t.return_reserved_by_dead()) state->limiter = t.limiter_state();
    if (!state->limiter.admits(n)) return SampleStatus::limited;
  }
  const auto failed = [&](SampleStatus status) {
    state->limiter = t.limiter_state();
    return status;
  };
  if (!(state->total > 0.0)) return failed(SampleStatus::no_mass);
  const double* leaves = view.leaves();
  *beta = view.settings().beta;
  if (plan_.table_weights) *least = view.least_mass() / state->total;
  if (t.counts_uses()) {
    if (!t.draw_counted(view, stream, batch, n, slots_.data(), probabilities, &spent_)) return failed(SampleStatus::used_up);
    for (std::uint32_t i = 0; i < n; ++i) keys[i] = t.key_of(slots_[i]);
    t.use_up(spent_);
    state->mark = view.mark();  // what a batch does itself is no drift of it
  } else {
    for (std::uint32_t i = 0; i < n; ++i) draws_[i] *= state->total;
    view.sum().find(draws_.data(), n, slots_.data());
    for (std::uint32_t i = 0; i < n; ++i) {
      keys[i] = t.key_of(slots_[i]);
      probabilities[i] = leaves[slots_[i]] / state->total;
    }
  }
  if (take) {
    t.take_samples(n);
    *held = Reservation(table_, n, t.settings().era);
  }
  FAILPOINT(draw_done);
  return SampleStatus::ok;
}

bool Sampler::read(const std::uint64_t* keys, std::uint32_t n, std::byte* out, std::uint64_t* stale_at) {
  TableCore& t = *table_;
  t.process().check();
  slots_.resize(n);
  const std::vector<std::uint64_t> offsets = plan_.offsets(n);
  for (;;) {
    const std::unique_ptr<ReaderEpoch> epoch = t.process().enter();
    {
      IndexLock lock(t);
      t.fold();
      for (std::uint32_t i = 0; i < n; ++i) {
        if (t.live(keys[i], &slots_[i]) && t.view(plan_.view).ready(slots_[i])) continue;
        *stale_at = i;
        return false;
      }
    }
    const bool whole = copy(*epoch, n, offsets.data(), out);
    if (!epoch->leave() || !whole) continue;
    const std::size_t extra = plan_.outputs.size();
    memcpy(out + offsets[extra], keys, n * sizeof *keys);
    std::fill_n(reinterpret_cast<double*>(out + offsets[extra + 1]), n, std::numeric_limits<double>::quiet_NaN());
    std::fill_n(reinterpret_cast<float*>(out + offsets[extra + 2]), n, 1.0f);
    return true;
  }
}

const std::byte* Sampler::address(std::uint32_t slot, const Column& column) const {
  const std::uint32_t block = table_->block_of(slot);
  return table_->block_data(block) + column.block_offset + (slot - block * table_->shared().rows_per_block) * column.row_bytes;
}

// Walks each drawn row's window: m steps, up to the episode's end or the plan's n. A ready row has what it needs, and the
// links of what it needs never change while the row's block is protected.
void Sampler::resolve(std::uint32_t n, const std::uint32_t* slots) {
  const TableCore& t = *table_;
  rows_.resize(std::size_t{n} * 2);
  for (std::uint32_t i = 0; i < n; ++i) rows_[i] = locate(slots[i]);
  if (plan_.steps == 0) return;
  windows_.resize(n);
  const Column* reward = nullptr;
  for (const Output& output : plan_.outputs) {
    if (output.source == Source::n_step_sum) reward = &t.columns()[output.column];
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      __builtin_prefetch(&t.next_[slots[i + kAhead]]);
      __builtin_prefetch(&t.flags_[slots[i + kAhead]]);
      if (reward != nullptr) __builtin_prefetch(address(slots[i + kAhead], *reward));
    }
    std::uint32_t at = slots[i], m = 0;
    double factor = 1.0, sum = 0.0;
    std::uint8_t flags = 0;
    for (;;) {
      if (reward != nullptr) {
        double value;
        if (plan_.double_reward) {
          memcpy(&value, address(at, *reward), sizeof value);
        } else {
          float narrow;
          memcpy(&narrow, address(at, *reward), sizeof narrow);
          value = narrow;
        }
        sum += factor * value;
      }
      ++m;
      factor *= plan_.gamma;
      flags = t.flag(at);
      const std::uint32_t after = t.next(at);
      if (after == kNoRow) break;  // only when this reader has been expelled meanwhile: the batch will be discarded
      at = after;
      if (m == plan_.steps || (flags & kEnd) != 0 || (t.flag(at) & kFinal) != 0 || t.next(at) == kNoRow) break;
    }
    rows_[n + i] = locate(at);
    windows_[i] = {m, flags, static_cast<float>((flags & kTerminated) != 0 ? 0.0 : factor), sum};
  }
}

// False when the reader was expelled: what it has copied is of no use. It looks before it starts and before each column,
// so that one who was stopped for long does not wake to copy bytes that others are writing.
bool Sampler::copy(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, std::byte* out) {
  if (!epoch.held()) return false;
  resolve(n, slots_.data());
  return gather(epoch, n, offsets, out);
}

bool Sampler::gather(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, std::byte* out) {
  const TableCore& t = *table_;
  const auto cursors = [&](const Output& output) { return rows_.data() + (output.source == Source::successor ? n : 0); };
  for (const Output& output : plan_.outputs) {  // small columns miss the cache once a row: ask for all of them at once
    if (output.source > Source::successor || output.row_bytes > 32) continue;
    const std::uint64_t offset = t.columns()[output.column].block_offset;
    const Cursor* from = cursors(output);
    for (std::uint32_t i = 0; i < n; ++i) __builtin_prefetch(from[i].base + offset + from[i].row * output.row_bytes);
  }
  std::uint64_t since = 0;
  for (std::size_t k = 0; k < plan_.outputs.size(); ++k) {
    const Output& output = plan_.outputs[k];
    std::byte* to = out + offsets[k];
    FAILPOINT(gather_column);
    if (!epoch.held()) return false;
    if (output.source > Source::successor) {
      gather_window(output, n, to);
      continue;
    }
    const Cursor* from = cursors(output);
    const std::uint64_t offset = t.columns()[output.column].block_offset;
    const auto step = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kProgressBytes / output.row_bytes));
    for (std::uint32_t start = 0; start < n; start += step) {
      const std::uint32_t count = std::min(step, n - start);
      copy_rows(from + start, count, offset, output.row_bytes, to + start * output.row_bytes);
      since += count * output.row_bytes;
      if (since < kProgressBytes) continue;
      since = 0;
      if (!epoch.progress()) return false;
    }
  }
  FAILPOINT(gather_end);
  return true;
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
    default: fill(reinterpret_cast<std::int32_t*>(to), [](const Window& w) { return static_cast<std::int32_t>(w.steps); }); break;
  }
}

std::uint32_t Sampler::begin_wait() {
  Table& t = table_->shared();
  const std::uint32_t signal = t.rows_signal.load(std::memory_order_seq_cst);
  t.rows_waiting.store(1, std::memory_order_seq_cst);
  FAILPOINT(wait_rows);
  return signal;
}

void Sampler::wait(std::uint32_t signal, std::uint64_t timeout_ns, SampleStatus why) {
  Table& t = table_->shared();
  const std::uint64_t began = now_ns();
  futex_wait_briefly_awake(&t.rows_signal, signal, timeout_ns);
  const std::uint64_t ended = now_ns();
  t.counters.sample_wait_ns.fetch_add(ended - began, std::memory_order_relaxed);
  if (why == SampleStatus::too_few || why == SampleStatus::limited) t.counters.limited_sample_ns.fetch_add(ended - began, std::memory_order_relaxed);
  table_->span(Stage::wait, 0, began, ended);
}

}  // namespace conduit
