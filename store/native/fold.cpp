// Folding: published rows enter the index. Idempotent, so that a folder killed in the middle is simply repeated.
#include <algorithm>
#include <cmath>
#include <limits>

#include "failpoints.hpp"
#include "queue.hpp"
#include "table.hpp"

namespace conduit {

void TableCore::fold() {
  if (queue_) return;  // rows of a queue are counted when they are published
  if (t_.active_count == 0) {
    if (t_.live_steps > t_.max_size) evict_surplus();
    return;
  }
  const std::uint64_t began = now_ns();
  bool folded_any = false;
  // `active_` is in order of birth. Counts are read from the youngest block to the oldest, rows folded from the oldest to
  // the youngest: so a row is never folded before its predecessor, which its writer published earlier.
  static thread_local std::vector<std::uint64_t> pubs;
  pubs.resize(t_.active_count);
  // acquire: pairs with the writer's publication; everything it wrote about these rows is visible
  for (std::uint32_t i = t_.active_count; i-- > 0;) pubs[i] = blocks_[active_[i]].pub.load(std::memory_order_acquire);
  std::vector<std::uint32_t> empty;
  std::uint32_t kept = 0;
  const std::uint32_t n = t_.active_count;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t b = active_[i];
    Block& block = blocks_[b];
    const auto count = static_cast<std::uint32_t>(pubs[i] & kCountMask);
    if (const std::uint32_t folded = block.folded.load(std::memory_order_relaxed); folded < count) {
      FAILPOINT(fold_begin);
      if (slots()) make_room();
      fold_rows(b, folded, count);
      folded_any = true;
    }
    if ((pubs[i] & kSealed) == 0) {
      active_[kept++] = b;
    } else {
      if ((pubs[i] & kCut) != 0 && t_.links != 0) finish_chains_of(block.writer);
      if ((uses_ != nullptr || slots()) && block.live == 0) empty.push_back(b);
    }
  }
  t_.active_count = kept;
  for (const std::uint32_t b : empty) retire_empty(b);  // its rows were used up before it was full, or its writer died before there were any
  const std::uint64_t surplus = t_.live_steps > t_.max_size ? t_.live_steps - t_.max_size : 0;
  const std::uint64_t evicting = surplus > 0 ? now_ns() : 0;
  if (surplus > 0) evict_surplus();
  if (folded_any) {
    FAILPOINT(fold_end);
    const std::uint64_t ended = now_ns();
    t_.counters.fold_ns.fetch_add(ended - began, std::memory_order_relaxed);
    if (surplus > 0) span(Stage::evict, surplus, evicting, ended);
  }
}

void TableCore::fold_rows(std::uint32_t b, std::uint32_t from, std::uint32_t to) {
  Block& block = blocks_[b];
  const std::uint32_t base = b * t_.rows_per_block;
  static thread_local std::vector<std::uint32_t> slots;
  for (std::uint32_t row = from; t_.links != 0 && row < to; ++row) link(base + row);
  for (ViewIndex& view : views_) {
    slots.clear();
    for (std::uint32_t row = from; row < to; ++row) {
      if (t_.links == 0) slots.push_back(base + row);
      else find_ready(view, base + row, slots);
    }
    make_ready(view, slots);
  }
  FAILPOINT(fold_block_leaves);
  const std::uint32_t steps = count_steps(b, from, to);
  t_.live_steps += steps;
  block.live += steps;
  block.folded.store(to, std::memory_order_release);
  if (victims_.used()) victims_.changed(base);
  FAILPOINT(fold_block_counted);
  t_.counters.steps_folded.fetch_add(steps, std::memory_order_relaxed);
}

// Gives every slot its leaf in a view. Journal first: a folder killed in here is undone or redone by recomputation.
void TableCore::make_ready(ViewIndex& view, const std::vector<std::uint32_t>& slots) {
  const bool prioritized = view.prioritized();
  static thread_local std::vector<LineRange> ranges;
  for (std::size_t start = 0; start < slots.size();) {
    ranges.clear();
    std::size_t end = start;
    for (; end < slots.size(); ++end) {
      const std::uint32_t line = slots[end] / kFanOut;
      if (!ranges.empty() && (ranges.back().last == line || ranges.back().last + 1 == line)) {
        ranges.back().last = line;
      } else if (ranges.size() == kJournalEntries) {
        break;
      } else {
        ranges.push_back({line, line});
      }
    }
    journal(ranges.data(), static_cast<std::uint32_t>(ranges.size()));
    double* leaves = view.leaves();
    float largest = prioritized ? view.extremes().largest : 0.0f;
    constexpr std::size_t kTogether = 256;  // powers are cheaper by the dozen
    float raws[kTogether];
    double masses[kTogether];
    std::fill_n(masses, kTogether, 1.0);
    for (std::size_t i = start; i < end; i += kTogether) {
      const std::uint32_t* some = slots.data() + i;
      const std::size_t n = std::min(kTogether, end - i);
      bool same = true;
      for (std::size_t k = 0; prioritized && k < n; ++k) {
        float value = view.raw(some[k]);
        if (std::isnan(value)) {
          value = largest >= 0.0f ? largest : 1.0f;
          // Without links a row that is made ready is new, and in no cut yet.
          if (t_.links != 0) view.change_raw(some[k], value);
          else view.set_raw(some[k], value);
          FAILPOINT(tree_raw_written);
        }
        largest = std::max(largest, value);
        raws[k] = value;
        same = same && value == raws[0];
      }
      if (prioritized && same) std::fill_n(masses, n, view.mass(raws[0]));  // the default, mostly
      else if (prioritized) view.masses(raws, masses, static_cast<std::uint32_t>(n));
      for (std::size_t k = 0; k < n; ++k) {
        view.set_ready(some[k], true);
        FAILPOINT(fold_row_ready);
        leaves[some[k]] = masses[k];
      }
    }
    FAILPOINT(tree_leaves_written);
    view.refresh(ranges.data(), static_cast<std::uint32_t>(ranges.size()));
    double change = static_cast<double>(end - start);  // the leaves were 0
    if (prioritized) {
      double part[4] = {};
      for (std::size_t i = start; i < end; ++i) part[i % 4] += leaves[slots[i]];
      change = (part[0] + part[1]) + (part[2] + part[3]);
    }
    view.moved(change, end - start);
    journal_done();
    start = end;
  }
}

void TableCore::journal(const LineRange* ranges, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) t_.journal[i] = {ranges[i].first, ranges[i].last};
  // Only this thread's death matters here, and a killed thread's stores are seen in program order by whoever then takes
  // the robust lock: it is the compiler that must not move the leaves before the record.
  t_.journal_used.store(n, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  FAILPOINT(journal_written);
}

void TableCore::journal_done() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t_.journal_used.store(0, std::memory_order_release);
  FAILPOINT(tree_done);
}

std::uint32_t TableCore::count_steps(std::uint32_t b, std::uint32_t from, std::uint32_t to) const {
  if (t_.links == 0 && uses_ == nullptr) return to - from;
  const std::uint32_t base = b * t_.rows_per_block;
  std::uint32_t steps = 0;
  for (std::uint32_t row = from; row < to; ++row) steps += is_step(base + row);
  return steps;
}

}  // namespace conduit
