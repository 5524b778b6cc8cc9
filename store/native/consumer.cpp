#include "consumer.hpp"

#include <string.h>

#include <algorithm>
#include <utility>

#include "error.hpp"
#include "failpoints.hpp"
#include "scalars.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kProgressBytes = 1 << 20;     // copied between two signs of life of a reader
constexpr std::uint64_t kSpinNs = 20'000;             // a producer at full speed fills a batch within microseconds
constexpr std::uint64_t kLookWaitingNs = 10'000'000;  // between two looks at the holders of leases, for who waits for rows
constexpr std::uint64_t kLookBusyNs = 100'000'000;    // for who gets rows all the time

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

// ---- a delivery

Delivery::Delivery(std::shared_ptr<TableCore> table, LeaseName name, std::uint32_t group, std::vector<std::uint32_t> slots, std::uint32_t group_size)
    : table_(std::move(table)), queue_(*table_->queue()), name_(name), group_(group), group_size_(group_size), forks_(table_->process().forks()),
      rows_(static_cast<std::uint32_t>(slots.size())), slots_(std::move(slots)) {}

Delivery::~Delivery() {
  try {
    if (!slots_.empty() && forks_ == table_->process().forks() && !table_->process().closed()) release();
  } catch (const Error&) {
    // a stopped process holds the lock: the lease ends with its time
  }
}

void Delivery::check() const {
  table_->process().check();
  if (forks_ != table_->process().forks()) {
    fail(ErrorCode::forked, "this batch of queue '%.63s' was delivered to the parent process: only the parent acknowledges it", table_->shared().name);
  }
}

bool Delivery::held() const {
  return queue_.holds(name_) && std::all_of(slots_.begin(), slots_.end(), [&](std::uint32_t slot) { return queue_.leased_by(name_, slot); });
}

void Delivery::expired() const {
  fail(ErrorCode::lease_expired, "the lease of this batch of queue '%.63s' has ended: its %.3f s were over, it was released, or the queue was cleared. Its %zu rows "
       "are delivered again, and nothing was changed. Acknowledge sooner, or raise lease_timeout", table_->shared().name,
       static_cast<double>(queue_.state().lease_timeout_ns) * 1e-9, slots_.size());
}

bool Delivery::holds_lease() const {
  return std::atomic_ref(queue_.state().leases[name_.lease].fence).load(std::memory_order_acquire) == name_.fence;
}

void Delivery::find_cells(const std::vector<Placed>& runs, std::vector<Cell>* cells) const {
  const TableCore& t = *table_;
  for (std::uint32_t v = 0; v < t.ragged().n(); ++v) {
    for (const Placed& run : runs) {
      const std::byte* base = t.block_data(run.block);
      for (std::uint32_t i = 0; i < run.n; ++i) cells->push_back(t.ragged().cell(base, run.block, run.row + i, t.ragged().column(v)));
    }
  }
}

// Waits for what of the rows lies on disk, but for elements of rows that vary in length.
bool Delivery::bring(ReaderEpoch& epoch, const std::vector<Placed>& runs) const {
  const TableCore& t = *table_;
  std::vector<Piece> pieces;
  std::uint64_t rows = 0;
  for (const Placed& run : runs) {
    if (!t.on_disk(run.block)) continue;
    const std::byte* base = t.block_data(run.block);
    rows += run.n;
    for (std::uint32_t c = 0; c < t.shared().n_columns; ++c) {
      const Column& column = t.columns()[c];
      t.disk()->note(base + column.block_offset + run.row * column.row_bytes, (run.n + (column.element_bytes > 0 ? 1 : 0)) * column.row_bytes, &pieces);
    }
  }
  t.shared().tier.rows_from_disk.fetch_add(rows, std::memory_order_relaxed);
  bool cold = true;  // a backlog is read from front to back: ask for all of it
  return t.bring(epoch, pieces, &cold);
}

