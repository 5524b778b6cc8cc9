#include "limiter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "failpoints.hpp"
#include "table.hpp"

namespace conduit {
namespace {

// Ratios such as 0.1 have no exact double: what a sum of products may be off by does not count.
double rounding(const LimiterState& s) {
  const double largest = static_cast<double>(s.inserts) * s.settings.ratio + std::abs(s.settings.shift) + static_cast<double>(s.samples) + 1.0;
  return 8.0 * std::numeric_limits<double>::epsilon() * largest;
}

std::uint64_t era_bits(std::uint64_t era) { return era << kTallyBits; }

std::uint64_t count_of(std::uint64_t word, std::uint64_t era) { return word >> kTallyBits == (era_bits(era) >> kTallyBits) ? word & kTallyMask : 0; }

// Adds to a word of the era's; leaves one of another era alone.
void add(std::atomic<std::uint64_t>& word, std::uint64_t era, std::uint64_t rows) {
  std::uint64_t before = word.load(std::memory_order_relaxed);
  // seq_cst: ordered before the load of the waiting flag in announce()
  while (before >> kTallyBits == (era_bits(era) >> kTallyBits) && !word.compare_exchange_weak(before, before + rows, std::memory_order_seq_cst)) {
  }
}

bool is_step(const std::uint8_t* flags, std::uint32_t row) { return flags == nullptr || (flags[row] & kFinal) == 0; }

}  // namespace

std::uint32_t steps_of(const std::uint8_t* flags, std::uint32_t n) {
  std::uint32_t steps = 0;
  for (std::uint32_t row = 0; row < n; ++row) steps += is_step(flags, row);
  return steps;
}

std::uint32_t rows_within(const std::uint8_t* flags, std::uint32_t n, std::uint64_t room) {
  std::uint32_t in = 0;
  for (; in < n && (room > 0 || !is_step(flags, in)); ++in) room -= is_step(flags, in);
  return in;
}

bool LimiterState::admits(std::uint64_t asked) const {
  return live_steps >= settings.min_size && cursor - static_cast<double>(asked) >= settings.low() - rounding(*this);
}

std::uint64_t LimiterState::room(std::uint32_t kind, std::uint64_t asked, bool whole, bool drawable) const {
  std::uint64_t free = 0;
  if (kind == kQueueCapacity) {
    if (live_steps < settings.capacity) free = settings.capacity - live_steps;
  } else {
    const double band = (settings.high() + rounding(*this) - cursor) / settings.ratio;
    if (band >= 1.0) free = band < 0x1p62 ? static_cast<std::uint64_t>(band) : std::uint64_t{1} << 62;
    if (live_steps < settings.min_size) free = std::max(free, settings.min_size - live_steps);
  }
  const std::uint64_t least = whole ? asked : 1;
  return free < least && !drawable ? least : free;
}

Reservation::Reservation(std::shared_ptr<TableCore> table, std::uint64_t rows, std::uint64_t era)
    : table_(std::move(table)), rows_(rows), era_(era), slot_(table_->process().slot()), forks_(table_->process().forks()) {}

Reservation::~Reservation() {
  if (table_ == nullptr || forks_ != table_->process().forks()) return;
  add(table_->tally(slot_).returned, era_, rows_);
  FAILPOINT(limiter_returned);
  Table& t = table_->shared();
  announce(t.rows_waiting, t.rows_signal);
}

void Reservation::delivered() {
  if (table_ == nullptr) return;
  if (forks_ == table_->process().forks()) add(table_->tally(slot_).delivered, era_, rows_);
  table_.reset();
  FAILPOINT(limiter_delivered);
}

LimiterState TableCore::limiter_state() const {
  LimiterState state;
  state.settings = settings();
  state.live_steps = t_.live_steps;
  state.inserts = t_.counters.steps_folded.load(std::memory_order_relaxed) - state.settings.inserts_before;
  if (t_.limiter != kSampleToInsert) return state;
  const std::uint32_t processes = process_->segments().header().processes_used.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < processes; ++i) {
    const Tally& tally = tallies_[i];
    const std::uint64_t taken = count_of(tally.taken.load(std::memory_order_relaxed), state.settings.era);
    if (taken == 0) continue;
    // seq_cst: whoever returned rows before it looked for waiters is seen by a waiter that then looks again
    const std::uint64_t returned = count_of(tally.returned.load(std::memory_order_seq_cst), state.settings.era);
    state.samples += taken - returned;
    state.reserved += taken - returned - std::min(taken - returned, count_of(tally.delivered.load(std::memory_order_relaxed), state.settings.era));
  }
  state.cursor = static_cast<double>(state.inserts) * state.settings.ratio - static_cast<double>(state.samples) + state.settings.shift;
  return state;
}

// Counts the draw of `rows` rows for this process.
void TableCore::take_samples(std::uint64_t rows) {
  const std::uint64_t era = settings().era;
  Tally& tally = tallies_[process_->slot()];
  if (tally.claim.load(std::memory_order_relaxed) != process_->claim()) {
    return_reserved(tally);  // a dead predecessor's, in the same process slot
    tally.claim.store(process_->claim(), std::memory_order_relaxed);
  }
  const std::uint64_t word = tally.taken.load(std::memory_order_relaxed);
  if (word >> kTallyBits != (era_bits(era) >> kTallyBits)) {
    tally.delivered.store(era_bits(era), std::memory_order_relaxed);
    tally.returned.store(era_bits(era), std::memory_order_relaxed);
  }
  // Last: until then all three count 0 in this era.
  tally.taken.store(era_bits(era) | (count_of(word, era) + rows), std::memory_order_release);
  FAILPOINT(limiter_taken);
}

