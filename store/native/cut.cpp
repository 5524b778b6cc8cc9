#include "cut.hpp"

#include <string.h>

#include <algorithm>
#include <type_traits>

#include "error.hpp"
#include "failpoints.hpp"
#include "queue.hpp"
#include "scalars.hpp"

namespace conduit {
namespace {

// Tables whose writers publish without the lock are folded again until nothing came in between: what one process wrote into
// two of them is then cut at one moment. A bound, for writers that leave no gap: beyond it the cuts lie microseconds apart.
constexpr int kMostFolds = 1000;

template <class T>
void copy_words(const T* from, std::vector<T>& to) {
  // Under the index lock these change only in rows that are not published yet, and those are no part of the cut.
  memcpy(static_cast<void*>(to.data()), static_cast<const void*>(from), to.size() * sizeof(T));
}

}  // namespace

Cut::Cut(std::shared_ptr<Process> process, std::vector<std::shared_ptr<TableCore>> tables) : process_(std::move(process)), forks_(process_->forks()) {
  process_->check();
  forks_ = process_->forks();
  for (auto& core : tables) tables_.push_back({std::move(core), {}, {}});
  take_claim();
  try {
    for (OfTable& table : tables_) prepare(table);
    take(false);
    FAILPOINT(cut_copying);
    for (OfTable& table : tables_) copy_priorities(table);
    if (!finish_priorities()) take(true);
  } catch (...) {
    close();
    throw;
  }
}

// What can be done before the locks are taken: folding what is due, and touching the memory that is copied into.
void Cut::prepare(OfTable& table) const {
  TableCore& core = *table.core;
  const std::size_t slots = std::size_t{core.t_.n_blocks} * core.t_.rows_per_block;
  for (std::uint32_t v = 0; v < core.n_views(); ++v) {
    if (core.views_[v].prioritized()) table.copies.raw[v].resize(slots);
    if (core.views_[v].marked()) table.copies.marks[v].resize(slots);
  }
  if (core.uses_ != nullptr) table.copies.uses.resize(slots);
  if (core.queue_) table.copies.words.resize(slots * core.queue_->state().groups);
  table.copies.numbers.resize(core.t_.n_columns);
  for (std::uint32_t c = 0; c < core.t_.n_columns; ++c) {
    if (core.columns()[c].changes != 0) table.copies.numbers[c].resize(slots * core.columns()[c].row_bytes);
  }
  table.saved.blocks.reserve(core.t_.n_blocks);
  IndexLock lock(core);
  core.fold();
}

void Cut::take(bool copy_all) {
  std::vector<std::unique_ptr<IndexLock>> locks;
  for (OfTable& table : tables_) locks.push_back(std::make_unique<IndexLock>(*table.core));
  const std::uint64_t began = now_ns();
  FAILPOINT(cut_locked);
  fold_all();
  for (OfTable& table : tables_) copy(table, copy_all);
  for (OfTable& table : tables_) {
    Hold& hold = table.core->t_.hold;
    hold.low.store(kNoHold, std::memory_order_relaxed);  // while the others change
    hold.process = process_->slot();
    hold.claim = process_->claim();
    hold.high = table.saved.births;
    hold.since.store(0, std::memory_order_relaxed);
    hold.low.store(table.saved.blocks.empty() || table.saved.blocks[0].birth == 0 ? kNoHold : table.saved.blocks[0].birth, std::memory_order_release);
    UndoLog& undo = table.core->t_.undo;
    undo.used = 0;
    undo.on = !copy_all && table.core->t_.undo_offset != 0;
  }
  FAILPOINT(cut_held);
  locked_ns_ = std::max(locked_ns_, now_ns() - began);
}

// Without the lock: a priority that changes meanwhile is read as it was or as it is, and put right from the log.
void Cut::copy_priorities(OfTable& table) const {
  for (std::uint32_t v = 0; v < table.core->n_views(); ++v) {
    std::vector<float>& to = table.copies.raw[v];
    for (std::size_t slot = 0; slot < to.size(); ++slot) to[slot] = table.core->views_[v].raw(static_cast<std::uint32_t>(slot));
  }
}

// False: some table's priorities were changed too often.
bool Cut::finish_priorities() {
  bool whole = true;
  for (OfTable& table : tables_) {
    Table& t = table.core->t_;
    if (t.undo_offset == 0) continue;
    std::vector<Undo> log;
    {
      IndexLock lock(*table.core);
      const Undo* entries = process_->segments().control_at<Undo>(t.undo_offset);
      whole = whole && t.undo.on != 0 && t.undo.used <= t.undos;
      log.assign(entries, entries + std::min(t.undo.used, t.undos));
      t.undo.on = 0;
    }
    // Newest first: what stays is the oldest value, that of the cut.
    for (auto entry = log.rbegin(); entry != log.rend(); ++entry) table.copies.raw[entry->view][entry->slot] = entry->raw;
  }
  return whole;
}

// One checkpoint of a store at a time: there is one hold a table.
void Cut::take_claim() {
  std::atomic<std::uint64_t>& word = process_->segments().header().checkpoint;
  const std::uint64_t ours = std::uint64_t{process_->slot() + 1} << 32 | process_->claim();
  for (std::uint64_t found = word.load(std::memory_order_acquire);;) {
    const auto slot = static_cast<std::uint32_t>(found >> 32) - 1, claim = static_cast<std::uint32_t>(found);
    if (found != 0 && process_->alive(slot, claim)) {
      fail(ErrorCode::checkpoint_busy, "process %u is taking a checkpoint of store '%.63s': one at a time. Wait until it is done; if it is stopped, continue it or kill it",
           process_->segments().process(slot).pid.load(std::memory_order_relaxed), process_->segments().header().name);
    }
    if (word.compare_exchange_strong(found, ours, std::memory_order_acq_rel)) break;
  }
  claim_ = ours;
}

void Cut::fold_all() {
  for (int round = 0; round < kMostFolds; ++round) {
    for (OfTable& table : tables_) table.core->fold();
    const bool same = std::all_of(tables_.begin(), tables_.end(), [](const OfTable& table) {
      const TableCore& core = *table.core;
      return core.queue_ || std::all_of(core.active_, core.active_ + core.t_.active_count, [&](std::uint32_t b) {
        const Block& block = core.blocks_[b];
        return (block.pub.load(std::memory_order_acquire) & kCountMask) == block.folded.load(std::memory_order_relaxed);
      });
    });
    if (same || tables_.size() < 2) return;
  }
}

void Cut::copy(OfTable& table, bool copy_all) const {
  const TableCore& core = *table.core;
  const Table& t = core.t_;
  SavedTable& s = table.saved;
  s.blocks.clear();
  s.streams.clear();
  s.rows = 0;
  s.settings = core.settings();
  s.births = t.births;
  s.writers = t.writers.load(std::memory_order_relaxed);
  if (t.limiter == kSampleToInsert) {
    const LimiterState limiter = core.limiter_state();
    s.samples = limiter.samples - limiter.reserved;  // what is on its way to a reader was not delivered
  }
  const Counters& c = t.counters;
  s.steps_folded = c.steps_folded.load();
  s.evicted_early = c.evicted_early.load();
  s.sampled_rows = c.sampled_rows.load();
  s.sampled_batches = c.sampled_batches.load();
  s.updated = c.updated.load();
  s.stale_updates = c.stale_updates.load();
  s.discarded_batches = c.discarded_batches.load();
  s.blocks_opened = c.blocks_opened.load();
  s.used_up = c.used_up.load();
  const auto note = [&](std::uint32_t b, bool open) {
    const Block& block = core.blocks_[b];
    const std::uint32_t count = open ? block.folded.load(std::memory_order_relaxed) : 0;
    const std::uint32_t first = open ? std::min(count, block.evicted.load(std::memory_order_relaxed)) : 0;
    const bool sealed = open && (block.pub.load(std::memory_order_relaxed) & kSealed) != 0;
    s.blocks.push_back({b, first, count, sealed, block.generation.load(std::memory_order_relaxed), open ? block.birth : 0, open ? block.writer : 0});
    s.rows += count - first;
  };
  for (const BlockList* list : {&t.open, &t.free, &t.retired}) {
    for (std::uint32_t b = list->first; b != kNoRow; b = core.links_.after(b)) note(b, list == &t.open);
  }
  for (std::uint32_t b = 0; b < t.n_blocks; ++b) {
    if (core.blocks_[b].state.load(std::memory_order_relaxed) == kAnnexed) note(b, false);
  }
  for (std::uint32_t v = 0; v < core.n_views(); ++v) {
    const View& view = t.views[v];
    s.epochs[v] = view.epoch;
    s.batches[v] = view.batches;
    if (copy_all && core.views_[v].prioritized()) copy_words(process_->segments().control_at<float>(view.raw_offset), table.copies.raw[v]);
    if (core.views_[v].marked()) copy_words(process_->segments().control_at<std::uint32_t>(view.drawn_offset), table.copies.marks[v]);
  }
  if (core.uses_ != nullptr) copy_words(core.uses_, table.copies.uses);
  core.reach_disk([&] {
    for (std::uint32_t k = 0; k < t.n_columns; ++k) {
      const Column& column = core.columns()[k];
      std::vector<std::byte>& to = table.copies.numbers[k];
      for (const SavedBlock& block : s.blocks) {
        if (to.empty()) break;
        if (block.birth == 0) continue;
        const std::uint64_t first = (std::uint64_t{block.block} * t.rows_per_block + block.first) * column.row_bytes;
        copy_scalars(core.block_data(block.block) + column.block_offset + block.first * column.row_bytes, block.count - block.first, column.row_bytes, to.data() + first);
      }
    }
  });
  for (const StreamCount& count : t.stream_counts) {
    const std::uint64_t name = count.name.load(std::memory_order_acquire);
    if (name != 0) s.streams.push_back({static_cast<std::uint32_t>(name >> 32) - 1, static_cast<std::uint32_t>(name), count.delivered.load(std::memory_order_relaxed)});
  }
  if (!core.queue_) return;
  const QueueState& q = core.queue_->q_;
  copy_words(core.queue_->words_, table.copies.words);
  s.queue.now_ns = now_ns();
  s.queue.stamp = q.stamp;
  s.queue.fences = q.fences;
  s.queue.policy_version = q.policy_version.load(std::memory_order_relaxed);
  s.queue.ended = q.ended.load(std::memory_order_relaxed) != 0;
  std::copy_n(q.grouped, kGroups, s.queue.grouped);
  std::copy_n(q.counters, kGroups, s.queue.counters);
}

std::uint64_t Cut::width(std::uint32_t i, RowPart part, std::uint32_t which) const {
  return part == RowPart::number ? tables_[i].core->columns()[which].row_bytes : bytes_of(part);
}

bool Cut::keeps(std::uint32_t i, RowPart part, std::uint32_t which) const {
  const OfTable& table = tables_[i];
  const TableCore& core = *table.core;
  switch (part) {
    case RowPart::flags: return true;
    case RowPart::previous: return core.t_.links != 0;
    case RowPart::step: return core.steps_ != nullptr;
    case RowPart::raw: return which < kMaxViews && !table.copies.raw[which].empty();
    case RowPart::mark: return which < kMaxViews && !table.copies.marks[which].empty();
    case RowPart::uses: return core.uses_ != nullptr;
    case RowPart::word: return core.queue_ && which < core.queue_->q_.groups;
    case RowPart::stamp: return core.queue_ != nullptr;
    case RowPart::number: return which < core.t_.n_columns && !table.copies.numbers[which].empty();
  }
  return false;
}

void Cut::fill(std::uint32_t i, RowPart part, std::uint32_t which, std::size_t from, std::size_t to, std::byte* out) const {
  const OfTable& table = tables_[i];
  const TableCore& core = *table.core;
  const std::uint32_t rows_per_block = core.t_.rows_per_block;
  const std::uint64_t slots = std::uint64_t{rows_per_block} * core.t_.n_blocks;
  const auto each = [&](auto value) {
    auto* at = reinterpret_cast<decltype(value(std::uint32_t{}))*>(out);
    for (std::size_t k = from; k < to; ++k) {
      const SavedBlock& block = table.saved.blocks[k];
      for (std::uint32_t row = block.first; row < block.count; ++row) *at++ = value(block.block * rows_per_block + row);
    }
  };
  const auto copy = [&](const auto& copied) {
    auto* at = reinterpret_cast<std::remove_cvref_t<decltype(*copied.data())>*>(out);
    for (std::size_t k = from; k < to; ++k) {
      const SavedBlock& block = table.saved.blocks[k];
      at = std::copy_n(copied.data() + std::size_t{block.block} * rows_per_block + block.first, block.count - block.first, at);
    }
  };
  switch (part) {
    case RowPart::flags: return each([&](std::uint32_t slot) { return static_cast<std::uint8_t>(core.flag(slot) & kWritten); });
    case RowPart::previous: return each([&](std::uint32_t slot) { return core.prev(slot); });
    case RowPart::step: return each([&](std::uint32_t slot) { return core.step(slot); });
    case RowPart::raw: return copy(table.copies.raw[which]);
    case RowPart::mark: return copy(table.copies.marks[which]);
    case RowPart::uses: return copy(table.copies.uses);
    case RowPart::word: return each([&](std::uint32_t slot) {  // what was out waits again
      const std::uint32_t word = table.copies.words[which * slots + slot];
      return word == kWaiting || word == kAcked ? word : kAgain;
    });
    case RowPart::stamp: return each([&](std::uint32_t slot) { return core.queue_->stamp(slot); });
    case RowPart::number: {
      const std::uint64_t bytes = width(i, part, which);
      for (std::size_t k = from; k < to; ++k) {
        const SavedBlock& block = table.saved.blocks[k];
        const std::uint64_t size = (block.count - block.first) * bytes;
        memcpy(out, table.copies.numbers[which].data() + (std::uint64_t{block.block} * rows_per_block + block.first) * bytes, size);
        out += size;
      }
      return;
    }
  }
}

void Cut::gather(std::uint32_t i, std::uint32_t column, std::size_t from, std::size_t to, std::byte* out) const {
  const OfTable& table = tables_[i];
  const Column& c = table.core->columns()[column];
  for (std::size_t k = from; k < to; ++k) {
    const SavedBlock& block = table.saved.blocks[k];
    const std::size_t bytes = (block.count - block.first) * c.row_bytes;
    const Unpacked unpacked(*table.core);
    const std::byte* at = table.core->block_data(block.block) + c.block_offset + block.first * c.row_bytes;
    if (c.changes != 0) copy_scalars(at, block.count - block.first, c.row_bytes, out);
    else memcpy(out, at, bytes);
    out += bytes;
  }
}

void Cut::written(std::uint32_t i, std::uint64_t birth) {
  if (claim_ == 0 || forks_ != process_->forks()) return;
  Table& t = tables_[i].core->t_;
  std::uint64_t low = t.hold.low.load(std::memory_order_relaxed);
  // release: our reads of those blocks come before their reuse
  while (low < birth + 1 && !t.hold.low.compare_exchange_weak(low, birth + 1, std::memory_order_release, std::memory_order_relaxed)) {
  }
  announce(t.space_waiting, t.space_signal);
  going_on();
}

void Cut::going_on() {
  if (claim_ == 0 || forks_ != process_->forks()) return;
  for (OfTable& table : tables_) {
    Table& t = table.core->t_;
    t.hold.since.store(0, std::memory_order_relaxed);
    if (t.hold.low.load(std::memory_order_acquire) != kHoldBroken) continue;
    fail(ErrorCode::checkpoint_lapsed, "the checkpoint stood still for seconds while writers of table '%s' waited for blocks that it had yet to write: they have taken "
         "them, and it is given up. Those that were there before are as they were. Take it again", t.name);
  }
}

void Cut::close() {
  if (claim_ == 0 || forks_ != process_->forks()) return;  // in a forked child it is the parent's
  for (OfTable& table : tables_) {
    Hold& hold = table.core->t_.hold;
    if (hold.process != process_->slot() || hold.claim != process_->claim()) continue;
    hold.low.store(kNoHold, std::memory_order_release);
    announce(table.core->t_.space_waiting, table.core->t_.space_signal);
  }
  FAILPOINT(cut_released);
  process_->segments().header().checkpoint.store(0, std::memory_order_release);
  claim_ = 0;
}

}  // namespace conduit
