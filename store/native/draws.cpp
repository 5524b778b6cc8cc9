// Drawing, by the kinds of samplers. Under the index lock, after a fold.
//
// By mass, oldest first and newest first a draw changes nothing. Without replacement it marks each row with the epoch
// that it was drawn in, which is ground truth, and zeroes its leaf, which is derived from that: a row's leaf is 1 unless its
// mark is the view's epoch. When an epoch's rows are used up the epoch is counted up, and with that all rows are back; the
// walk that then restores their leaves takes as long as the epoch had rows: constant for each draw.
// Crash: of a batch that was being marked some rows count as drawn. Lines in the journal, or the flag `rebuild`, tell the
// recovery which leaves to derive anew.
#include "draws.hpp"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "descend.hpp"
#include "failpoints.hpp"
#include "table.hpp"

namespace conduit {
namespace {

// The rows that hold these masses. Where each row is as likely as the others, most of the way down the tree is known.
void find(const ViewIndex& view, const double* masses, std::uint32_t n, std::uint32_t* slots, const DrawRequest& request) {
  for (std::uint32_t start = 0; start < n; start += kDescendGroup) {
    const std::uint32_t count = std::min(kDescendGroup, n - start);
    if (view.prioritized()) view.sum().find(masses + start, count, slots + start);
    else view.sum().find_equal(masses + start, count, slots + start);
    request.ahead(slots + start, count);
  }
}

// The first n of a random permutation of 0 ... size - 1; number i decides over place i.
// R. Durstenfeld, "Algorithm 235: random permutation", CACM 7(7), 1964, with a table of only those places that differ.
void first_of_permutation(const double* numbers, std::uint32_t n, std::uint64_t size, double* out) {
  static thread_local std::unordered_map<std::uint64_t, std::uint64_t> moved;
  moved.clear();
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint64_t j = std::min(size - 1, i + static_cast<std::uint64_t>(numbers[i] * static_cast<double>(size - i)));
    const auto at = [&](std::uint64_t place) {
      const auto found = moved.find(place);
      return found == moved.end() ? place : found->second;
    };
    const std::uint64_t taken = at(j);
    moved[j] = at(i);
    out[i] = static_cast<double>(taken);
  }
}

// `n` rows of those whose leaf is 1, all different: chosen, marked, their leaves 0. `journal(lines, count)` is called before
// leaves change and `done()` after, for at most kJournalEntries of them at a time.
template <class Journal, class Done>
void take(const ViewIndex& view, const DrawRequest& request, std::uint32_t from, std::uint32_t n, std::uint32_t* slots, double* probabilities, Journal journal, Done done) {
  double* numbers = request.numbers + from;
  slots += from, probabilities += from;
  if (n == 0) return;
  const double left = view.total();
  first_of_permutation(numbers, n, static_cast<std::uint64_t>(left), numbers);
  for (std::uint32_t i = 0; i < n; ++i) numbers[i] += 0.5;  // the middle of the row that has this rank
  find(view, numbers, n, slots, request);
  for (std::uint32_t i = 0; i < n; ++i) probabilities[i] = 1.0 / (left - i);
  static thread_local std::vector<LineRange> lines;
  const std::uint32_t epoch = view.shared().epoch;
  for (std::uint32_t start = 0; start < n; start += kJournalEntries) {
    const std::uint32_t end = std::min(n, start + kJournalEntries);
    lines.clear();
    for (std::uint32_t i = start; i < end; ++i) lines.push_back({slots[i] / kFanOut, slots[i] / kFanOut});
    journal(lines.data(), end - start);
    for (std::uint32_t i = start; i < end; ++i) {
      view.set_mark(slots[i], epoch);
      FAILPOINT(draw_marked);
      view.leaves()[slots[i]] = 0.0;
    }
    view.refresh_sums(lines.data(), end - start);
    view.moved(end - start, end - start);
    done();
  }
}

// One draw from each of n equal slices of the mass, in random order of the slices: so each draw by itself has the
// probability leaf / total, as without slices, while the batch as a whole is spread evenly.
// T. Schaul et al., "Prioritized experience replay", ICLR 2016, appendix B.2.1.
void stratified(const ViewIndex& view, const DrawRequest& request, std::uint32_t* slots) {
  const std::uint32_t n = request.n;
  double* numbers = request.numbers;
  const double total = view.total();
  const double* order = numbers + n;
  for (std::uint32_t i = 0; i < n; ++i) numbers[i] = (i + numbers[i]) / n * total;
  find(view, numbers, n, slots, request);
  for (std::uint32_t i = 0; i + 1 < n; ++i) {
    std::swap(slots[i], slots[std::min(n - 1, i + static_cast<std::uint32_t>(order[i] * (n - i)))]);
  }
}

}  // namespace

