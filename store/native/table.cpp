// Attaching to a table, and the operations on its index that are neither folding, eviction nor drawing.
#include "table.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "error.hpp"
#include "failpoints.hpp"
#include "queue.hpp"
#include "tier.hpp"

namespace conduit {

TableCore::TableCore(std::shared_ptr<Process> process, std::uint32_t index)
    : process_(std::move(process)), index_(index), t_(process_->segments().table(index)) {
  const Segments& s = process_->segments();
  columns_ = s.control_at<Column>(t_.columns_offset);
  blocks_ = s.control_at<Block>(t_.blocks_offset);
  flags_ = s.control_at<std::uint8_t>(t_.flags_offset);
  prev_ = t_.links != 0 ? s.control_at<std::uint32_t>(t_.prev_offset) : nullptr;
  next_ = t_.links != 0 ? s.control_at<std::uint32_t>(t_.next_offset) : nullptr;
  steps_ = t_.steps_offset != 0 ? s.control_at<std::uint32_t>(t_.steps_offset) : nullptr;
  runs_ = t_.runs_offset != 0 ? s.control_at<std::uint8_t>(t_.runs_offset) : nullptr;
  uses_ = t_.uses_offset != 0 ? s.control_at<std::uint32_t>(t_.uses_offset) : nullptr;
  readings_ = s.control_at<Readings>(t_.readings_offset);
  tallies_ = t_.tallies_offset != 0 ? s.control_at<Tally>(t_.tallies_offset) : nullptr;
  active_ = s.control_at<std::uint32_t>(t_.active_offset);
  links_ = BlockLinks(s.control_at<BlockLink>(t_.links_offset));
  victims_ = victims_of(s, t_);
  order_ = t_.order_offset != 0 ? s.control_at<std::uint32_t>(t_.order_offset) : nullptr;
  data_ = s.data() + t_.data_offset;
  places_ = t_.places_offset != 0 ? s.control_at<std::uint32_t>(t_.places_offset) : nullptr;
  frames_ = s.control_at<Frame>(t_.frames_offset);
  heat_ = s.control_at<std::uint32_t>(t_.heat_offset);
  sums_ = s.control_at<std::uint32_t>(t_.sums_offset);
  losses_told_.store(t_.tier.losses.load(std::memory_order_relaxed), std::memory_order_relaxed);
  ragged_ = RaggedBlocks(s, t_, columns_);
  shift_ = kSlotBits + static_cast<unsigned>(std::bit_width(t_.rows_per_block - 1u));
  reciprocal_ = ((std::uint64_t{1} << shift_) + t_.rows_per_block - 1) / t_.rows_per_block;
  for (std::uint32_t v = 0; v < t_.n_views; ++v) views_.emplace_back(s, t_, v);
  if (t_.queue_offset != 0) queue_ = std::make_unique<QueueIndex>(*this);
}

TableCore::~TableCore() { delete cache_.load(); }

bool TableCore::live(std::uint64_t key, std::uint32_t* slot) const {
  *slot = static_cast<std::uint32_t>(key & kSlotMask);
  const std::uint32_t b = *slot / t_.rows_per_block, row = *slot % t_.rows_per_block;
  if (b >= t_.n_blocks) return false;
  const Block& block = blocks_[b];
  return block.generation.load(std::memory_order_relaxed) == key >> kSlotBits && block.state.load(std::memory_order_relaxed) == kOpen &&
         row >= block.evicted.load(std::memory_order_relaxed) && row < block.folded.load(std::memory_order_relaxed) && !used_up(*slot);
}

bool TableCore::folded_row(std::uint32_t slot) const {
  const Block& block = blocks_[block_of(slot)];
  const std::uint32_t row = slot % t_.rows_per_block;
  return block.state.load(std::memory_order_relaxed) == kOpen && row >= block.evicted.load(std::memory_order_relaxed) &&
         row < block.folded.load(std::memory_order_relaxed);
}

UpdateCount TableCore::update(std::uint32_t v, const std::uint64_t* keys, const float* priorities, std::uint64_t n) {
  process_->check();
  const std::uint64_t began = now_ns();
  ViewIndex& view = views_[v];
  UpdateCount count{0, 0};
  std::vector<LineRange> lines(std::min<std::uint64_t>(n, kJournalEntries));
  std::vector<std::uint32_t> slots(lines.size());
  std::vector<double> leaf(lines.size());
  {
    IndexLock lock(*this);
    FAILPOINT(update_locked);
    fold();  // rows that appends have pushed out are gone, whether or not anybody has drawn since
    for (std::uint64_t start = 0; start < n; start += kJournalEntries) {
      const std::uint64_t end = std::min<std::uint64_t>(n, start + kJournalEntries);
      std::uint32_t used = 0;
      for (std::uint64_t i = start; i < end; ++i) {
        std::uint32_t slot;
        const bool hit = live(keys[i], &slot);
        slots[i - start] = hit ? slot : kNoRow;
        if (hit) lines[used++] = {slot / kFanOut, slot / kFanOut};
      }
      count.applied += used;
      count.stale += end - start - used;
      view.masses(priorities + start, leaf.data(), static_cast<std::uint32_t>(end - start));
      journal(lines.data(), used);
      double* leaves = view.leaves();
      double change = 0.0;
      for (std::uint64_t i = start; i < end; ++i) {
        const std::uint32_t slot = slots[i - start];
        if (slot == kNoRow) continue;
        const float before = view.ready(slot) ? view.raw(slot) : -1.0f;
        view.change_raw(slot, priorities[i]);
        FAILPOINT(tree_raw_written);
        if (!view.ready(slot)) continue;  // its leaf waits for its successor
        const double mass = view.drawn(slot) ? 0.0 : leaf[i - start];
        change += std::abs(mass - leaves[slot]);
        leaves[slot] = mass;
        view.extreme_changed(slot, before);
        if (victims_.used() && v == t_.remover_view) victims_.changed(slot);
      }
      FAILPOINT(tree_leaves_written);
      view.refresh_sums(lines.data(), used);
      view.moved(change, end - start);
      journal_done();
    }
    FAILPOINT(update_done);
  }
  announce(t_.rows_waiting, t_.rows_signal);  // a table whose priorities were all zero can be drawn from now
  t_.counters.updated.fetch_add(count.applied, std::memory_order_relaxed);
  t_.counters.stale_updates.fetch_add(count.stale, std::memory_order_relaxed);
  const std::uint64_t ended = now_ns();
  t_.counters.update_ns.fetch_add(ended - began, std::memory_order_relaxed);
  span(Stage::update, n, began, ended);
  return count;
}

void TableCore::touch_all() const {
  for (const ViewIndex& view : views_) view.touched();
}

bool TableCore::drawable() const {
  return std::any_of(views_.begin(), views_.end(), [&](const ViewIndex& view) {
    return view.total() > 0.0 || (view.marked() && t_.live_steps > 0);  // the next epoch has rows
  });
}

std::uint64_t TableCore::steps() {
  process_->check();
  IndexLock lock(*this);
  fold();
  return t_.live_steps;
}

void TableCore::count_reading(std::uint64_t rows) const {
  Readings& mine = readings_[process_->slot()];
  if (const std::uint32_t claim = process_->claim(); mine.claim.load(std::memory_order_relaxed) != claim) {
    mine.batches.store(0, std::memory_order_relaxed);
    mine.rows.store(0, std::memory_order_relaxed);
    mine.claim.store(claim, std::memory_order_relaxed);
  }
  mine.batches.fetch_add(1, std::memory_order_relaxed);
  mine.rows.fetch_add(rows, std::memory_order_relaxed);
  mine.last_ns.store(now_ns(), std::memory_order_relaxed);
}

TableInfo TableCore::info(std::uint32_t v) {
  process_->check();
  const Counters& c = t_.counters;
  TableInfo info{};
  info.max_priority = 1.0f;
  {
    IndexLock lock(*this);
    seal_dead();
    fold();
    info.live_steps = t_.live_steps;
    if (v < n_views()) {
      info.total = views_[v].total();
      info.max_priority = views_[v].prioritized() ? views_[v].extremes().largest : 1.0f;
      info.epoch = views_[v].marked() ? views_[v].shared().epoch : 0;
    }
    if (t_.limiter == kSampleToInsert) return_reserved_by_dead();
    info.limiter = limiter_state();
    for (std::uint32_t i = 0; i < (slots() ? t_.active_count : t_.n_blocks); ++i) {
      const Block& block = blocks_[slots() ? active_[i] : i];
      if (block.state.load(std::memory_order_relaxed) != kOpen || (block.pub.load() & (kSealed | kReleased)) != 0) continue;
      ++info.open_writers;
      const std::uint32_t owner = process_->segments().process(block.owner).pid.load();
      const auto same = std::find_if(info.writers.begin(), info.writers.end(), [&](const WriterInfo& w) { return w.pid == owner; });
      if (same == info.writers.end()) info.writers.push_back({owner, 1});
      else ++same->blocks;
    }
  }
  // The rest is read without the lock: numbers for people, each right at some moment of the call.
  info.steps_folded = c.steps_folded.load();
  info.steps_evicted = c.steps_evicted.load();
  info.evicted_early = c.evicted_early.load();
  info.sampled_rows = c.sampled_rows.load();
  info.sampled_batches = c.sampled_batches.load();
  info.updated = c.updated.load();
  info.stale_updates = c.stale_updates.load();
  info.discarded_batches = c.discarded_batches.load();
  info.recoveries = c.recoveries.load();
  info.blocks_opened = c.blocks_opened.load();
  info.draw_ns = c.draw_ns.load();
  info.gather_ns = c.gather_ns.load();
  info.sample_wait_ns = c.sample_wait_ns.load();
  info.fold_ns = c.fold_ns.load();
  info.append_ns = c.append_ns.load();
  info.append_wait_ns = c.append_wait_ns.load();
  info.append_calls = c.append_calls.load();
  info.update_ns = c.update_ns.load();
  info.used_up = c.used_up.load();
  info.limited_append_ns = c.limited_append_ns.load();
  info.limited_sample_ns = c.limited_sample_ns.load();
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    const std::uint32_t state = blocks_[b].state.load();
    std::uint32_t pid;
    info.blocks_open += state == kOpen || state == kAnnexed;
    info.blocks_free += state == kFree;
    info.blocks_retired += state == kRetired;
    info.blocks_pinned += !slots() && pinned(b, &pid);
  }
  const std::uint64_t now = now_ns();
  const Header& header = process_->segments().header();
  for (std::uint32_t i = 0; i < header.processes_used.load(std::memory_order_acquire); ++i) {
    const Readings& r = readings_[i];
    const std::uint32_t claim = r.claim.load(), pid = process_->segments().process(i).pid.load();
    if (r.batches.load() == 0 || !process_->alive(i, claim)) continue;
    info.readers.push_back({pid, r.batches.load(), r.rows.load(), now - std::min(now, r.last_ns.load())});
  }
  for (std::uint32_t slot = 0; slot < t_.n_blocks * t_.rows_per_block; ++slot) info.ready_rows += v < n_views() && views_[v].ready(slot);
  return info;
}

