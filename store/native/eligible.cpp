// Eligibility: which rows have what a view's window needs. A window covers `steps_before` rows before the drawn one and
// `steps_after` after it, within one episode.
//
//   begins     the row is a step that has not been used up (uses.cpp), whose number the view's period divides, and everything before it that the window needs is
//              live: `steps_before` rows, or all since the episode's first (kStrict: no fewer than `steps_before`)
//   complete   `steps_after` rows follow; with kLastStep those must be steps, else one may be the final observation
//   ended      the final observation is there, or (cut) the writer has gone; windows then take what there is, but for kStrict
//
// A row is ready once it begins and is complete or ended (kWhole: ended only), and stays so until it or a row before it that
// its window needs is evicted. Derived from links, flags, step numbers and what is evicted: `verify` derives it again.
#include <algorithm>

#include "failpoints.hpp"
#include "table.hpp"

namespace conduit {

// Whether slot `p`, noted as a predecessor by a row of a block of birth `birth`, still is that row: its block has not
// been given away since (it would be younger than the block that names it) and it has not been evicted.
bool TableCore::linked(std::uint32_t p, std::uint64_t birth) const {
  if (p == kNoRow) return false;
  const std::uint32_t b = block_of(p);
  const Block& block = blocks_[b];
  return block.state.load(std::memory_order_relaxed) == kOpen && block.birth <= birth &&
         p - b * t_.rows_per_block >= block.evicted.load(std::memory_order_relaxed);
}

// The row's predecessor, kNoRow if it has none or none any more. It is told by the birth of that row's own block: that of a
// younger block further down the chain would let a block pass that has been given away in between.
std::uint32_t TableCore::before(std::uint32_t slot) const {
  const std::uint32_t p = prev(slot);
  return linked(p, blocks_[block_of(slot)].birth) ? p : kNoRow;
}

// Whether the `n` rows right before in the block are the row's predecessors, and live. False where runs are not counted.
bool TableCore::in_run(std::uint32_t slot, std::uint32_t n) const {
  if (runs_ == nullptr || run(slot) < n) return false;
  const std::uint32_t b = block_of(slot);
  return slot - n >= b * t_.rows_per_block + blocks_[b].evicted.load(std::memory_order_relaxed);
}

// The row `n` steps before, kNoRow if it is not there.
std::uint32_t TableCore::before(std::uint32_t slot, std::uint32_t n) const {
  while (n > 0 && slot != kNoRow) {
    if (in_run(slot, n)) return slot - n;
    // Within one block a predecessor is live if it has not been evicted: most steps cost a load and two comparisons.
    const std::uint32_t b = block_of(slot), base = b * t_.rows_per_block;
    const std::uint32_t live = blocks_[b].evicted.load(std::memory_order_relaxed);
    std::uint32_t p = prev(slot);
    while (p - base - live < t_.rows_per_block - live && --n > 0) p = prev(slot = p);
    if (n == 0) return p;
    slot = linked(p, blocks_[b].birth) ? p : kNoRow;
    --n;
  }
  return slot;
}

// What runs_ says of a row whose predecessor is `p`.
std::uint8_t TableCore::run_to(std::uint32_t slot, std::uint32_t p) const {
  const bool adjacent = p != kNoRow && p + 1 == slot && block_of(p) == block_of(slot);
  return adjacent ? static_cast<std::uint8_t>(std::min<std::uint32_t>(run(p) + 1u, 255)) : 0;
}

void TableCore::link(std::uint32_t slot) {
  const std::uint32_t p = before(slot);
  if (runs_ != nullptr) std::atomic_ref(runs_[slot]).store(run_to(slot, p), std::memory_order_relaxed);
  if (p == kNoRow) return;
  std::atomic_ref(next_[p]).store(slot, std::memory_order_relaxed);
  FAILPOINT(fold_row_linked);
}

bool TableCore::begins(const View& view, std::uint32_t slot) const {
  if ((flag(slot) & kFinal) != 0 || used_up(slot) || (view.period > 1 && step(slot) % view.period != 0)) return false;
  if (in_run(slot, view.steps_before)) return true;
  for (std::uint32_t n = 0; n < view.steps_before; ++n) {
    if ((flag(slot) & kFirst) != 0) return (view.rules & kStrict) == 0;
    if ((slot = before(slot)) == kNoRow) return false;
  }
  return true;
}

// The rows of a view that a new row makes ready.
void TableCore::find_ready(const ViewIndex& index, std::uint32_t slot, std::vector<std::uint32_t>& found) const {
  const View& view = index.shared();
  const bool final_row = (flag(slot) & kFinal) != 0;
  const std::uint32_t n = view.steps_after;
  if ((view.rules & kWhole) != 0) {
    if (final_row) find_ended(index, slot, 1, ~std::uint32_t{0}, found);
    return;
  }
  // An ordinary step completes just the window of the n-th row before it; so does a final observation where it counts.
  if (!final_row || (view.rules & kLastStep) == 0) {
    const bool may = view.period == 1 || step(slot) % view.period == n % view.period;
    const std::uint32_t p = may ? before(slot, n) : kNoRow;
    if (p != kNoRow && !index.ready(p) && begins(view, p)) found.push_back(p);
  }
  if (final_row && n > 0 && (view.rules & kStrict) == 0) find_ended(index, slot, 1, (view.rules & kLastStep) != 0 ? n : n - 1, found);
}

// An episode has ended with row `last`: the windows of the rows from `near` to `far` before it get no more than they have.
void TableCore::find_ended(const ViewIndex& index, std::uint32_t last, std::uint32_t near, std::uint32_t far, std::vector<std::uint32_t>& found) const {
  std::uint32_t p = last;
  for (std::uint32_t back = 0; p != kNoRow && back <= far; ++back, p = before(p)) {
    if (back >= near && !index.ready(p) && begins(index.shared(), p)) found.push_back(p);
  }
}

// A writer has gone or closed: the last rows of its open episodes will never have successors. They may lie in any of its
// blocks, since environments need not step together.
void TableCore::finish_chains_of(std::uint64_t writer) {
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    if (blocks_[b].state.load(std::memory_order_relaxed) == kOpen && blocks_[b].writer == writer) finish_chains(b);
  }
}

