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
    bool weights = false;
    for (std::uint32_t v = 0; v < n_views(); ++v) {
      const ViewSettings &now = next.views[v], &then = wanted.views[v];
      if (now.alpha == then.alpha && now.eps == then.eps) continue;
      views_[v].shared().rebuild = 1;
      weights = true;
    }
    std::copy_n(wanted.views, kMaxViews, next.views);
    next.min_size = wanted.min_size;
    // The cursor stays where it is: a new ratio is for the inserts to come.
    const double inserts = static_cast<double>(t_.counters.steps_folded.load(std::memory_order_relaxed) - next.inserts_before);
    if (wanted.ratio != next.ratio) next.shift += inserts * (next.ratio - wanted.ratio);
    next.ratio = wanted.ratio;
    next.error_buffer = wanted.error_buffer;
    next.capacity = wanted.capacity;
    next.max_times = wanted.max_times;
    touch_all();  // weights depend on beta, and whether a draw is allowed on the limiter
    std::atomic_signal_fence(std::memory_order_seq_cst);  // see journal()
    if (weights) FAILPOINT(configure_marked);
    put_settings(next);
    for (ViewIndex& view : views_) {
      if (view.shared().rebuild == 0) continue;
      view.recompute_leaves();
      std::atomic_signal_fence(std::memory_order_seq_cst);
      FAILPOINT(configure_done);
      view.shared().rebuild = 0;
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
