#include "loader.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "error.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kSliceNs = 50'000'000;  // a writer killed between publishing and waking wakes nobody
constexpr std::uint64_t kAdaptEvery = 4;        // hand-overs between two looks at the depth

std::chrono::nanoseconds nanoseconds(std::uint64_t n) { return std::chrono::nanoseconds(static_cast<std::int64_t>(n)); }

}  // namespace

Loader::Loader(std::shared_ptr<TableCore> table, Plan plan, LoaderSettings settings, std::shared_ptr<StagingPool> pool)
    : table_(std::move(table)), plan_(std::move(plan)), settings_(settings), pool_(std::move(pool)),
      forks_(table_->process().forks()), consumer_(table_, plan_), shared_(new Shared) {
  shared_->next_number = shared_->handed = settings_.first;
  shared_->depth = settings_.depth;
  shared_->producer = std::make_unique<Sampler>(table_, plan_);
}

Loader::~Loader() {
  if (forks_ != table_->process().forks()) return;  // a condition on which the parent's thread waits cannot be destroyed
  close();
  delete shared_;
}

void Loader::throw_closed() const {
  check();  // the store's end says more
  fail(ErrorCode::closed, "this loader of table '%s' is closed: call table.loader() for a new one", table_->shared().name);
}

void Loader::check() const {
  if (forks_ != table_->process().forks()) {
    fail(ErrorCode::forked, "this loader of table '%s' belongs to the parent process: call table.loader() again in the child", table_->shared().name);
  }
  table_->process().check();
}

bool Loader::closed() {
  if (forks_ != table_->process().forks()) return false;
  Lock lock(shared_->mutex);
  return shared_->stop;
}

void Loader::close() {
  if (forks_ != table_->process().forks()) return;
  std::lock_guard once(shared_->closing);
  {
    Lock lock(shared_->mutex);
    shared_->stop = true;
  }
  shared_->room.notify_all();
  shared_->filled.notify_all();
  // Waits for rows are shared with other processes: a needless wake for them. One that comes too early costs us a slice.
  futex_wake_all(&table_->shared().rows_signal);
  if (shared_->thread.joinable()) shared_->thread.join();
  std::deque<Prepared> unused;
  {
    Lock lock(shared_->mutex);
    std::swap(unused, shared_->ready);
  }
  for (; !unused.empty(); unused.pop_back()) undo(unused.back());
}

// The batch will not be handed over. Where the store was closed first, or its lock cannot be had, it counts as drawn.
void Loader::undo(const Prepared& batch) {
  try {
    consumer_.undo(settings_.n, batch.staging->data(), batch.drawn);
  } catch (const Error&) {
  }
}

SampleState Loader::state() {
  check();
  Lock lock(shared_->mutex);
  return shared_->state;
}

LoaderMetrics Loader::metrics() {
  if (forks_ != table_->process().forks()) check();  // throws
  Lock lock(shared_->mutex);
  LoaderMetrics metrics = shared_->metrics;
  metrics.depth = shared_->depth;
  metrics.ready = static_cast<std::uint32_t>(shared_->ready.size());
  return metrics;
}

std::uint64_t Loader::number() {
  check();
  Lock lock(shared_->mutex);
  return shared_->handed;
}

// One batch, or false after a wait for rows: the caller's next try begins anew.
bool Loader::draw(Sampler& sampler, std::uint64_t number, std::uint64_t slice_ns, Prepared* out) {
  Target target{pool_, std::move(out->staging)};
  SampleState state;
  {
    Lock lock(shared_->mutex);
    if (const auto known = shared_->indices.find(number); known != shared_->indices.end()) state.drawn.index = known->second;
  }
  const auto attempt = [&] {
    out->began_ns = now_ns();
    if (sampler.sample(settings_.n, &target, settings_.stream, number, &state, &out->held) != SampleStatus::ok) return false;
    out->prepare_ns = now_ns() - out->began_ns;
    out->staging = std::move(target.staging);
    out->number = number;
    out->mark = state.mark;
    out->drawn = state.drawn;
    Lock lock(shared_->mutex);
    shared_->indices[number] = state.drawn.index;
    return true;
  };
  if (attempt()) return true;
  const std::uint32_t signal = sampler.begin_wait();
  if (attempt()) return true;
  {
    Lock lock(shared_->mutex);
    shared_->state = state;
    if (shared_->stop) return false;
  }
  sampler.wait(signal, std::min(slice_ns, kSliceNs), state.status);
  return false;
}

bool Loader::room() const {
  const auto& ready = shared_->ready;
  std::uint64_t bytes = 0;
  for (const Prepared& batch : ready) bytes += batch.staging->bytes();
  return ready.size() < shared_->depth && (ready.empty() || bytes < settings_.most_bytes);
}