std::uint32_t TableCore::pin_block(std::uint32_t b, std::uint32_t* first, std::uint32_t* last, std::uint64_t* generation) {
  process_->check();
  if (slots()) fail(ErrorCode::config, "table '%s' keeps rows one by one: it has no blocks to look into without a copy. Use table.rows(keys)", t_.name);
  IndexLock lock(*this);
  FAILPOINT(pin_locked);
  fold();
  const bool open = b < t_.n_blocks && blocks_[b].state.load() == kOpen;
  *first = open ? blocks_[b].evicted.load() : 0;
  *last = open ? blocks_[b].folded.load() : 0;
  if (*first >= *last) fail(ErrorCode::stale, "block %u of table '%s' holds no live row: table.blocks() lists those that do", b, t_.name);
  *generation = blocks_[b].generation.load();
  const std::uint32_t entry = process_->pin(index_, b);
  FAILPOINT(pin_written);
  return entry;
}

std::vector<std::uint32_t> TableCore::live_blocks() {
  process_->check();
  IndexLock lock(*this);
  fold();
  std::vector<std::uint32_t> live;
  each_open_block(false, [&](std::uint32_t b) {
    if (blocks_[b].evicted.load() < blocks_[b].folded.load()) live.push_back(b);
    return true;
  });
  return live;
}