std::uint64_t draw_numbers(const ViewIndex& view, std::uint32_t n) {
  switch (view.sampler()) {
    case kOldestFirst:
    case kNewestFirst: return 0;
    case kByMass: return view.shared().stratified != 0 ? std::uint64_t{2} * n : n;
    default: return n;
  }
}

DrawStatus TableCore::draw(ViewIndex& view, const DrawRequest& request, std::uint32_t* slots, double* probabilities, Drawn* drawn) {
  const std::uint32_t n = request.n;
  if (view.sampler() == kByMass) {
    const double total = view.total();
    if (!(total > 0.0)) return DrawStatus::no_mass;
    if (view.shared().stratified != 0) {
      stratified(view, request, slots);
    } else {
      for (std::uint32_t i = 0; i < n; ++i) request.numbers[i] *= total;
      find(view, request.numbers, n, slots, request);
    }
    if (!view.prioritized()) {
      std::fill_n(probabilities, n, 1.0 / total);
      return DrawStatus::ok;
    }
    const double* leaves = view.leaves();
    for (std::uint32_t i = 0; i < n; ++i) probabilities[i] = leaves[slots[i]] / total;
  } else if (view.sampler() == kWithoutReplacement) {
    if (!draw_without_replacement(view, request, slots, probabilities, drawn)) return DrawStatus::few_rows;
  } else {
    if (!draw_in_order(view, n, slots, &drawn->found)) return DrawStatus::few_rows;
    request.ahead(slots, n);
    std::fill_n(probabilities, n, 1.0);
  }
  return DrawStatus::ok;
}

bool TableCore::draw_in_order(const ViewIndex& view, std::uint32_t n, std::uint32_t* slots, std::uint64_t* found) const {
  const bool newest_first = view.sampler() == kNewestFirst;
  const double* leaves = view.leaves();
  std::uint32_t done = 0;
  each_open_block(newest_first, [&](std::uint32_t b) {
    const std::uint32_t base = b * t_.rows_per_block, first = base + blocks_[b].evicted.load(std::memory_order_relaxed);
    const std::uint32_t end = base + blocks_[b].folded.load(std::memory_order_relaxed);
    for (std::uint32_t i = first; i < end && done < n; ++i) {
      const std::uint32_t slot = newest_first ? end - 1 - (i - first) : i;
      if (leaves[slot] > 0.0) slots[done++] = slot;
    }
    return done < n;
  });
  *found = done;
  return done == n;
}

std::uint64_t TableCore::count_ready(const ViewIndex& view) const {
  std::uint64_t count = 0;
  each_open_block(false, [&](std::uint32_t b) {
    const std::uint32_t base = b * t_.rows_per_block;
    for (std::uint32_t row = blocks_[b].evicted.load(std::memory_order_relaxed); row < blocks_[b].folded.load(std::memory_order_relaxed); ++row) {
      count += view.ready(base + row);
    }
    return true;
  });
  return count;
}