bool Delivery::copy_columns(ReaderEpoch& epoch, const std::vector<Placed>& runs, const std::vector<Cell>& cells, const std::vector<std::uint64_t>& offsets, std::byte* out) const {
  const TableCore& t = *table_;
  std::byte* values = out + offsets.back();
  const Cell* of_column = cells.data();
  std::uint64_t since = 0;
  for (std::uint32_t c = 0; c < t.shared().n_columns; ++c) {
    const Column& column = t.columns()[c];
    std::byte* to = out + offsets[c];
    if (column.element_bytes > 0) {
      const std::uint64_t elements = offsets_of(of_column, slots_.size(), reinterpret_cast<std::int64_t*>(to));
      if (!copy_cells(epoch, of_column, slots_.size(), column.element_bytes, values, &since)) return false;
      values += aligned(elements * column.element_bytes);
      of_column += slots_.size();
      continue;
    }
    for (const Placed& run : runs) {
      const std::byte* from = t.block_data(run.block) + column.block_offset + run.row * column.row_bytes;
      if (column.changes != 0) {
        copy_scalars(from, run.n, column.row_bytes, to);
        to += run.n * column.row_bytes;
        continue;
      }
      for (std::uint64_t left = run.n * column.row_bytes; left > 0;) {
        const std::uint64_t part = std::min(left, kProgressBytes);
        memcpy(to, from, part);
        to += part;
        from += part;
        left -= part;
        since += part;
        if (since < kProgressBytes) continue;
        since = 0;
        if (!epoch.progress()) return false;
      }
    }
    if (column.changes != 0) std::atomic_thread_fence(std::memory_order_acquire);  // as in Sampler::gather
  }
  return true;
}

bool Delivery::copy(const std::vector<std::uint64_t>& offsets, Target* target) const {
  const TableCore& t = *table_;
  const std::uint32_t per_block = t.shared().rows_per_block;
  std::vector<Placed> runs;
  for (const std::uint32_t slot : slots_) {
    if (!runs.empty() && runs.back().block * per_block + runs.back().row + runs.back().n == slot && slot % per_block != 0) {
      ++runs.back().n;
    } else {
      const std::uint32_t b = t.block_of(slot);
      runs.push_back({b, slot - b * per_block, 1});
    }
  }
  t.tell_losses();
  // Batches of max_tokens differ in their rows. Before the epoch where that can be: memory that has to be pinned takes its time.
  if (t.shared().n_ragged == 0) target->room(staging_class(offsets.back()));
  const std::unique_ptr<ReaderEpoch> epoch = table_->process().enter();
  // Either we see here that the lease has ended, or whoever ends it and lets its rows go sees our epoch: the rows' blocks
  // are retired later than we entered.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!holds_lease()) return false;
  if (t.tiered() && !bring(*epoch, runs)) return false;
  std::vector<Cell> cells;  // of each column whose rows vary in length
  t.reach_disk([&] { find_cells(runs, &cells); });
  std::uint64_t size = offsets.back();
  std::vector<Piece> pieces;
  for (std::size_t k = 0; k < cells.size(); k += slots_.size()) {
    const std::uint64_t bytes = t.ragged().column(static_cast<std::uint32_t>(k / slots_.size())).element_bytes;
    std::uint64_t elements = 0;
    for (std::size_t i = k; i < k + slots_.size(); ++i) {
      elements += cells[i].elements;
      if (t.tiered()) t.disk()->note(cells[i].at, cells[i].elements * bytes, &pieces);
    }
    size += aligned(elements * bytes);
  }
  // Places and lengths are true if the reader is held still.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!epoch->held()) return false;
  bool cold = true;
  if (t.tiered() && !t.bring(*epoch, pieces, &cold)) return false;
  std::byte* out = target->room(staging_class(size));
  bool whole = false;
  t.reach_disk([&] { whole = copy_columns(*epoch, runs, cells, offsets, out); });
  if (!whole) return false;
  auto* keys = reinterpret_cast<std::uint64_t*>(out + offsets[t.shared().n_columns]);
  for (std::size_t i = 0; i < slots_.size(); ++i) keys[i] = t.key_of(slots_[i]);
  FAILPOINT(lease_copied);
  return epoch->leave();
}

