// Rows that leave once they have been delivered often enough: `max_times` of the settings, `uses` a row.
//
// A draw counts under the index lock, where it is made, and no row is drawn more often than it may be, within a batch either.
// What a reader then loses, by its death or because the batch is thrown away, stays counted: at most `max_times` deliveries.
// A row that has left keeps its bytes and its links until its block is retired, for the windows of others that reach over it.
// Crash: counts of a draw that was not made; rows whose count is full but that have not left do so when the lock is recovered.
#include <algorithm>
#include <cmath>

#include "failpoints.hpp"
#include "philox.hpp"
#include "table.hpp"

namespace conduit {

bool TableCore::deliveries_left(const ViewIndex& view, std::uint64_t rows) const {
  const std::uint32_t most = settings().max_times;
  std::uint64_t left = 0;
  for (std::uint32_t slot = 0; slot < t_.n_blocks * t_.rows_per_block && left < rows; ++slot) {
    if (view.leaves()[slot] > 0.0) left += most - std::min(most, uses(slot));
  }
  return left >= rows;
}

// Draws by rejection: what a trial finds counts unless this very batch has used it up. So each draw has the probability
// leaf / (mass of the rows that may still be drawn), which is what is reported. When little of the mass is left, the rows
// themselves are listed. `spent`: rows that are full now, which the caller has to use_up. False: there are not enough
// deliveries, and nothing is counted.
bool TableCore::draw_counted(const ViewIndex& view, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, std::uint32_t* slots,
                             double* probabilities, std::vector<std::uint32_t>* spent) {
  const std::uint32_t most = settings().max_times;
  static thread_local std::vector<std::uint32_t> hits, rest;
  static thread_local std::vector<double> trials, edges;
  spent->clear();
  std::uint32_t done = 0, position = 0;
  const double* leaves = view.leaves();
  double all = view.total(), left = all;  // mass of what the trials may find, and of what then counts
  bool listed = false;
  const auto count = [&](std::uint32_t slot) {
    if (uses(slot) >= most) return;
    slots[done] = slot;
    probabilities[done++] = std::min(1.0, leaves[slot] / left);
    std::atomic_ref(uses_[slot]).store(uses(slot) + 1, std::memory_order_relaxed);
    FAILPOINT(use_counted);
    if (uses(slot) < most) return;
    spent->push_back(slot);
    left -= leaves[slot];
  };
  while (done < n) {
    if (left <= all * 0.125) {  // sums afresh: what was subtracted from is of the size of its rounding
      if (!listed) {
        rest.clear();
        for (std::uint32_t slot = 0; slot < t_.n_blocks * t_.rows_per_block; ++slot) {
          if (leaves[slot] > 0.0) rest.push_back(slot);
        }
        listed = true;
      }
      rest.erase(std::remove_if(rest.begin(), rest.end(), [&](std::uint32_t slot) { return uses(slot) >= most; }), rest.end());
      edges.clear();
      all = 0.0;
      for (const std::uint32_t slot : rest) edges.push_back(all += leaves[slot]);
      left = all;
      if (rest.empty()) {
        for (std::uint32_t i = 0; i < done; ++i) std::atomic_ref(uses_[slots[i]]).store(uses(slots[i]) - 1, std::memory_order_relaxed);
        return false;
      }
    }
    const std::uint32_t m = n - done;
    trials.resize(m);
    hits.resize(m);
    uniform_draws(view.shared().seed, stream, batch, m, trials.data(), position);
    position += m + m % 2;
    for (double& trial : trials) trial *= all;
    if (listed) {
      for (std::uint32_t i = 0; i < m; ++i) {
        const auto edge = std::upper_bound(edges.begin(), edges.end(), trials[i]);
        hits[i] = rest[std::min<std::size_t>(static_cast<std::size_t>(edge - edges.begin()), rest.size() - 1)];
      }
    } else {
      view.sum().find(trials.data(), m, hits.data());
    }
    for (std::uint32_t i = 0; i < m && left > all * 0.125; ++i) count(hits[i]);
  }
  return true;
}

// The same for rows that were drawn otherwise, each once: counted, and `spent` where they are full now.
void TableCore::count_uses(std::uint32_t n, const std::uint32_t* slots, std::vector<std::uint32_t>* spent) {
  const std::uint32_t most = settings().max_times;
  spent->clear();
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t times = uses(slots[i]) + 1;
    std::atomic_ref(uses_[slots[i]]).store(times, std::memory_order_relaxed);
    FAILPOINT(use_counted);
    if (times >= most) spent->push_back(slots[i]);
  }
}

