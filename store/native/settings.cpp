// What may change while a table lives, all of a change or nothing of it.
#include <algorithm>
#include <cmath>

#include "failpoints.hpp"
#include "table.hpp"

namespace conduit {

// Puts `wanted` in force. The other record is nobody's until the one store that names it.
void TableCore::put_settings(const Settings& wanted) {
  const std::uint32_t other = 1 - t_.settings_now;
  t_.settings[other] = wanted;
  t_.settings[other].version = settings().version + 1;
  FAILPOINT(settings_written);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // see journal()
  t_.settings_now = other;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  FAILPOINT(settings_switched);
}

Settings TableCore::settings_now() {
  process_->check();
  IndexLock lock(*this);
  return settings();
}

bool TableCore::reconfigure(const Settings& wanted) {
  process_->check();
  {
    IndexLock lock(*this);
    if (wanted.version != settings().version) return false;
    fold();
    Settings next = settings();
    const bool weights = wanted.alpha != next.alpha || wanted.eps != next.eps;
    next.alpha = wanted.alpha;
    next.eps = wanted.eps;
    next.beta = wanted.beta;
    next.min_size = wanted.min_size;
    // The cursor stays where it is: a new ratio is for the inserts to come.
    const double inserts = static_cast<double>(t_.counters.steps_folded.load(std::memory_order_relaxed) - next.inserts_before);
    if (wanted.ratio != next.ratio) next.shift += inserts * (next.ratio - wanted.ratio);
    next.ratio = wanted.ratio;
    next.error_buffer = wanted.error_buffer;
    next.capacity = wanted.capacity;
    next.max_times = wanted.max_times;
    ++t_.drift.changes;  // weights depend on beta, and whether a draw is allowed on the limiter
    if (weights) {
      t_.rebuild = 1;
      std::atomic_signal_fence(std::memory_order_seq_cst);
      FAILPOINT(configure_marked);
    }
    put_settings(next);
    if (weights) {
      recompute_leaves();
      std::atomic_signal_fence(std::memory_order_seq_cst);
      FAILPOINT(configure_done);
      t_.rebuild = 0;
    }
    drop_used_up();
  }
  announce(t_.rows_waiting, t_.rows_signal);
  announce(t_.inserts_waiting, t_.inserts_signal);
  return true;
}

// A table without rows counts its inserts and samples from 0 again, what is reserved included.
void TableCore::restart_counts() {
  Settings next = settings();
  next.inserts_before = t_.counters.steps_folded.load(std::memory_order_relaxed);
  next.shift = 0.0;
  ++next.era;
  put_settings(next);
}

}  // namespace conduit
