#include "sampler.hpp"

#include <string.h>

#include <algorithm>
#include <limits>

#include "error.hpp"
#include "failpoints.hpp"
#include "philox.hpp"
#include "powers.hpp"
#include "schedule.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kGoals = 0x6a09e667f3bcc909;  // turns a view's seed into that of its goals

// Weights are normalised by the batch's largest, or by the table's where `least` is its smallest probability.
double smallest(const double* probabilities, std::uint32_t n, double least) {
  for (std::uint32_t i = 0; i < n; ++i) least = std::min(least, probabilities[i]);
  return least;
}

}  // namespace

Sampler::Sampler(std::shared_ptr<TableCore> table, Plan plan)
    : table_(std::move(table)), plan_(std::move(plan)), walk_(*table_), ragged_(plan_.ragged()), sequences_(plan_.has(Source::sequence) || plan_.has(Source::mask)),
      stacks_(plan_.has(Source::stack)), next_stacks_(plan_.has(Source::next_stack)), after_(plan_.has(Source::after)),
      goals_(plan_.hindsight != Hindsight::none), ends_(plan_.has(Source::terminated) || plan_.has(Source::truncated)) {
  for (const Output& output : plan_.outputs) {
    if (!of_columns(output.source) || output.row_bytes > kSmallRow || output.element_bytes > 0) continue;
    const Place place{table_->columns()[output.column].block_offset, output.row_bytes};
    if (output.source == Source::row || output.source == Source::n_step_sum) small_rows_.push_back(place);
    if (output.source == Source::successor) small_successors_.push_back(place);
  }
}

// Where a batch is drawn to: at once into the target, or where its size depends on the rows into a buffer of our own.
std::byte* Sampler::begin(std::uint64_t bytes, Target* target) {
  if (!ragged_) return target->room(bytes);
  drawn_.resize(bytes);
  return drawn_.data();
}

