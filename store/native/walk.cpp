#include "walk.hpp"

namespace conduit {

bool Walk::together(std::uint32_t slot, std::uint32_t before, std::uint32_t most) const {
  if (t_.runs_ == nullptr || most > 255 || before > t_.run(slot)) return false;
  const std::uint32_t b = t_.block_of(slot), after = slot + most;
  // acquire: pairs with fold_rows; a row beyond the folded ones has the count of a former life
  return after < b * t_.shared().rows_per_block + t_.block(b).folded.load(std::memory_order_acquire) && t_.run(after) >= most;
}

// Rows of one writer and one environment lie one after the other: mostly one count tells that all `most` steps do, and a row
// after them (which makes them steps). Else such runs are recognised by looking at each row, so that a step does not have
// to wait for the link that the one before it loaded.
Steps Walk::forward(std::uint32_t slot, std::uint32_t most, bool last_step, std::vector<StepRun>& runs) const {
  if (together(slot, 0, most)) {
    runs.push_back({slot, most});
    return {most, slot + most - 1, slot + most};
  }
  const std::uint32_t rows = t_.shared().rows_per_block;
  Steps found{0, slot, slot};
  for (std::uint32_t at = slot;;) {
    const std::uint32_t end = (t_.block_of(at) + 1) * rows;
    std::uint32_t k = 1;
    while (found.n + k < most && at + k < end && t_.next(at + k - 1) == at + k && (t_.flag(at + k - 1) & kEnd) == 0 && (t_.flag(at + k) & kFinal) == 0) ++k;
    runs.push_back({at, k});
    found.n += k;
    found.last = at + k - 1;
    const std::uint32_t after = t_.next(found.last);
    found.after = after == kNoRow ? found.last : after;
    if (after == kNoRow) break;
    if (found.n == most || (t_.flag(found.last) & kEnd) != 0 || (t_.flag(after) & kFinal) != 0) return found;
    if (!last_step && t_.next(after) == kNoRow) return found;  // its writer has gone: the last row is no step, but follows one
    at = after;
  }
  if (!last_step && found.n > 1) {  // as above, in the middle of a run
    found.after = found.last;
    --found.n;
    if (--runs.back().n == 0) runs.pop_back();
    const StepRun& run = runs.back();
    found.last = run.first + run.n - 1;
  }
  return found;
}

std::uint32_t Walk::backward(std::uint32_t slot, std::uint32_t most, std::vector<StepRun>& runs) {
  const std::uint32_t rows = t_.shared().rows_per_block;
  if (t_.runs_ != nullptr && most <= t_.run(slot)) {
    if (most > 0) runs.push_back({slot - most, most});
    return most;
  }
  back_.clear();
  std::uint32_t n = 0;
  for (std::uint32_t at = slot; n < most && (t_.flag(at) & kFirst) == 0;) {
    const std::uint32_t base = t_.block_of(at) * rows;
    std::uint32_t k = 0;
    while (n + k < most && at - k > base && t_.prev(at - k) == at - k - 1 && (t_.flag(at - k) & kFirst) == 0) ++k;
    if (k == 0) {
      const std::uint32_t p = t_.prev(at);
      if (p == kNoRow) break;
      back_.push_back({p, 1});
      at = p;
      ++n;
      continue;
    }
    at -= k;
    n += k;
    back_.push_back({at, k});
  }
  runs.insert(runs.end(), back_.rbegin(), back_.rend());
  return n;
}

std::uint32_t Walk::remaining(std::uint32_t slot) const {
  const std::uint32_t slots = t_.shared().n_blocks * t_.shared().rows_per_block;
  std::uint32_t n = 0;
  for (std::uint32_t p = t_.next(slot); p != kNoRow && n < slots; p = t_.next(p)) {
    ++n;
    if ((t_.flag(p) & kFinal) != 0) break;
  }
  return n;
}

std::uint32_t Walk::advanced(std::uint32_t slot, std::uint32_t n) const {
  for (; n > 0; --n) {
    const std::uint32_t after = t_.next(slot);
    if (after == kNoRow) break;
    slot = after;
  }
  return slot;
}

std::uint32_t Walk::first(std::uint32_t slot, std::uint32_t* distance) const {
  const std::uint32_t slots = t_.shared().n_blocks * t_.shared().rows_per_block;
  for (*distance = 0; (t_.flag(slot) & kFirst) == 0 && *distance < slots; ++*distance) {
    const std::uint32_t p = t_.prev(slot);
    if (p == kNoRow) break;
    slot = p;
  }
  return slot;
}

}  // namespace conduit