// What a dead process had reserved.
bool TableCore::return_reserved(Tally& tally) {
  const std::uint64_t era = settings().era;
  const auto count = [&](const std::atomic<std::uint64_t>& word) { return count_of(word.load(std::memory_order_acquire), era); };
  const std::uint64_t taken = count(tally.taken), settled = count(tally.delivered) + count(tally.returned);
  if (taken <= settled) return false;
  add(tally.returned, era, taken - settled);
  return true;
}

// Returns what the dead had reserved; whether that was anything.
bool TableCore::return_reserved_by_dead() {
  bool any = false;
  const std::uint64_t era = settings().era;
  const std::uint32_t processes = process_->segments().header().processes_used.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < processes; ++i) {
    Tally& tally = tallies_[i];
    const auto count = [&](const std::atomic<std::uint64_t>& word) { return count_of(word.load(std::memory_order_acquire), era); };
    if (count(tally.taken) <= count(tally.delivered) + count(tally.returned)) continue;  // no system call for those who hold nothing
    if (!process_->alive(i, tally.claim.load(std::memory_order_relaxed))) any |= return_reserved(tally);
  }
  return any;
}

// Whether a sample of `rows` rows can be waited for at all, whatever comes.
bool TableCore::sample_possible(std::uint64_t rows) const {
  const Settings& s = settings();
  // Writers stop as soon as one more insert would pass `high`: what is sure to be there for a sample then.
  if (t_.limiter == kSampleToInsert && t_.limits_inserts != 0 && static_cast<double>(rows) + s.ratio > 2.0 * s.error_buffer * (1.0 + 0x1p-40)) return false;
  // Each row may have one delivery left.
  return uses_ == nullptr || rows <= (t_.limiter == kQueueCapacity ? std::max(t_.live_steps, std::min(s.capacity, t_.max_size)) : t_.max_size);
}

bool TableCore::insert_possible(std::uint64_t steps) const {
  const Settings& s = settings();
  if (t_.limiter == kQueueCapacity) return steps <= s.capacity;
  // Samplers stop as soon as one more row would pass `low`.
  return static_cast<double>(steps) * s.ratio + 1.0 <= 2.0 * s.error_buffer * (1.0 + 0x1p-40);
}

bool TableCore::can_sample(std::uint32_t v, std::uint64_t rows) {
  process_->check();
  IndexLock lock(*this);
  fold();
  const ViewIndex& view = views_[v];
  const bool by_mass = view.sampler() == kByMass;
  if (!sample_possible(rows) || !(by_mass ? view.total() > 0.0 : count_ready(view) >= rows)) return false;
  LimiterState state = limiter_state();
  if (t_.limiter == kSampleToInsert && !state.admits(rows) && return_reserved_by_dead()) state = limiter_state();
  if (state.live_steps < state.settings.min_size || (t_.limiter == kSampleToInsert && !state.admits(rows))) return false;
  return uses_ == nullptr || !by_mass || deliveries_left(view, rows);  // each row once: it has that left
}

bool TableCore::can_insert(std::uint64_t steps) {
  process_->check();
  if (steps > t_.max_size) return false;
  if (t_.limits_inserts == 0) return true;
  IndexLock lock(*this);
  fold();
  return limiter_state().room(t_.limiter, steps, false, drawable()) >= steps;
}

std::uint64_t TableCore::insert_room(std::uint64_t steps, LimiterState* state) {
  IndexLock lock(*this);
  fold();
  *state = limiter_state();
  return state->room(t_.limiter, steps, false, drawable());
}

// `publications`: the row counts that the blocks are to have; their last `rows` rows are new and of them `steps` are steps. Of
// rows that go into one block as many are published as the limiter lets in, unless `whole`.
Insert TableCore::publish_limited(const Publication* publications, std::uint32_t n, std::uint32_t rows, const std::uint8_t* flags, bool whole, LimiterState* state) {
  const std::uint64_t steps = steps_of(flags, rows);
  IndexLock lock(*this);
  FAILPOINT(insert_locked);
  fold();
  // Whoever seals holds the lock: blocks that are open now stay so.
  for (std::uint32_t i = 0; i < n; ++i) {
    if ((blocks_[publications[i].block].pub.load(std::memory_order_relaxed) & kSealed) != 0) return {InsertStatus::sealed, 0};
  }
  std::uint32_t in = rows;
  if (steps > 0) {
    *state = limiter_state();
    const std::uint64_t room = state->room(t_.limiter, steps, whole, drawable());
    if (room < steps && whole && !insert_possible(steps)) return {InsertStatus::never, 0};
    if (room < (whole ? steps : 1)) return {InsertStatus::blocked, 0};
    if (room < steps) in = rows_within(flags, rows, room);
  }
  if (n == 1) {
    // seq_cst: release for the rows, and ordered before the load of the waiting flag in announce()
    blocks_[publications->block].pub.fetch_add(in | (slots() ? kSealed | kReleased : 0), std::memory_order_seq_cst);
    FAILPOINT(insert_published);
  } else {
    note_publications(publications, n);
  }
  return {InsertStatus::published, in};
}

}  // namespace conduit