PrepareStatus Loader::prepare(std::uint64_t slice_ns, Prepared* out) {
  check();
  const Behind behind;
  std::uint64_t number;
  {
    Lock lock(shared_->mutex);
    shared_->room.wait_for(lock, nanoseconds(slice_ns), [&] { return shared_->stop || (shared_->started && room()); });
    if (shared_->stop) return PrepareStatus::stopped;
    if (!shared_->started || !room()) return PrepareStatus::idle;
    number = shared_->next_number;
    out->rewinds = shared_->rewinds;
    out->token = ++shared_->tokens;
  }
  return draw(*shared_->producer, number, slice_ns, out) ? PrepareStatus::ready : PrepareStatus::idle;
}

bool Loader::push(Prepared batch) {
  {
    const Behind behind;
    const std::uint64_t now = now_ns();
    batch.prepare_ns = now - batch.began_ns;
    table_->span(Stage::prepare, settings_.n, batch.began_ns, now);
  }
  {
    Lock lock(shared_->mutex);
    if (!shared_->stop && batch.rewinds != shared_->rewinds) return false;  // drawn again, under the same number
    if (!shared_->stop) {
      shared_->next_number = batch.number + 1;
      shared_->state = {};
      shared_->ready.push_back(std::move(batch));
      batch.staging = nullptr;
    }
  }
  if (batch.staging != nullptr) {
    undo(batch);
    return false;
  }
  shared_->filled.notify_all();
  return true;
}

void Loader::producer_failed(std::exception_ptr error) {
  {
    Lock lock(shared_->mutex);
    shared_->error = std::move(error);
  }
  shared_->filled.notify_all();
}

void Loader::run() {
  try {
    for (Prepared batch;;) {
      const PrepareStatus status = prepare(kSliceNs, &batch);
      if (status == PrepareStatus::stopped) return;
      if (status == PrepareStatus::idle) continue;
      push(std::move(batch));
      batch = {};
    }
  } catch (...) {
    producer_failed(std::current_exception());
  }
}

bool Loader::too_far(const DriftSince& since) const {
  if (!settings_.max_drift) return false;
  return *settings_.max_drift > 0.0 ? since.bound > *settings_.max_drift : since.changed;
}

// Draws the next batch in this thread.
bool Loader::next_now(Lock& lock, std::uint64_t slice_ns, Prepared* out) {
  if (shared_->error != nullptr) std::rethrow_exception(shared_->error);
  const std::uint64_t number = shared_->next_number;
  lock.unlock();
  out->token = 0;
  const bool drawn = draw(consumer_, number, slice_ns, out);
  lock.lock();
  if (drawn) {
    shared_->next_number = number + 1;
    shared_->state = {};
    shared_->filled_ns = now_ns();
  }
  return drawn;
}

bool Loader::next_prepared(Lock& lock, std::uint64_t slice_ns, Prepared* out, double* drift, std::vector<std::uint64_t>* discarded) {
  Shared& s = *shared_;
  s.filled.wait_for(lock, nanoseconds(slice_ns), [&] { return s.stop || s.error != nullptr || !s.ready.empty(); });
  if (s.stop) throw_closed();
  if (s.ready.empty()) {
    if (s.error != nullptr) std::rethrow_exception(s.error);
    return false;
  }
  DriftSince since[2] = {};
  s.filled_ns = now_ns();
  if (settings_.measured) {
    // Only consumers take batches away, one at a time: these stay where they are.
    const std::uint32_t n = s.ready.size() > 1 ? 2 : 1;
    const DrawMark marks[2] = {s.ready.front().mark, s.ready[n - 1].mark};
    lock.unlock();
    table_->drift(plan_.view, marks, n, since);
    lock.lock();
    if (s.stop) throw_closed();
  }
  if (!too_far(since[0])) {
    *drift = since[0].bound;
    *out = std::move(s.ready.front());
    s.ready.pop_front();
    return true;
  }
  const std::uint64_t number = s.ready.front().number;
  out->held = std::move(s.ready.front().held);  // drawn again, it counts once
  lock.unlock();
  out->token = 0;
  bool drawn = false;
  const auto take_back = [&] {
    lock.lock();
    if (!s.stop && !drawn) s.ready.front().held = std::move(out->held);  // it is still the first
  };
  try {
    drawn = draw(consumer_, number, slice_ns, out);
  } catch (...) {
    take_back();
    throw;
  }
  take_back();
  if (s.stop) throw_closed();
  if (!drawn) return false;
  s.filled_ns = now_ns();
  ++s.metrics.redrawn;
  discarded->push_back(s.ready.front().token);
  s.ready.pop_front();
  if (!s.ready.empty() && too_far(since[1])) {  // nor is any of use that was drawn before that one or soon after
    for (const Prepared& batch : s.ready) discarded->push_back(batch.token);
    s.metrics.redrawn += s.ready.size();
    s.ready.clear();
    s.next_number = number + 1;
    ++s.rewinds;
  }
  return true;
}

