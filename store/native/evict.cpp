// Eviction by row, reclamation by block, and what it takes to hand a writer a free block.
#include <algorithm>

#include "failpoints.hpp"
#include "queue.hpp"
#include "table.hpp"

namespace conduit {
namespace {

#ifndef CONDUIT_STALL_MS
#define CONDUIT_STALL_MS 20
#endif
constexpr std::uint64_t kStallNs = CONDUIT_STALL_MS * 1'000'000ull;  // a reader that has not moved for this long is expelled
#ifndef CONDUIT_HOLD_MS
#define CONDUIT_HOLD_MS 2000
#endif
constexpr std::uint64_t kHoldNs = CONDUIT_HOLD_MS * 1'000'000ull;  // a checkpoint that has not gone on for this long gives up its blocks

// Sorts lines and joins neighbours, and more than neighbours while there are more than a journal holds: entries may name
// lines that do not change.
void merge_lines(std::vector<LineRange>& lines) {
  std::sort(lines.begin(), lines.end(), [](const LineRange& a, const LineRange& b) { return a.first < b.first; });
  for (std::uint32_t gap = 1;; gap *= 2) {
    std::size_t kept = 0;
    for (const LineRange& line : lines) {
      if (kept > 0 && line.first <= lines[kept - 1].last + gap) lines[kept - 1].last = std::max(lines[kept - 1].last, line.last);
      else lines[kept++] = line;
    }
    lines.resize(kept);
    if (kept <= kJournalEntries) return;
  }
}

}  // namespace

// Zeroes the leaves of rows [evicted, to) of block `b`, and of those whose windows need them, and takes them out of every count.
void TableCore::drop_rows(std::uint32_t b, std::uint32_t to) {
  Block& block = blocks_[b];
  const std::uint32_t from = block.evicted.load(std::memory_order_relaxed);
  if (to <= from) return;
  const std::uint32_t base = b * t_.rows_per_block;
  // Rows of other blocks, or further on in this one, whose windows reach back to what goes.
  static thread_local std::vector<std::uint32_t> bereft[kMaxViews];
  static thread_local std::vector<LineRange> lines;
  lines.assign(1, {(base + from) / kFanOut, (base + to - 1) / kFanOut});
  for (std::uint32_t v = 0; v < n_views(); ++v) {
    find_bereft(views_[v], base + from, base + to, bereft[v]);
    for (const std::uint32_t slot : bereft[v]) lines.push_back({slot / kFanOut, slot / kFanOut});
  }
  if (lines.size() > 1) merge_lines(lines);
  FAILPOINT(evict_begin);
  journal(lines.data(), static_cast<std::uint32_t>(lines.size()));
  block.evicted.store(to, std::memory_order_release);
  FAILPOINT(evict_marked);
  if (victims_.used()) victims_.changed(base);
  for (std::uint32_t v = 0; v < n_views(); ++v) {
    ViewIndex& view = views_[v];
    double change = view.sum().range_sum(base + from, base + to);
    for (std::uint32_t slot = base + from; slot < base + to; ++slot) {
      view.set_ready(slot, false);
      view.leaves()[slot] = 0.0;
    }
    for (const std::uint32_t slot : bereft[v]) {
      change += view.leaves()[slot];
      view.set_ready(slot, false);
      view.leaves()[slot] = 0.0;
      FAILPOINT(evict_bereft);
    }
    FAILPOINT(evict_leaves);
    static thread_local std::vector<LineRange> touched;  // refresh() overwrites it
    touched = lines;
    view.refresh(touched.data(), static_cast<std::uint32_t>(touched.size()));
    view.moved(change, to - from + bereft[v].size());
  }
  journal_done();
  const std::uint32_t folded = std::min(to, block.folded.load(std::memory_order_relaxed));
  const std::uint32_t steps = from < folded ? count_steps(b, from, folded) : 0;
  t_.live_steps -= steps;
  block.live -= steps;
  if (steps > 0) touch_all();  // rows of priority 0 too: the limiter counts them
  t_.counters.steps_evicted.fetch_add(steps, std::memory_order_relaxed);
  FAILPOINT(evict_counted);
}

// Evicts up to `surplus` steps from the oldest block and retires it when nothing is left in it. False: no block.
bool TableCore::evict_head(std::uint64_t surplus) {
  const std::uint32_t b = t_.open.first;
  if (b == kNoRow) return false;
  Block& block = blocks_[b];
  const std::uint32_t folded = block.folded.load(std::memory_order_relaxed);
  std::uint32_t to = block.evicted.load(std::memory_order_relaxed);
  const std::uint32_t base = b * t_.rows_per_block;
  for (std::uint64_t left = surplus; to < folded; ++to) {
    const bool step = is_step(base + to);
    if (step && left == 0) break;
    left -= step;  // a final observation goes with the steps before it: only they could refer to it
  }
  drop_rows(b, to);
  if (to < folded) return true;
  // Empty of live rows. A slow writer's open block at the head would hold up the order: no more rows in it.
  std::uint64_t pub = block.pub.load(std::memory_order_acquire);
  if ((pub & kSealed) == 0) {
    if (t_.live_steps <= t_.max_size) return true;
    pub = block.pub.fetch_or(kSealed, std::memory_order_acq_rel);
  }
  const auto count = static_cast<std::uint32_t>(pub & kCountMask);
  if (folded < count) {
    fold_rows(b, folded, count);
    return true;
  }
  retire(b);
  return true;
}

void TableCore::evict_surplus() {
  while (t_.live_steps > t_.max_size && slots() && remove_one()) {
  }
  while (t_.live_steps > t_.max_size && evict_head(t_.live_steps - t_.max_size)) {
  }
  FAILPOINT(evict_end);
}

void TableCore::retire(std::uint32_t b) {
  Block& block = blocks_[b];
  FAILPOINT(retire_before);
  // Readers that entered at this epoch or before may still be copying from the block. Where each row is a block the epoch is
  // counted up when they are reclaimed, not for each.
  std::atomic<std::uint64_t>& epoch = process_->segments().header().epoch;
  block.retired_epoch = (slots() ? epoch.load(std::memory_order_acquire) : epoch.fetch_add(1, std::memory_order_acq_rel)) & kEpochMask;
  block.state.store(kRetired, std::memory_order_release);
  FAILPOINT(retire_after);
  links_.remove(t_.open, b);
  links_.push(t_.retired, b);
  if (queue_) {  // whichever block is done: those before it move up
    std::uint64_t at = t_.order_head;
    while (order_[at % t_.n_blocks] != b) ++at;
    for (; at > t_.order_head; --at) order_[at % t_.n_blocks] = order_[(at - 1) % t_.n_blocks];
    ++t_.order_head;
  }
  if (slots() && block.folded.load(std::memory_order_relaxed) > 0) return;  // it left the active list when it was folded
  for (std::uint32_t i = 0; i < t_.active_count; ++i) {
    if (active_[i] != b) continue;
    std::copy(active_ + i + 1, active_ + t_.active_count, active_ + i);
    --t_.active_count;
    break;
  }
}

// Seals the open blocks of processes that are gone, at what they had published; when room is short (`pressed`) also those that
// a restored table keeps for new writers.
void TableCore::seal_dead(bool pressed) {
  for (std::uint32_t i = 0; i < (slots() ? t_.active_count : t_.n_blocks); ++i) {
    const std::uint32_t b = slots() ? active_[i] : i;  // single rows are sealed as they are published
    Block& block = blocks_[b];
    if (block.state.load(std::memory_order_relaxed) != kOpen) continue;
    // Not kReleased: a writer that died between two blocks has released all of them, and its chains still want finishing.
    const std::uint64_t pub = block.pub.load(std::memory_order_acquire);
    if ((pub & kCut) != 0 || process_->alive(block.owner, block.owner_claim)) continue;
    if ((pub & (kSealed | kReleased)) == kReleased && !pressed) continue;
    block.pub.fetch_or(kSealed | kReleased | kCut, std::memory_order_acq_rel);
    FAILPOINT(open_sealed_dead);
    // A block that was force-sealed earlier may already have left the active list without its chains being finished.
    if (std::find(active_, active_ + t_.active_count, b) == active_ + t_.active_count && t_.links != 0) finish_chains_of(block.writer);
  }
}

// Whether a checkpoint that is being written holds any block: those born in its range stay (held_born).
bool TableCore::held_for_checkpoint() const {
  // acquire: the holder's last read of a block comes before `low` passes it
  return t_.hold.low.load(std::memory_order_acquire) <= t_.hold.high && process_->alive(t_.hold.process, t_.hold.claim);
}

// By a writer that waits for blocks which a checkpoint holds. One whose process stands still (SIGSTOP, a debugger, a disk that has gone
// away) holds up nobody for longer than kHoldNs.
void TableCore::break_stalled_hold() {
  Hold& hold = t_.hold;
  const std::uint64_t since = hold.since.load(std::memory_order_relaxed), now = now_ns();
  if (since == 0) {
    hold.since.store(now, std::memory_order_relaxed);
  } else if (now - since > kHoldNs) {
    // Fails where the holder goes on after all. acq_rel: as in held_for_checkpoint, and what we do with its blocks comes after.
    std::uint64_t low = hold.low.load(std::memory_order_acquire);
    if (low <= hold.high) hold.low.compare_exchange_strong(low, kHoldBroken, std::memory_order_acq_rel);
  }
}

bool TableCore::pinned(std::uint32_t b, std::uint32_t* pid) const {
  const Segments& segments = process_->segments();
  const std::uint64_t value = std::uint64_t{index_ + 1} << 32 | b;
  const std::uint32_t processes = segments.header().processes_used.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < processes; ++i) {
    const ProcessSlot& p = segments.process(i);
    const std::uint32_t used = p.pins_used.load(std::memory_order_acquire);
    for (std::uint32_t k = 0; k < used; ++k) {
      // acquire: the holder's last read through its view comes before its release of the entry
      if (p.pins[k].load(std::memory_order_acquire) != value) continue;
      if (!process_->alive(i, p.claim.load(std::memory_order_acquire))) continue;
      *pid = p.pid.load(std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

// Frees every retired block that nobody can still be touching. `stalled` carries what the previous attempt of the same
// wait saw of the readers, as triples (slot address, state, first seen ns), so that those that do not move are expelled.
bool TableCore::reclaim(SpaceHolders* holders, std::vector<std::uint64_t>* stalled) {
  Segments& segments = process_->segments();
  if (slots() && t_.retired.last != kNoRow && blocks_[t_.retired.last].retired_epoch == (segments.header().epoch.load(std::memory_order_relaxed) & kEpochMask)) {
    segments.header().epoch.fetch_add(1, std::memory_order_acq_rel);  // whoever enters from now on holds up none of them
  }
  const std::uint32_t processes = segments.header().processes_used.load(std::memory_order_acquire);
  std::uint64_t oldest = ~std::uint64_t{0};
  std::uint32_t reader_pid = 0;
  std::vector<std::uint64_t> seen;
  for (std::uint32_t i = 0; i < processes; ++i) {
    ProcessSlot& p = segments.process(i);
    const std::uint32_t used = p.readers_used.load(std::memory_order_acquire);
    for (std::uint32_t k = 0; k < used; ++k) {
      // acquire: pairs with the reader's leave; its copies come before the block's next use
      std::uint64_t state = p.readers[k].state.load(std::memory_order_acquire);
      if (state == 0 || state == kExpelled) continue;
      const auto address = reinterpret_cast<std::uint64_t>(&p.readers[k]);
      std::uint64_t since = now_ns();
      for (std::size_t s = 0; s + 2 < stalled->size(); s += 3) {
        if ((*stalled)[s] == address && (*stalled)[s + 1] == state) since = (*stalled)[s + 2];
      }
      const std::uint64_t waited = now_ns() - since;
      if (waited > kStallNs || (waited > 0 && !process_->alive(i, p.claim.load(std::memory_order_acquire)))) {
        FAILPOINT(expel_before);
        if (p.readers[k].state.compare_exchange_strong(state, kExpelled, std::memory_order_acq_rel)) {
          FAILPOINT(expel_after);
          continue;
        }
      }
      seen.insert(seen.end(), {address, state, since});
      if ((state & kEpochMask) < oldest) {
        oldest = state & kEpochMask;
        reader_pid = p.pid.load(std::memory_order_relaxed);
      }
    }
  }
  *stalled = std::move(seen);
  *holders = {};
  bool freed = tiered() && reclaim_frames(oldest);
  const bool saving = t_.retired.first != kNoRow && held_for_checkpoint();
  for (std::uint32_t b = t_.retired.first, after; b != kNoRow; b = after) {
    Block& block = blocks_[b];
    after = links_.after(b);
    std::uint32_t pid = 0;
    if ((block.pub.load(std::memory_order_acquire) & kReleased) == 0 && process_->alive(block.owner, block.owner_claim)) {
      ++holders->written;
      holders->process = segments.process(block.owner).pid.load(std::memory_order_relaxed);
    } else if (block.retired_epoch >= oldest) {
      ++holders->read;
      holders->process = reader_pid;
      if (slots()) break;  // nor do those that were retired later come free
    } else if (saving && held_born(block.birth)) {
      ++holders->saved;
      holders->process = segments.process(t_.hold.process).pid.load(std::memory_order_relaxed);
    } else if (pinned(b, &pid)) {
      ++holders->pinned;
      holders->process = pid;
    } else {
      take_back(b);
      freed = true;
    }
  }
  return freed;
}

// A retired block that nobody can still be touching comes free, with the blocks annexed to it.
void TableCore::take_back(std::uint32_t b) {
  FAILPOINT(reclaim_before);
  blocks_[b].state.store(kFree, std::memory_order_release);
  if (tiered()) free_place(b);
  links_.remove(t_.retired, b);
  links_.push(t_.free, b);
  for (std::uint32_t i = 1; i < ragged_.span(b); ++i) {
    FAILPOINT(reclaim_annexed);
    blocks_[b + i].state.store(kFree, std::memory_order_release);
    links_.push(t_.free, b + i);
  }
  FAILPOINT(reclaim_after);
}

// The first of so many adjacent free blocks, or kNoRow.
std::uint32_t TableCore::free_run(std::uint32_t blocks) const {
  if (blocks == 1) return t_.free.first;
  std::uint32_t run = 0;
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    run = blocks_[b].state.load(std::memory_order_relaxed) == kFree ? run + 1 : 0;
    if (run == blocks) return b + 1 - blocks;
  }
  return kNoRow;
}

// Crash: a span says nothing while its block is free, and whether a block is annexed follows from the spans of the others.
void TableCore::give(std::uint32_t b, std::uint32_t blocks, std::uint64_t writer) {
  Block& block = blocks_[b];
  ragged_.set_span(b, blocks);
  for (std::uint32_t i = 1; i < blocks; ++i) {
    blocks_[b + i].state.store(kAnnexed, std::memory_order_release);
    links_.remove(t_.free, b + i);
    FAILPOINT(open_annexed);
  }
  block.writer = writer;
  block.owner = process_->slot();
  block.owner_claim = process_->claim();
  block.folded.store(0, std::memory_order_relaxed);
  block.evicted.store(0, std::memory_order_relaxed);
  block.live = 0;
  block.retired_epoch = 0;
  block.birth = ++t_.births;
  block.generation.store((block.generation.load(std::memory_order_relaxed) + 1) & ((std::uint64_t{1} << 36) - 1), std::memory_order_relaxed);
  block.pub.store(0, std::memory_order_relaxed);
  if (queue_) queue_->opened(b);
  if (tiered()) give_place(b);
  FAILPOINT(open_before_state);
  block.state.store(kOpen, std::memory_order_release);
  FAILPOINT(open_after_state);
  links_.remove(t_.free, b);
  links_.push(t_.open, b);
  if (queue_) order_[t_.order_tail++ % t_.n_blocks] = b;
  active_[t_.active_count++] = b;
  FAILPOINT(open_ordered);
  t_.counters.blocks_opened.fetch_add(1, std::memory_order_relaxed);
}

// Whether evicting from the oldest on would free so many adjacent blocks at all. It would not where every block that holds
// rows is in the hands of a live writer or pinned: the table must not be drained for nothing.
bool TableCore::eviction_frees(std::uint32_t blocks) const {
  bool frees = false;
  const bool saving = held_for_checkpoint();
  const auto kept = [&](std::uint32_t b) {
    std::uint32_t pid;
    return (blocks_[b].pub.load(std::memory_order_acquire) & kReleased) == 0 || (saving && held_born(blocks_[b].birth)) || pinned(b, &pid);
  };
  std::uint32_t run = 0;
  if (blocks > 1) {
    for (std::uint32_t b = 0; b < t_.n_blocks && !frees; b += ragged_.span(b)) {  // an annexed block counts with its first
      const bool free = blocks_[b].state.load(std::memory_order_relaxed) == kFree;
      if (free) ragged_.set_span(b, 1);  // what it was in its last life
      run = !free && kept(b) ? 0 : run + ragged_.span(b);
      frees = run >= blocks;
    }
    return frees;
  }
  each_open_block(false, [&](std::uint32_t b) {
    frees = !kept(b);
    return !frees;
  });
  return frees;
}

std::uint32_t TableCore::open_block(std::uint64_t writer, std::uint32_t blocks, SpaceHolders* holders, std::vector<std::uint64_t>* stalled) {
  IndexLock lock(*this);
  FAILPOINT(open_locked);
  fold();
  std::uint32_t b = free_run(blocks);
  if (b == kNoRow && reclaim(holders, stalled)) b = free_run(blocks);
  if (b == kNoRow) {
    seal_dead(true);
    fold();
    retire_all_empty();
    if (reclaim(holders, stalled)) b = free_run(blocks);
  }
  const auto saved = [&](std::uint32_t held) {  // it is about to be written: that is waited for
    if (!held_for_checkpoint() || !held_born(blocks_[held].birth)) return false;
    ++holders->saved;
    holders->process = process_->segments().process(t_.hold.process).pid.load(std::memory_order_relaxed);
    return true;
  };
  if (b == kNoRow && t_.open.first != kNoRow && !slots()) saved(t_.open.first);
  // Room is short because of many open blocks, short blocks of writers that died, idle writers or short episodes. Evict
  // the oldest blocks before their time; the table then holds less than max_size, and a counter says so. Readers are
  // waited for (they leave or are expelled within milliseconds), and so is a pin on the oldest block: views of every
  // block must not drain the table. Pins elsewhere, and blocks that idle or stopped writers have not let go of, hold up
  // nobody.
  while (b == kNoRow && holders->read + holders->saved == 0 && t_.open.first != kNoRow && eviction_frees(blocks)) {
    const std::uint32_t next = slots() ? victim() : kNoRow;
    const std::uint32_t head = next != kNoRow ? next : t_.open.first;
    if (saved(head)) break;
    if (std::uint32_t pid; pinned(head, &pid)) {
      ++holders->pinned;
      holders->process = pid;
      break;
    }
    evict_block(head);
    if (reclaim(holders, stalled)) b = free_run(blocks);
  }
  for (std::uint32_t open = t_.open.first; blocks > 1 && b == kNoRow && open != kNoRow; open = links_.after(open)) {
    if ((blocks_[open].pub.load(std::memory_order_acquire) & kReleased) != 0) continue;  // else it parts what is free: for messages
    ++holders->written;
    holders->process = process_->segments().process(blocks_[open].owner).pid.load(std::memory_order_relaxed);
  }
  // A block without a place in memory is of no use: some other one has to go to disk first, which movers see to.
  if (b != kNoRow && blocks == 1 && lacks_frames(1) && (!reclaim(holders, stalled) || lacks_frames(1))) {
    ask_movers(1, holders);
    return kNoRow;
  }
  if (b != kNoRow) give(b, blocks, writer);
  else if (holders->saved > 0) break_stalled_hold();
  if (b != kNoRow) tell_movers();
  return b;
}

void TableCore::evict_block(std::uint32_t b) {
  Block& block = blocks_[b];
  const std::uint64_t before = t_.live_steps;
  const std::uint64_t pub = block.pub.fetch_or(kSealed, std::memory_order_acq_rel);
  const auto count = static_cast<std::uint32_t>(pub & kCountMask);
  if (const std::uint32_t folded = block.folded.load(std::memory_order_relaxed); folded < count) fold_rows(b, folded, count);
  drop_rows(b, count);
  t_.counters.evicted_early.fetch_add(before - t_.live_steps, std::memory_order_relaxed);
  retire(b);
}

void TableCore::clear() {
  process_->check();
  clear_locked();
  announce(t_.inserts_waiting, t_.inserts_signal);
}

void TableCore::clear_locked() {
  IndexLock lock(*this);
  FAILPOINT(clear_begin);
  fold();
  if (queue_) queue_->clear();
  while (!queue_ && t_.open.first != kNoRow) {
    const std::uint32_t b = t_.open.first;
    const std::uint64_t early = t_.counters.evicted_early.load(std::memory_order_relaxed);
    evict_block(b);
    t_.counters.evicted_early.store(early, std::memory_order_relaxed);
  }
  restart_counts();
  FAILPOINT(clear_end);
}

}  // namespace conduit
