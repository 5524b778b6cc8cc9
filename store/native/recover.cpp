// The index lock, and what the next holder does when the last one died inside it: rebuild the derived from the ground truth.
#include <algorithm>
#include <cmath>
#include <vector>

#include "failpoints.hpp"
#include "queue.hpp"
#include "table.hpp"

namespace conduit {

IndexLock::IndexLock(TableCore& table, std::uint64_t timeout_ns) : table_(table) {
  SharedMutex& mutex = table.shared().index;
  if (mutex_lock(mutex, table.process().segments(), table.process().slot(), timeout_ns, "index lock of table", table.shared().name)) {
    table.recover();
    mutex_repaired(mutex);
  }
}

IndexLock::~IndexLock() { mutex_unlock(table_.shared().index); }

// All blocks of an append that goes in together, or none. What a writer killed in here leaves is completed by the next
// holder of the lock: the record of what the counts shall be is written when all the rows are, and before the first count.
bool TableCore::publish_together(const Publication* publications, std::uint32_t n) {
  IndexLock lock(*this);
  FAILPOINT(append_together);
  // Whoever seals holds the lock: blocks that are open now stay so.
  for (std::uint32_t i = 0; i < n; ++i) {
    if ((blocks_[publications[i].block].pub.load(std::memory_order_relaxed) & kSealed) != 0) return false;
  }
  note_publications(publications, n);
  return true;
}

void TableCore::note_publications(const Publication* publications, std::uint32_t n) {
  std::copy(publications, publications + n, t_.publications);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // see journal()
  t_.publications_used.store(n, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  FAILPOINT(append_noted);
  complete_publications();
}

void TableCore::complete_publications() {
  for (std::uint32_t i = 0; i < t_.publications_used.load(std::memory_order_acquire); ++i) {
    std::atomic<std::uint64_t>& pub = blocks_[t_.publications[i].block].pub;
    const std::uint64_t published = pub.load(std::memory_order_relaxed) & kCountMask;
    // seq_cst: release for the rows, and ordered before the load of the waiting flag in announce()
    if (published < t_.publications[i].count) pub.fetch_add(t_.publications[i].count - published, std::memory_order_seq_cst);
    if (i == 0) FAILPOINT(append_halfway);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t_.publications_used.store(0, std::memory_order_release);
}

// `others`: lines to put right beside the journal's.
void TableCore::recover_leaves(ViewIndex& view, const std::vector<LineRange>& others) {
  const std::uint32_t slots = t_.n_blocks * t_.rows_per_block;
  std::vector<LineRange> lines;
  if (view.shared().rebuild != 0) {
    lines.push_back({0, (slots - 1) / kFanOut});
  } else {
    for (std::uint32_t i = 0; i < t_.journal_used.load(std::memory_order_acquire); ++i) {
      lines.push_back({t_.journal[i].first, t_.journal[i].last});
    }
  }
  lines.insert(lines.end(), others.begin(), others.end());
  for (const LineRange& range : lines) {
    const std::uint32_t last = std::min(range.last * kFanOut + kFanOut, slots);
    for (std::uint32_t slot = range.first * kFanOut; slot < last; ++slot) {
      const Block& block = blocks_[slot / t_.rows_per_block];
      const bool gone = block.state.load(std::memory_order_relaxed) != kOpen ||
                        slot % t_.rows_per_block < block.evicted.load(std::memory_order_relaxed) || used_up(slot);
      if (gone || (view.shared().steps_before > 0 && view.ready(slot) && !begins(view.shared(), slot))) view.set_ready(slot, false);
      if (view.prioritized() && view.ready(slot) && !(view.raw(slot) >= 0.0f)) view.change_raw(slot, 1.0f);
      view.leaves()[slot] = view.leaf_of(slot);
    }
  }
  if (!lines.empty()) view.refresh(lines.data(), static_cast<std::uint32_t>(lines.size()));
  view.shared().rebuild = 0;
}

void TableCore::recover() {
  FAILPOINT(recover_begin);
  if (queue_) {
    queue_->recover();
    recover_blocks();
    queue_->retire_done();
    FAILPOINT(recover_end);
    return;
  }
  complete_publications();
  // 1. Rows: a block that is not open, or an evicted row, has no ready rows. Only journaled lines can be out of step.
  // Which view the dead holder was at is not recorded: the lines are put right in all of them.
  const std::vector<LineRange> full = use_up_full();
  for (ViewIndex& view : views_) recover_leaves(view, full);
  t_.journal_used.store(0, std::memory_order_release);
  recover_blocks();
  for (const ViewIndex& view : views_) view.new_era();
  FAILPOINT(recover_end);
}

void TableCore::recover_blocks() {
  // 2. Blocks: order, active list and counts follow from their states.
  std::vector<std::uint32_t> open, retired;
  t_.live_steps = 0;
  t_.open = t_.retired = t_.free = {kNoRow, kNoRow, 0};
  std::uint32_t run_end = 0;  // up to here blocks belong to a run
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    Block& block = blocks_[b];
    const std::uint32_t was = block.state.load(std::memory_order_relaxed);
    if (b < run_end) block.state.store(kAnnexed, std::memory_order_release);
    else if (was == kAnnexed) block.state.store(kFree, std::memory_order_release);
    const std::uint32_t state = block.state.load(std::memory_order_relaxed);
    if (b >= run_end && state != kFree) run_end = b + ragged_.span(b);
    if (state == kFree) links_.push(t_.free, b);
    if (state == kRetired) retired.push_back(b);
    if (state != kOpen) continue;
    open.push_back(b);
    t_.births = std::max(t_.births, block.birth);
    const std::uint32_t folded = block.folded.load(std::memory_order_relaxed);
    const std::uint32_t evicted = block.evicted.load(std::memory_order_relaxed);
    block.live = queue_ || evicted >= folded ? 0 : count_steps(b, evicted, folded);
    t_.live_steps += queue_ ? queue_->unacknowledged(b) : block.live;
  }
  std::sort(open.begin(), open.end(), [&](std::uint32_t a, std::uint32_t b) { return blocks_[a].birth < blocks_[b].birth; });
  std::sort(retired.begin(), retired.end(), [&](std::uint32_t a, std::uint32_t b) { return blocks_[a].retired_epoch < blocks_[b].retired_epoch; });
  for (const std::uint32_t b : open) links_.push(t_.open, b);
  for (const std::uint32_t b : retired) links_.push(t_.retired, b);
  if (queue_) {
    t_.order_head = 0;
    t_.order_tail = open.size();
    std::copy(open.begin(), open.end(), order_);
  }
  t_.active_count = 0;
  for (const std::uint32_t b : open) {  // folded blocks leave the list at the next fold, single rows have left it
    if (!slots() || blocks_[b].live == 0) active_[t_.active_count++] = b;
  }
  for (const std::uint32_t b : open) {  // a row that was being removed
    if (slots() && blocks_[b].evicted.load(std::memory_order_relaxed) > 0) retire(b);
  }
  if (tiered()) recover_frames();
  if (victims_.used()) victims_.refresh_all();
  // The dead holder may have changed a count and not its counter: folded less evicted is what is live.
  const std::uint64_t in = t_.counters.steps_folded.load(), out = t_.counters.steps_evicted.load();
  if (in < out + t_.live_steps) {
    t_.counters.steps_folded.store(out + t_.live_steps);
  } else {
    t_.counters.steps_evicted.store(in - t_.live_steps);
  }
  t_.counters.recoveries.fetch_add(1, std::memory_order_relaxed);
}

// What is wrong with a row in a view, or nullptr.
const char* TableCore::wrong_in_view(const ViewIndex& view, std::uint32_t slot, bool live) const {
  const bool ready = view.ready(slot), final_row = (flag(slot) & kFinal) != 0;
  if (ready && !live) return "ready but not live";
  if (ready && final_row) return "a final observation and ready";
  if (view.leaves()[slot] != view.leaf_of(slot)) return "leaf differs from its priority";
  if (!live) return nullptr;
  if (t_.links == 0) return ready ? nullptr : "live but not ready";
  return wrong_readiness(view, slot);
}

std::vector<std::string> TableCore::verify() {
  process_->check();
  std::vector<std::string> wrong;
  const auto expect = [&](bool holds, const std::string& what) {
    if (!holds && wrong.size() < 20) wrong.push_back(what);
  };
  IndexLock lock(*this);
  fold();
  if (queue_) {
    wrong = queue_->verify();
    if (tiered()) wrong_frames(expect);
    return wrong;
  }
  expect(t_.publications_used.load() == 0, "an append is half published at rest");
  expect(t_.journal_used.load() == 0, "journal is not empty at rest");
  std::uint64_t live = 0, order = 0, open = 0, annexed = 0;
  std::uint32_t run_end = 0;
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    const Block& block = blocks_[b];
    expect((block.state.load() == kAnnexed) == (b < run_end), "block " + std::to_string(b) + (b < run_end ? " belongs to a run and is not annexed" : " is annexed to none"));
    annexed += block.state.load() == kAnnexed;
    if (b >= run_end && block.state.load() != kFree) run_end = b + ragged_.span(b);
    const std::uint32_t base = b * t_.rows_per_block;
    const bool is_open = block.state.load() == kOpen;
    const std::uint32_t first = block.evicted.load(), last = is_open ? block.folded.load() : 0;
    open += is_open;
    expect(!is_open || first <= last, "block " + std::to_string(b) + ": evicted " + std::to_string(first) + " of " + std::to_string(last) + " folded rows");
    const std::uint32_t steps = is_open && first < last ? count_steps(b, first, last) : 0;
    live += steps;
    expect(!is_open || steps == block.live, "block " + std::to_string(b) + ": live steps " + std::to_string(block.live) + ", recount " + std::to_string(steps));
    for (std::uint32_t row = 0; row < t_.rows_per_block; ++row) {
      const bool in = is_open && row >= first && row < last && !used_up(base + row);
      if (in && runs_ != nullptr && row > first) expect(TableCore::run(base + row) == run_to(base + row, prev(base + row)), "slot " + std::to_string(base + row) + ": its run is counted wrong");
      for (std::uint32_t v = 0; v < n_views(); ++v) {
        const char* what = wrong_in_view(views_[v], base + row, in);
        if (what != nullptr) expect(false, "slot " + std::to_string(base + row) + ", view " + std::to_string(v) + ": " + what);
      }
    }
  }
  std::uint64_t last_birth = 0;
  each_open_block(false, [&](std::uint32_t b) {
    expect(blocks_[b].state.load() == kOpen, "a block in the eviction order is not open");
    expect(last_birth < blocks_[b].birth, "eviction order is not the order of birth");
    expect(!slots() || blocks_[b].evicted.load() == 0, "a row that was removed is in the eviction order");
    last_birth = blocks_[b].birth;
    return ++order <= t_.n_blocks;
  });
  expect(order == open, "eviction order holds " + std::to_string(order) + " blocks of " + std::to_string(open));
  const auto count = [&](const BlockList& list, std::uint32_t state) {
    std::uint64_t length = 0;
    for (std::uint32_t b = list.first; b != kNoRow && length <= t_.n_blocks; b = links_.after(b), ++length) {
      expect(blocks_[b].state.load() == state, "block " + std::to_string(b) + " is in the wrong list");
    }
    expect(length == list.count, "a list of " + std::to_string(length) + " blocks is counted as " + std::to_string(list.count));
    return length;
  };
  const std::uint64_t all = count(t_.open, kOpen) + count(t_.retired, kRetired) + count(t_.free, kFree);
  expect(all + annexed == t_.n_blocks, "lists hold " + std::to_string(all + annexed) + " blocks of " + std::to_string(t_.n_blocks));
  if (tiered()) wrong_frames(expect);
  expect(!victims_.used() || victims_.consistent(), "tree of victims: a node differs from its children");
  expect(live == t_.live_steps, "live steps " + std::to_string(t_.live_steps) + ", recount " + std::to_string(live));
  expect(t_.counters.steps_folded.load() - t_.counters.steps_evicted.load() == live, "counters of folded and evicted steps differ from the live steps");
  expect(t_.live_steps <= t_.max_size, "live steps " + std::to_string(t_.live_steps) + " above max_size");
  for (std::uint32_t v = 0; v < n_views(); ++v) {
    expect(views_[v].shared().rebuild == 0, "view " + std::to_string(v) + " is being rebuilt at rest");
    const char* what = views_[v].inconsistency();
    if (what != nullptr) expect(false, "view " + std::to_string(v) + ", " + what);
  }
  return wrong;
}

}  // namespace conduit