bool Loader::next(std::uint64_t began_ns, std::uint64_t slice_ns, Prepared* out, std::vector<std::uint64_t>* discarded) {
  check();
  Shared& s = *shared_;
  Lock lock(s.mutex);
  if (s.consuming) s.filled.wait_for(lock, nanoseconds(slice_ns), [&] { return s.stop || !s.consuming; });
  if (s.stop) throw_closed();
  if (s.consuming) return false;
  struct Turn {
    Shared& s;
    Lock& lock;
    ~Turn() {
      if (!lock.owns_lock()) lock.lock();
      s.consuming = false;
      s.filled.notify_all();
    }
  } turn{s, lock};
  s.consuming = true;
  double drift = 0.0;
  if (!settings_.own_thread && s.depth > 0 && !s.started) {  // that thread alone works on batches, but for those redrawn
    s.started = true;
    s.room.notify_one();
  }
  const bool ahead = s.started;
  if (!(ahead ? next_prepared(lock, slice_ns, out, &drift, discarded) : next_now(lock, slice_ns, out))) return false;
  if (s.stop) throw_closed();
  out->held.delivered();
  hand_over(*out, began_ns, drift);
  if (!s.started && s.depth > 0) {  // lazily: what was appended before the first call is drawn from
    s.thread = std::thread([this] { run(); });
    s.started = true;
  }
  s.room.notify_one();  // the thread prepares while the caller computes
  return true;
}

void Loader::hand_over(const Prepared& batch, std::uint64_t began_ns, double drift) {
  Shared& s = *shared_;
  const std::uint64_t now = now_ns(), waited = now - std::min(now, began_ns);
  table_->span(Stage::wait, settings_.n, began_ns, s.filled_ns);
  table_->span(Stage::handover, settings_.n, s.filled_ns, now);
  LoaderMetrics& m = s.metrics;
  s.handed = batch.number + 1;
  s.indices.erase(s.indices.begin(), s.indices.lower_bound(s.handed));
  ++m.batches;
  m.exposed_ns += waited;
  if (batch.token != 0) m.hidden_ns += batch.prepare_ns - std::min(batch.prepare_ns, waited);
  m.drift_last = drift;
  m.drift_max = std::max(m.drift_max, drift);
  m.drift_sum += drift;
  s.prepare_ns[s.hand_overs % kMemory] = batch.prepare_ns;
  if (s.last_hand_over_ns != 0) s.compute_ns[(s.hand_overs - 1) % kMemory] = began_ns - std::min(began_ns, s.last_hand_over_ns);
  s.last_hand_over_ns = now;
  if (++s.hand_overs % kAdaptEvery == 0 && settings_.most > 0) adapt();
}

// J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9(3), 1961: what is under way is the
// rate of demand times the time each takes; one more stands ready.
void Loader::adapt() {
  Shared& s = *shared_;
  auto prepare = s.prepare_ns, compute = s.compute_ns;
  const auto n = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(s.hand_overs, kMemory));
  const std::ptrdiff_t m = s.hand_overs > kMemory ? n : n - 1;
  std::nth_element(prepare.begin(), prepare.begin() + (n - 1) * 95 / 100, prepare.begin() + n);
  std::nth_element(compute.begin(), compute.begin() + m / 2, compute.begin() + m);
  const double p95 = static_cast<double>(prepare[static_cast<std::size_t>((n - 1) * 95 / 100)]);
  const double median = static_cast<double>(std::max<std::uint64_t>(1, compute[static_cast<std::size_t>(m / 2)]));
  s.depth = static_cast<std::uint32_t>(std::min<double>(settings_.most, std::ceil(p95 / median) + 1.0));
}

void Loader::gave_up(std::uint64_t began_ns) {
  Lock lock(shared_->mutex);
  const std::uint64_t now = now_ns();
  shared_->metrics.exposed_ns += now - std::min(now, began_ns);
  if (shared_->last_hand_over_ns != 0) shared_->last_hand_over_ns += now - std::min(now, began_ns);  // no computing
}

void Loader::handed_later() {
  Lock lock(shared_->mutex);
  const std::uint64_t now = now_ns();
  shared_->metrics.exposed_ns += now - shared_->last_hand_over_ns;
  shared_->last_hand_over_ns = now;
}

}  // namespace conduit