std::uint32_t Delivery::acknowledge(const std::uint64_t* keys, std::uint64_t n) {
  check();
  std::vector<std::uint32_t> chosen;
  bool room = false, last = false;
  {
    IndexLock lock(*table_);
    FAILPOINT(ack_locked);
    if (!held()) expired();
    if (keys == nullptr) {
      chosen = slots_;
    } else {
      for (std::uint64_t i = 0; i < n; ++i) {
        std::uint32_t slot;
        if (!queue_.find(keys[i], &slot) || !queue_.leased_by(name_, slot)) {
          fail(ErrorCode::stale, "key %llu at position %llu of %llu names no row of this batch that is not acknowledged yet. None was acknowledged",
               static_cast<unsigned long long>(keys[i]), static_cast<unsigned long long>(i), static_cast<unsigned long long>(n));
        }
        chosen.push_back(slot);
      }
      std::sort(chosen.begin(), chosen.end());
      chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    }
    const std::uint64_t live = table_->shared().live_steps;
    queue_.acknowledge(group_, chosen, &QueueCounters::acknowledged);
    room = table_->shared().live_steps != live;
    last = queue_.state().ended.load(std::memory_order_relaxed) != 0;
  }
  if (chosen.size() == slots_.size()) {
    slots_.clear();
  } else {
    slots_.erase(std::remove_if(slots_.begin(), slots_.end(), [&](std::uint32_t slot) { return std::binary_search(chosen.begin(), chosen.end(), slot); }), slots_.end());
  }
  FAILPOINT(ack_left);
  Table& t = table_->shared();
  if (room) announce(t.space_waiting, t.space_signal);
  if (last) queue_.announce_rows();  // who waits for the last rows of an ended queue sees that they are done
  return static_cast<std::uint32_t>(chosen.size());
}

bool Delivery::release() {
  check();
  bool ended = false;
  {
    IndexLock lock(*table_);
    if (queue_.holds(name_) && !slots_.empty()) {
      ++queue_.state().released_leases;
      queue_.end_lease(name_.lease);
      ended = true;
    }
  }
  slots_.clear();
  if (ended) announce(table_->shared().rows_waiting, table_->shared().rows_signal);
  return ended;
}

bool Delivery::renew() {
  check();
  bool useful = false;
  {
    IndexLock lock(*table_);
    if (!held()) {
      slots_.clear();
      return false;
    }
    const QueueState& q = queue_.state();
    std::vector<std::uint32_t> stale;
    for (std::size_t at = 0; q.max_staleness >= 0 && at < slots_.size(); at += group_size_) {
      const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(at);
      const auto end = first + static_cast<std::ptrdiff_t>(std::min<std::size_t>(group_size_, slots_.size() - at));
      if (std::any_of(first, end, [&](std::uint32_t s) { return queue_.too_stale(s); })) stale.insert(stale.end(), first, end);
    }
    if (stale.empty()) {
      queue_.state().leases[name_.lease].deadline_ns = now_ns() + q.lease_timeout_ns;
      useful = true;
    } else {
      queue_.acknowledge(group_, stale, &QueueCounters::stale_rows);
      if (stale.size() < slots_.size()) queue_.end_lease(name_.lease);
      slots_.clear();
    }
  }
  if (!useful) {
    announce(table_->shared().space_waiting, table_->shared().space_signal);
    queue_.announce_rows();
  }
  return useful;
}

// ---- a consumer

Consumer::Consumer(std::shared_ptr<TableCore> table, std::uint32_t group) : table_(std::move(table)), queue_(*table_->queue()), group_(group) {}

std::vector<std::uint64_t> Consumer::offsets(std::uint64_t n) const {
  std::vector<std::uint64_t> result;
  std::uint64_t at = 0;
  const auto add = [&](std::uint64_t bytes) {
    result.push_back(at);
    at = aligned(at + bytes);
  };
  for (std::uint32_t c = 0; c < table_->shared().n_columns; ++c) {
    const Column& column = table_->columns()[c];
    add(column.element_bytes > 0 ? (n + 1) * sizeof(std::int64_t) : column.row_bytes * n);
  }
  add(sizeof(std::uint64_t) * n);
  result.push_back(at);
  return result;
}

// Under the lock: rows of consumers that are gone, or too slow, wait again.
void Consumer::look_after_leases() {
  const QueueState& q = queue_.state();
  if (q.leases_active == 0) return;
  const std::uint64_t now = now_ns(), every = q.waiting[group_] == 0 ? kLookWaitingNs : kLookBusyNs;
  const bool processes = now - std::min(now, looked_ns_.load(std::memory_order_relaxed)) >= every;
  if (!processes && now < q.next_deadline_ns) return;
  if (processes) looked_ns_.store(now, std::memory_order_relaxed);
  queue_.end_lost(now, processes);
}