SampleStatus Sampler::sample(std::uint32_t n, Target* target, std::uint32_t stream, std::uint64_t batch, SampleState* state, Reservation* held) {
  TableCore& t = *table_;
  Table& shared = t.shared();
  ViewIndex& view = t.view(plan_.view);
  t.process().check();
  const std::uint64_t numbers = draw_numbers(view, n);
  const std::vector<std::uint64_t> offsets = plan_.offsets(n);
  const std::size_t extra = plan_.outputs.size();
  std::byte* out = begin(offsets.back(), target);
  auto* keys = reinterpret_cast<std::uint64_t*>(out + offsets[extra]);
  auto* probabilities = reinterpret_cast<double*>(out + offsets[extra + 1]);
  auto* weights = reinterpret_cast<float*>(out + offsets[extra + 2]);
  draws_.resize(std::max<std::uint64_t>(n, numbers));
  slots_.resize(n);
  const bool alike = !view.prioritized() && view.sampler() != kWithoutReplacement && !t.counts_uses();  // all probabilities
  for (;;) {
    uniform_draws(view.shared().seed, stream, batch, static_cast<std::uint32_t>(numbers), draws_.data());
    if (goals_) {
      goal_draws_.resize(std::size_t{n} * 2);
      uniform_draws(view.shared().seed ^ kGoals, stream, batch, 2 * n, goal_draws_.data());
    }
    const std::unique_ptr<ReaderEpoch> epoch = t.process().enter();  // before the draw: what is drawn stays in place
    const std::uint64_t began = now_ns();
    double beta = 0.0, least = std::numeric_limits<double>::infinity();
    state->status = draw(n, stream, batch, keys, probabilities, state, held, &beta, &least);
    if (state->status != SampleStatus::ok) return state->status;
    // What was drawn makes room: writers go on while this copies.
    if (shared.limits_inserts != 0) announce(shared.inserts_waiting, shared.inserts_signal);
    const std::uint64_t drawn = now_ns();
    shared.counters.draw_ns.fetch_add(drawn - began, std::memory_order_relaxed);
    bool whole;
    Unpacked unpacked(t, epoch.get());
    unpacked.ahead(slots_.data(), n);
    try {
      locate_rows(n);
      if (alike) std::fill_n(weights, n, 1.0f);  // as below, without the way there
      else importance_weights(probabilities, smallest(probabilities, n, least), beta, weights, n);
      FAILPOINT(gather_begin);
      whole = copy(*epoch, n, offsets.data(), target);
    } catch (const Error&) {  // rows on disk that it does not give
      undo(n, target->staging ? target->staging->data() : out, state->drawn);
      throw;
    }
    const bool valid = epoch->leave() && whole;
    const std::uint64_t gathered = now_ns();
    shared.counters.gather_ns.fetch_add(gathered - drawn, std::memory_order_relaxed);
    if (valid) {
      t.span(Stage::draw, n, began, drawn);
      t.span(Stage::gather, n, drawn, gathered);
      shared.counters.sampled_rows.fetch_add(n, std::memory_order_relaxed);
      shared.counters.sampled_batches.fetch_add(1, std::memory_order_relaxed);
      t.count_reading(n);
      return state->status = SampleStatus::ok;
    }
    // Expelled while stopped: the copy may be of a block's next life. The batch was never delivered.
    Drawn rows = state->drawn;
    rows.index = kNextBatch;  // the number stays this batch's
    undo(n, out, rows);
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
  ViewIndex& view = t.view(plan_.view);
  state->total = view.total();
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
  if (plan_.table_weights) *least = view.least_mass() / state->total;
  if (t.counts_uses() && view.sampler() == kByMass) {
    if (!(state->total > 0.0)) return failed(SampleStatus::no_mass);
    if (!t.draw_counted(view, stream, batch, n, slots_.data(), probabilities, &spent_)) return failed(SampleStatus::used_up);
    prefetch(slots_.data(), n);
  } else {
    const DrawStatus status = t.draw(view, {n, draws_.data(), [this](const std::uint32_t* slots, std::uint32_t found) { prefetch(slots, found); }}, slots_.data(), probabilities, &state->drawn);
    if (status != DrawStatus::ok) return failed(status == DrawStatus::no_mass ? SampleStatus::no_mass : SampleStatus::few_rows);
    if (t.counts_uses()) t.count_uses(n, slots_.data(), &spent_);
  }
  for (std::uint32_t i = 0; i < n; ++i) keys[i] = t.key_of(slots_[i]);
  if (t.counts_uses()) t.use_up(spent_);
  state->mark = view.mark();  // after the draw: what a batch does itself is no drift of it
  if (state->drawn.index == kNextBatch) state->drawn.index = view.shared().batches++;
  const Schedule& schedule = view.shared().beta_schedule;
  *beta = schedule.kind == kConstant ? view.settings().beta : value_at(schedule, state->drawn.index);
  if (take) {
    t.take_samples(n);
    *held = Reservation(table_, n, t.settings().era);
  }
  FAILPOINT(draw_done);
  return SampleStatus::ok;
}

void Sampler::undo(std::uint32_t n, const std::byte* out, const Drawn& drawn) {
  TableCore& t = *table_;
  ViewIndex& view = t.view(plan_.view);
  if (!view.marked() && view.shared().beta_schedule.kind == kConstant) return;  // the draw has changed nothing
  t.process().check();
  const auto* keys = reinterpret_cast<const std::uint64_t*>(out + plan_.offsets(n)[plan_.outputs.size()]);
  {
    IndexLock lock(t);
    t.fold();
    t.undo_draw(view, keys, n, drawn);
  }
  FAILPOINT(draw_undone);
  announce(t.shared().rows_waiting, t.shared().rows_signal);
}

bool Sampler::read(const std::uint64_t* keys, std::uint32_t n, Target* target, std::uint64_t* stale_at) {
  TableCore& t = *table_;
  t.process().check();
  slots_.resize(n);
  goal_draws_.clear();  // nothing is drawn, and no goal replaced
  const std::vector<std::uint64_t> offsets = plan_.offsets(n);
  begin(offsets.back(), target);
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
    Unpacked unpacked(t, epoch.get());
    unpacked.ahead(slots_.data(), n);
    prefetch(slots_.data(), n);
    locate_rows(n);
    const bool whole = copy(*epoch, n, offsets.data(), target);
    if (!epoch->leave() || !whole) continue;
    const std::size_t extra = plan_.outputs.size();
    std::byte* out = target->staging->data();
    memcpy(out + offsets[extra], keys, n * sizeof *keys);
    std::fill_n(reinterpret_cast<double*>(out + offsets[extra + 1]), n, std::numeric_limits<double>::quiet_NaN());
    std::fill_n(reinterpret_cast<float*>(out + offsets[extra + 2]), n, 1.0f);
    return true;
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