std::vector<float> TableCore::priorities(std::uint32_t v, const std::uint64_t* keys, std::uint64_t n) {
  process_->check();
  std::vector<float> found(n, std::numeric_limits<float>::quiet_NaN());
  IndexLock lock(*this);
  fold();
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint32_t slot;
    if (live(keys[i], &slot)) found[i] = views_[v].prioritized() ? views_[v].raw(slot) : 1.0f;
  }
  return found;
}

void TableCore::links(const std::uint64_t* keys, std::uint64_t n, std::vector<std::uint8_t>* live, std::vector<std::uint8_t>* flags, std::vector<std::uint64_t>* next,
                      std::vector<std::uint32_t>* steps) {
  process_->check();
  live->assign(n, 0);
  flags->assign(n, 0);
  next->assign(n, kNoKey);
  steps->assign(steps_ != nullptr ? n : 0, 0);
  IndexLock lock(*this);
  fold();
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint32_t slot;
    if (!this->live(keys[i], &slot)) continue;
    (*live)[i] = 1;
    (*flags)[i] = flag(slot);
    if (steps_ != nullptr) (*steps)[i] = step(slot);
    const std::uint32_t after = t_.links != 0 ? this->next(slot) : kNoRow;
    if (after != kNoRow) (*next)[i] = key_of(after);
  }
}

}  // namespace conduit