// Rows of `slots`, each full and none of them gone, leave: their leaf is 0 and their keys are stale from here on.
void TableCore::use_up(const std::vector<std::uint32_t>& slots) {
  static thread_local std::vector<LineRange> lines, scratch;
  for (std::size_t start = 0; start < slots.size();) {
    const std::size_t end = std::min<std::size_t>(slots.size(), start + kJournalEntries);
    lines.clear();
    for (std::size_t i = start; i < end; ++i) lines.push_back({slots[i] / kFanOut, slots[i] / kFanOut});
    journal(lines.data(), static_cast<std::uint32_t>(lines.size()));
    for (std::size_t i = start; i < end; ++i) {
      std::atomic_ref(uses_[slots[i]]).store(uses(slots[i]) | kUsedUp, std::memory_order_relaxed);
      FAILPOINT(use_ended);
    }
    for (ViewIndex& view : views_) {
      double change = 0.0;
      for (std::size_t i = start; i < end; ++i) {
        const std::uint32_t slot = slots[i];
        const float before = view.prioritized() && view.ready(slot) ? view.raw(slot) : -1.0f;
        view.set_ready(slot, false);
        change += view.leaves()[slot];
        view.leaves()[slot] = 0.0;
        if (view.prioritized()) view.extreme_changed(slot, before);
      }
      scratch = lines;
      view.refresh_sums(scratch.data(), static_cast<std::uint32_t>(scratch.size()));
      view.moved(change, end - start);
    }
    touch_all();  // rows of priority 0 too: the limiter counts them
    journal_done();
    for (std::size_t i = start; i < end; ++i) {
      --blocks_[block_of(slots[i])].live;
      if (victims_.used()) victims_.changed(slots[i]);
    }
    t_.live_steps -= end - start;
    t_.counters.steps_evicted.fetch_add(end - start, std::memory_order_relaxed);
    t_.counters.used_up.fetch_add(end - start, std::memory_order_relaxed);
    start = end;
  }
  FAILPOINT(use_counts);
  for (const std::uint32_t slot : slots) retire_empty(block_of(slot));
}

// After a death in the lock: rows whose count is full, by a draw that did not come to its end, have left. The lines where that
// does not show yet.
std::vector<LineRange> TableCore::use_up_full() {
  std::vector<LineRange> lines;
  for (std::uint32_t slot = 0; uses_ != nullptr && slot < t_.n_blocks * t_.rows_per_block; ++slot) {
    if (!folded_row(slot) || (uses(slot) < settings().max_times && !used_up(slot))) continue;
    std::atomic_ref(uses_[slot]).store(uses(slot) | kUsedUp, std::memory_order_relaxed);
    if (std::any_of(views_.begin(), views_.end(), [&](const ViewIndex& view) { return view.ready(slot) || view.leaves()[slot] != 0.0; })) {
      lines.push_back({slot / kFanOut, slot / kFanOut});
    }
  }
  return lines;
}

// All rows that are full under the settings of now leave: after `max_times` was lowered.
void TableCore::drop_used_up() {
  if (uses_ == nullptr) return;
  std::vector<std::uint32_t> full;
  for (std::uint32_t slot = 0; slot < t_.n_blocks * t_.rows_per_block; ++slot) {
    if (folded_row(slot) && !used_up(slot) && uses(slot) >= settings().max_times) full.push_back(slot);
  }
  use_up(full);
}

// Retires a block that will hold no live row any more, wherever it is in the order: unless older rows of the same writer are
// live, whose windows may reach into it, or younger ones, where some view's windows reach back. When room is short (`pressed`)
// the latter lose their past, as rows do whose past is evicted.
void TableCore::retire_empty(std::uint32_t b, bool pressed) {
  Block& block = blocks_[b];
  const std::uint64_t pub = block.pub.load(std::memory_order_acquire);
  const std::uint32_t folded = block.folded.load(std::memory_order_relaxed);
  if (block.state.load(std::memory_order_relaxed) != kOpen || block.live > 0 || (pub & kSealed) == 0 || folded < (pub & kCountMask)) return;
  if (t_.links != 0) {
    const bool back = !pressed && std::any_of(views_.begin(), views_.end(), [](const ViewIndex& view) { return view.shared().steps_before > 0; });
    bool held = false;
    each_open_block(false, [&](std::uint32_t other) {
      if (blocks_[other].birth > block.birth && !back) return false;
      held = blocks_[other].writer == block.writer && blocks_[other].live > 0;
      return !held;
    });
    if (held) return;
  }
  drop_rows(b, folded);
  retire(b);
  if (t_.links == 0) return;
  // Younger blocks of the same writer may have waited for this one.
  std::uint32_t next = kNoRow;
  each_open_block(false, [&](std::uint32_t younger) {
    if (blocks_[younger].writer == block.writer && blocks_[younger].live == 0) next = younger;
    return next == kNoRow;
  });
  if (next != kNoRow) retire_empty(next, pressed);
}

// Room is short: blocks without live rows go before any row has to.
void TableCore::retire_all_empty() {
  for (std::uint32_t b = 0; uses_ != nullptr && !slots() && b < t_.n_blocks; ++b) retire_empty(b, true);
}

}  // namespace conduit