TakeStatus Consumer::take(const Demand& demand, GroupIndex* groups, bool partial, std::shared_ptr<Delivery>* out, TakeState* state) {
  table_->process().check();
  const std::uint64_t began = now_ns();
  Table& t = table_->shared();
  Found found;
  LeaseName name;
  TakeStatus status = TakeStatus::ok;
  std::uint64_t live;
  std::uint64_t returned;
  {
    IndexLock lock(*table_);
    FAILPOINT(lease_locked);
    live = t.live_steps;
    returned = queue_.state().returns[group_];
    look_after_leases();
    QueueState& q = queue_.state();
    if (groups == nullptr) queue_.purge(group_);
    else q.grouped[group_] = 1;
    const bool ended = q.ended.load(std::memory_order_relaxed) != 0;
    const bool fewer = partial || ended;
    if (groups != nullptr) found = groups->collect(demand);
    else if (fewer || demand.max_tokens > 0 || q.waiting[group_] >= demand.rows) found = queue_.collect(group_, demand);
    if (found.too_large != kNoKey) {
      status = TakeStatus::too_large;
    } else if (found.slots.empty() && ended && q.leased[group_] == 0) {
      status = TakeStatus::ended;
    } else if (found.slots.empty() || !(found.full || fewer)) {
      status = TakeStatus::too_few;
    } else {
      name = queue_.lease(group_, found.slots, began);
    }
    *state = {q.waiting[group_], q.leased[group_], groups != nullptr ? groups->complete() : 0, found.too_large, found.too_large_tokens};
    if (q.leases_active > 0) state->look_ns = std::min(began + kLookWaitingNs, q.next_deadline_ns);
    live -= t.live_steps;
    returned = q.returns[group_] != returned;
  }
  if (returned) announce(t.rows_waiting, t.rows_signal);
  if (live > 0) announce(t.space_waiting, t.space_signal);  // rows were dropped as too stale
  if (status != TakeStatus::ok) return status;
  table_->count_reading(found.slots.size());
  *out = std::make_shared<Delivery>(table_, name, group_, std::move(found.slots), groups != nullptr ? groups->size() : 1);
  t.counters.draw_ns.fetch_add(now_ns() - began, std::memory_order_relaxed);
  return status;
}

void Consumer::wait(std::uint64_t seen, const TakeState& state, std::uint64_t timeout_ns) {
  Table& t = table_->shared();
  QueueState& q = queue_.state();
  const std::uint64_t began = now_ns();
  if (!spin_until_moved(q.rows_progress, seen, std::min(kSpinNs, timeout_ns))) {
    const std::uint32_t signal = t.rows_signal.load(std::memory_order_seq_cst);
    t.rows_waiting.store(1, std::memory_order_seq_cst);
    FAILPOINT(wait_rows);
    if (q.rows_progress.load(std::memory_order_seq_cst) == seen) {
      const std::uint64_t now = now_ns();
      timeout_ns = std::min(timeout_ns, state.look_ns > now ? state.look_ns - now : 0);
      if (timeout_ns > 0) futex_wait(&t.rows_signal, signal, timeout_ns);
    }
  }
  t.counters.sample_wait_ns.fetch_add(now_ns() - began, std::memory_order_relaxed);
}

std::uint64_t Consumer::drop(const std::uint64_t* keys, std::uint64_t n) {
  table_->process().check();
  std::vector<std::uint32_t> slots;
  {
    IndexLock lock(*table_);
    for (std::uint64_t i = 0; i < n; ++i) {
      std::uint32_t slot;
      if (queue_.find(keys[i], &slot) && queue_.waits(group_, slot)) slots.push_back(slot);
    }
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    if (!slots.empty()) queue_.acknowledge(group_, slots, &QueueCounters::dropped_rows);
  }
  queue_.announce_room();
  if (queue_.state().ended.load() != 0) queue_.announce_rows();
  return slots.size();
}

std::vector<GroupIndex::Incomplete> Consumer::incomplete(GroupIndex& groups) {
  table_->process().check();
  IndexLock lock(*table_);
  return groups.incomplete();
}

std::uint64_t Consumer::drop_incomplete(GroupIndex& groups, std::uint64_t older_than_ns) {
  table_->process().check();
  std::vector<std::uint32_t> slots;
  {
    IndexLock lock(*table_);
    const std::uint64_t now = now_ns();
    slots = groups.older_than(now - std::min(now, older_than_ns));
    if (!slots.empty()) queue_.acknowledge(group_, slots, &QueueCounters::dropped_rows);
  }
  queue_.announce_room();
  return slots.size();
}

}  // namespace conduit