// The rest of this epoch, and what is then missing from the next, where the rows of this batch wait until it is whole: so no
// row is in a batch twice, and none is drawn again before all others have been.
bool TableCore::draw_without_replacement(ViewIndex& view, const DrawRequest& request, std::uint32_t* slots, double* probabilities, Drawn* drawn) {
  const std::uint32_t n = request.n;
  const auto left = static_cast<std::uint64_t>(view.total());
  const auto with_journal = [&](std::uint32_t from, std::uint32_t count) {
    take(view, request, from, count, slots, probabilities,
         [&](const LineRange* lines, std::uint32_t used) { journal(lines, used); }, [&] { journal_done(); });
  };
  View& v = view.shared();
  drawn->epoch_from = 0;
  if (n <= left) {
    with_journal(0, n);
  } else {
    drawn->found = count_ready(view);
    if (n > drawn->found) return false;
    const auto rest = static_cast<std::uint32_t>(left);
    with_journal(0, rest);
    v.rebuild = 1;  // from here until it is 0 again a recovery derives every leaf
    std::atomic_signal_fence(std::memory_order_seq_cst);  // see journal()
    FAILPOINT(epoch_marked);
    begin_epoch(view, slots, rest);
    take(view, request, rest, n - rest, slots, probabilities, [](const LineRange*, std::uint32_t) {}, [] {});
    std::vector<LineRange> lines;
    for (std::uint32_t i = 0; i < rest; ++i) {
      view.leaves()[slots[i]] = 1.0;
      lines.push_back({slots[i] / kFanOut, slots[i] / kFanOut});
    }
    view.refresh_sums(lines.data(), rest);
    view.moved(rest, rest);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    v.rebuild = 0;
    FAILPOINT(epoch_done);
    drawn->epoch_from = rest;
  }
  drawn->epoch = v.epoch;
  return true;
}

// Counts the epoch up and gives every row but these `n` its leaf back.
void TableCore::begin_epoch(ViewIndex& view, const std::uint32_t* without, std::uint32_t n) {
  View& v = view.shared();
  v.epoch = v.epoch == ~std::uint32_t{0} ? 1 : v.epoch + 1;
  FAILPOINT(epoch_counted);
  std::vector<LineRange> lines;
  std::uint64_t back = 0;
  each_open_block(false, [&](std::uint32_t b) {
    const std::uint32_t base = b * t_.rows_per_block, first = base + blocks_[b].evicted.load(std::memory_order_relaxed);
    const std::uint32_t end = base + blocks_[b].folded.load(std::memory_order_relaxed);
    for (std::uint32_t slot = first; slot < end; ++slot) {
      if (!view.ready(slot)) continue;
      view.leaves()[slot] = 1.0;
      ++back;
    }
    if (first < end) lines.push_back({first / kFanOut, (end - 1) / kFanOut});
    return true;
  });
  for (std::uint32_t i = 0; i < n; ++i) view.leaves()[without[i]] = 0.0;
  FAILPOINT(epoch_leaves);
  view.refresh_sums(lines.data(), static_cast<std::uint32_t>(lines.size()));
  view.moved(static_cast<double>(back), back);
}

void TableCore::undo_draw(ViewIndex& view, const std::uint64_t* keys, std::uint32_t n, const Drawn& drawn) {
  View& v = view.shared();
  if (drawn.index != kNextBatch && v.batches == drawn.index + 1) --v.batches;
  if (!view.marked() || drawn.epoch != v.epoch) return;
  std::vector<std::uint32_t> slots;
  for (std::uint32_t i = drawn.epoch_from; i < n; ++i) {
    std::uint32_t slot;
    if (live(keys[i], &slot) && view.ready(slot) && view.drawn(slot)) slots.push_back(slot);
  }
  std::vector<LineRange> lines;
  for (std::size_t start = 0; start < slots.size(); start += kJournalEntries) {
    const std::size_t end = std::min<std::size_t>(slots.size(), start + kJournalEntries);
    lines.clear();
    for (std::size_t i = start; i < end; ++i) lines.push_back({slots[i] / kFanOut, slots[i] / kFanOut});
    const auto used = static_cast<std::uint32_t>(lines.size());
    journal(lines.data(), used);
    for (std::size_t i = start; i < end; ++i) {
      view.set_mark(slots[i], 0);
      FAILPOINT(draw_unmarked);
      view.leaves()[slots[i]] = 1.0;
    }
    view.refresh_sums(lines.data(), used);
    view.moved(static_cast<double>(used), used);
    journal_done();
  }
}

}  // namespace conduit