void TableCore::finish_writer(std::uint64_t writer) {
  IndexLock lock(*this);
  fold();
  finish_chains_of(writer);
}

// Rows that have at least one successor keep a shorter window. The very last row of each chain has no next observation: only
// windows that need none take it in.
void TableCore::finish_chains(std::uint32_t b) {
  const Block& block = blocks_[b];
  const std::uint32_t base = b * t_.rows_per_block;
  std::vector<std::uint32_t> found;
  for (ViewIndex& index : views_) {
    const View& view = index.shared();
    const bool whole = (view.rules & kWhole) != 0;
    if ((view.steps_after == 0 && !whole) || (view.rules & kStrict) != 0) continue;
    found.clear();
    for (std::uint32_t row = block.folded.load(std::memory_order_relaxed); row-- > block.evicted.load(std::memory_order_relaxed);) {
      const std::uint32_t tail = base + row;
      if (next(tail) != kNoRow || (flag(tail) & kFinal) != 0) continue;
      find_ended(index, tail, (view.rules & kLastStep) != 0 ? 0 : 1, whole ? ~std::uint32_t{0} : view.steps_after - 1, found);
    }
    make_ready(index, found);
  }
}

// The ready rows whose windows reach back to rows [from, to) of one block, which are about to go.
void TableCore::find_bereft(const ViewIndex& index, std::uint32_t from, std::uint32_t to, std::vector<std::uint32_t>& found) const {
  found.clear();
  const std::uint32_t reach = index.shared().steps_before;
  for (std::uint32_t slot = from; reach > 0 && slot < to; ++slot) {
    std::uint32_t after = next(slot);
    if (after >= from && after < to) continue;  // it goes too, and its own turn comes
    // A window that reaches back to the episode's first row went with that one.
    if (reach == kWholePast && (flag(slot) & kFirst) == 0 && before(slot) == kNoRow) continue;
    for (std::uint32_t n = 1; n <= reach && after != kNoRow; ++n, after = next(after)) {
      if (index.ready(after)) found.push_back(after);
    }
  }
}

// What is wrong with a row's readiness, or nullptr. After a fold.
const char* TableCore::wrong_readiness(const ViewIndex& index, std::uint32_t slot) const {
  const View& view = index.shared();
  const bool last_step = (view.rules & kLastStep) != 0, ready = index.ready(slot);
  if (!begins(view, slot)) return ready ? "ready without what comes before it" : nullptr;
  std::uint32_t rows = 0;
  bool ended = false;
  for (std::uint32_t p = next(slot); p != kNoRow && (rows < view.steps_after || (view.rules & kWhole) != 0) && !ended; p = next(p)) {
    ended = (flag(p) & kFinal) != 0;
    rows += !ended || !last_step;
  }
  const bool complete = rows >= view.steps_after && (view.rules & kWhole) == 0;
  const bool due = complete || (ended && (view.rules & kStrict) == 0);
  if (due && !ready) return "not ready, and has its window";
  if (!ready || due) return nullptr;
  if ((view.rules & kStrict) != 0) return "ready without its whole window";
  return rows == 0 && !last_step ? "ready without a successor" : nullptr;  // else its writer has gone
}

}  // namespace conduit
