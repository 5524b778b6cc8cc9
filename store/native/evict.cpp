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
  if (t_.order_head == t_.order_tail) return false;
  const std::uint32_t b = order_[t_.order_head % t_.n_blocks];
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
  while (t_.live_steps > t_.max_size && evict_head(t_.live_steps - t_.max_size)) {
  }
  FAILPOINT(evict_end);
}

void TableCore::retire(std::uint32_t b) {
  Block& block = blocks_[b];
  FAILPOINT(retire_before);
  // Readers that entered at this epoch or before may still be copying from the block.
  block.retired_epoch = process_->segments().header().epoch.fetch_add(1, std::memory_order_acq_rel) & kEpochMask;
  block.state.store(kRetired, std::memory_order_release);
  FAILPOINT(retire_after);
  // Nearly always the first. Of a queue, and where rows are used up, whichever is done: those before it move up.
  std::uint64_t at = t_.order_head;
  while (order_[at % t_.n_blocks] != b) ++at;
  for (; at > t_.order_head; --at) order_[at % t_.n_blocks] = order_[(at - 1) % t_.n_blocks];
  ++t_.order_head;
  for (std::uint32_t i = 0; i < t_.active_count; ++i) {
    if (active_[i] != b) continue;
    std::copy(active_ + i + 1, active_ + t_.active_count, active_ + i);
    --t_.active_count;
    break;
  }
}

// Seals the open blocks of processes that are gone, at what they had published.
void TableCore::seal_dead() {
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    Block& block = blocks_[b];
    if (block.state.load(std::memory_order_relaxed) != kOpen) continue;
    // Not kReleased: a writer that died between two blocks has released all of them, and its chains still want finishing.
    if ((block.pub.load(std::memory_order_acquire) & kCut) != 0 || process_->alive(block.owner, block.owner_claim)) continue;
    block.pub.fetch_or(kSealed | kReleased | kCut, std::memory_order_acq_rel);
    FAILPOINT(open_sealed_dead);
    // A block that was force-sealed earlier may already have left the active list without its chains being finished.
    if (std::find(active_, active_ + t_.active_count, b) == active_ + t_.active_count && t_.links != 0) finish_chains_of(block.writer);
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
  bool freed = false;
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    Block& block = blocks_[b];
    if (block.state.load(std::memory_order_relaxed) != kRetired) continue;
    std::uint32_t pid = 0;
    if ((block.pub.load(std::memory_order_acquire) & kReleased) == 0 && process_->alive(block.owner, block.owner_claim)) {
      ++holders->written;
      holders->process = segments.process(block.owner).pid.load(std::memory_order_relaxed);
    } else if (block.retired_epoch >= oldest) {
      ++holders->read;
      holders->process = reader_pid;
    } else if (pinned(b, &pid)) {
      ++holders->pinned;
      holders->process = pid;
    } else {
      FAILPOINT(reclaim_before);
      block.state.store(kFree, std::memory_order_release);
      FAILPOINT(reclaim_after);
      freed = true;
    }
  }
  return freed;
}

std::uint32_t TableCore::find_free() {
  for (std::uint32_t i = 0; i < t_.n_blocks; ++i) {
    const std::uint32_t b = (t_.free_cursor + i) % t_.n_blocks;
    if (blocks_[b].state.load(std::memory_order_relaxed) != kFree) continue;
    t_.free_cursor = (b + 1) % t_.n_blocks;
    return b;
  }
  return kNoRow;
}

void TableCore::give(std::uint32_t b, std::uint64_t writer) {
  Block& block = blocks_[b];
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
  FAILPOINT(open_before_state);
  block.state.store(kOpen, std::memory_order_release);
  FAILPOINT(open_after_state);
  order_[t_.order_tail++ % t_.n_blocks] = b;
  active_[t_.active_count++] = b;
  FAILPOINT(open_ordered);
  t_.counters.blocks_opened.fetch_add(1, std::memory_order_relaxed);
}

// Whether evicting from the oldest on would free a block at all. It would not where every block that holds rows is in the
// hands of a live writer or pinned: the table must not be drained for nothing.
bool TableCore::eviction_frees() const {
  for (std::uint64_t i = t_.order_head; i < t_.order_tail; ++i) {
    const std::uint32_t b = order_[i % t_.n_blocks];
    std::uint32_t pid;
    if ((blocks_[b].pub.load(std::memory_order_acquire) & kReleased) != 0 && !pinned(b, &pid)) return true;
  }
  return false;
}

std::uint32_t TableCore::open_block(std::uint64_t writer, SpaceHolders* holders, std::vector<std::uint64_t>* stalled) {
  IndexLock lock(*this);
  FAILPOINT(open_locked);
  fold();
  std::uint32_t b = find_free();
  if (b == kNoRow && reclaim(holders, stalled)) b = find_free();
  if (b == kNoRow) {
    seal_dead();
    fold();
    retire_all_empty();
    if (reclaim(holders, stalled)) b = find_free();
  }
  // Room is short because of many open blocks, short blocks of writers that died, idle writers or short episodes. Evict
  // the oldest blocks before their time; the table then holds less than max_size, and a counter says so. Readers are
  // waited for (they leave or are expelled within milliseconds), and so is a pin on the oldest block: views of every
  // block must not drain the table. Pins elsewhere, and blocks that idle or stopped writers have not let go of, hold up
  // nobody.
  while (b == kNoRow && holders->read == 0 && t_.order_head != t_.order_tail && eviction_frees()) {
    const std::uint32_t head = order_[t_.order_head % t_.n_blocks];
    if (std::uint32_t pid; pinned(head, &pid)) {
      ++holders->pinned;
      holders->process = pid;
      break;
    }
    evict_block(head);
    if (reclaim(holders, stalled)) b = find_free();
  }
  if (b != kNoRow) give(b, writer);
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
  while (!queue_ && t_.order_head != t_.order_tail) {
    const std::uint32_t b = order_[t_.order_head % t_.n_blocks];
    const std::uint64_t early = t_.counters.evicted_early.load(std::memory_order_relaxed);
    evict_block(b);
    t_.counters.evicted_early.store(early, std::memory_order_relaxed);
  }
  restart_counts();
  FAILPOINT(clear_end);
}

}  // namespace conduit
