// Putting a table back as a checkpoint saw it: the ground truth is written where it was, and what is derived from it comes
// about by folding every row again, oldest first, as a recovery would. Numbers come from a file: each is checked before it is
// used as a place.
#include <algorithm>

#include "cut.hpp"
#include "error.hpp"
#include "queue.hpp"
#include "table.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kMostGenerations = std::uint64_t{1} << 36;

StreamCount* find_stream(Table& t, std::uint32_t view, std::uint32_t stream, bool make) {
  const std::uint64_t name = std::uint64_t{view + 1} << 32 | stream;
  std::uint64_t at = (name * 0x9e3779b97f4a7c15ull) >> 40;
  for (std::uint32_t tries = 0; tries < kStreams; ++tries, ++at) {
    StreamCount& count = t.stream_counts[at % kStreams];
    std::uint64_t found = count.name.load(std::memory_order_acquire);
    if (found == 0) {
      if (!make) return nullptr;
      if (count.name.compare_exchange_strong(found, name, std::memory_order_acq_rel)) return &count;
    }
    if (found == name) return &count;
  }
  return nullptr;
}

}  // namespace

std::uint64_t TableCore::stream_first(std::uint32_t view, std::uint32_t stream) const {
  const StreamCount* count = find_stream(t_, view, stream, false);
  return count == nullptr ? 0 : count->first.load(std::memory_order_acquire);
}

// A table that has seen more streams than it remembers forgets the later ones.
void TableCore::delivered(std::uint32_t view, std::uint32_t stream, std::uint64_t next) const {
  StreamCount* count = find_stream(t_, view, stream, true);
  if (count == nullptr) return;
  std::uint64_t before = count->delivered.load(std::memory_order_relaxed);
  while (before < next && !count->delivered.compare_exchange_weak(before, next, std::memory_order_relaxed)) {
  }
}

// They get the new writer's number: full blocks of the old one are sealed as a dead writer's when room is short, which ends the
// chains of everything that has its number.
void TableCore::take_over(std::uint64_t writer, std::vector<std::uint32_t>* blocks) {
  IndexLock lock(*this);
  bool more = false;
  std::uint64_t old = 0;
  each_open_block(false, [&](std::uint32_t b) {
    const std::uint64_t pub = blocks_[b].pub.load(std::memory_order_relaxed);
    if ((pub & (kSealed | kReleased)) != kReleased) return true;
    if (blocks->empty()) old = blocks_[b].writer;
    else if (blocks_[b].writer != old || (pub & kCountMask) != 0) more = true;
    if (blocks->empty() || (blocks_[b].writer == old && (pub & kCountMask) == 0)) blocks->push_back(b);
    return true;
  });
  for (const std::uint32_t b : *blocks) {
    blocks_[b].writer = writer;
    blocks_[b].owner = process_->slot();
    blocks_[b].owner_claim = process_->claim();
    blocks_[b].pub.fetch_and(~kReleased, std::memory_order_acq_rel);
  }
  if (!more) t_.left_open.store(0, std::memory_order_relaxed);
}

void TableCore::check_saved(const SavedTable& s) const {
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) fail(ErrorCode::damaged, "what the checkpoint says of table '%s' cannot be: %s", t_.name, what);
  };
  const std::uint32_t n_slots = t_.n_blocks * t_.rows_per_block;
  std::vector<std::uint64_t> births(t_.n_blocks, ~std::uint64_t{0});
  std::uint64_t rows = 0, last = 0;
  bool open = true;
  expect(s.blocks.size() == t_.n_blocks, "it has another number of blocks");
  for (const SavedBlock& block : s.blocks) {
    expect(block.block < t_.n_blocks && births[block.block] == ~std::uint64_t{0}, "a block is not there, or named twice");
    births[block.block] = block.birth;
    expect(block.first <= block.count && block.count <= t_.rows_per_block, "a block has more rows than it can");
    expect(block.generation < kMostGenerations, "a generation is too large");
    expect(block.birth == 0 ? block.count == 0 : open && block.birth > last && block.birth <= s.births, "blocks are not in order of birth");
    expect(!slots() || block.first == 0, "a single row is half gone");
    open = open && block.birth != 0;
    last = std::max(last, block.birth);
    rows += block.count - block.first;
  }
  expect(rows == s.rows, "another number of rows");
  for (const SavedBlock& block : s.blocks) {
    if (ragged_.n() == 0 || block.birth == 0) continue;
    // Of a block whose rows have all left nothing was saved, and nothing will be read.
    bool sound = block.first == block.count;
    if (!sound) reach_disk([&] { sound = ragged_.sound(block.block, block_data(block.block), block.first, block.count); });
    expect(block.sealed != 0 && sound, "rows of a block lie outside of it");
    for (std::uint32_t i = 1; i < ragged_.span(block.block); ++i) expect(births[block.block + i] == 0, "a block lies within another");
  }
  if (t_.links == 0) return;
  const std::uint32_t* previous = s.previous;
  for (const SavedBlock& block : s.blocks) {
    for (std::uint32_t row = block.first; row < block.count; ++row) {
      const std::uint32_t slot = block.block * t_.rows_per_block + row, p = *previous++;
      // No row comes before itself: a chain that ran in a circle would be followed for ever.
      expect(p == kNoRow || (p < n_slots && (block_of(p) != block.block || p < slot)), "a row follows one that cannot be its predecessor");
    }
  }
}

void TableCore::put_rows(const SavedTable& s) {
  std::uint64_t i = 0;
  for (const SavedBlock& saved : s.blocks) {
    Block& block = blocks_[saved.block];
    block.generation.store(saved.generation, std::memory_order_relaxed);
    if (saved.birth == 0) continue;
    block.birth = saved.birth;
    block.writer = saved.writer;
    block.owner = 0;
    block.owner_claim = 0;  // nobody's: claims begin at 1
    block.evicted.store(saved.first, std::memory_order_relaxed);
    block.folded.store(saved.first, std::memory_order_relaxed);
    block.pub.store(saved.count | kReleased | (saved.sealed != 0 ? kSealed : 0), std::memory_order_relaxed);
    block.state.store(kOpen, std::memory_order_release);
    if (queue_) queue_->opened(saved.block);
    const std::uint32_t slot = saved.block * t_.rows_per_block + saved.first, n = saved.count - saved.first;
    std::transform(s.flags + i, s.flags + i + n, flags_ + slot, [](std::uint8_t flags) { return static_cast<std::uint8_t>(flags & kWritten); });
    if (t_.links != 0) {
      std::copy_n(s.previous + i, n, prev_ + slot);
      std::fill_n(next_ + slot, n, kNoRow);
    }
    if (steps_ != nullptr) std::copy_n(s.steps + i, n, steps_ + slot);
    if (uses_ != nullptr) std::copy_n(s.uses + i, n, uses_ + slot);
    for (std::uint32_t v = 0; v < n_views(); ++v) {
      const Segments& segments = process_->segments();
      if (views_[v].prioritized()) std::copy_n(s.raw[v] + i, n, segments.control_at<float>(t_.views[v].raw_offset) + slot);
      if (views_[v].marked()) std::copy_n(s.marks[v] + i, n, segments.control_at<std::uint32_t>(t_.views[v].drawn_offset) + slot);
    }
    i += n;
  }
}

void TableCore::restore(const SavedTable& s) {
  process_->check();
  IndexLock lock(*this);
  if (t_.births != 0) fail(ErrorCode::config, "table '%s' has held rows: a checkpoint is restored into a table that never has", t_.name);
  check_saved(s);
  t_.settings[0] = s.settings;
  t_.settings_now = 0;
  put_rows(s);
  t_.births = s.births;
  t_.writers.store(s.writers);
  for (std::uint32_t v = 0; v < n_views(); ++v) {
    views_[v].shared().epoch = std::max(s.epochs[v], std::uint32_t{1});
    views_[v].shared().batches = s.batches[v];
  }
  if (queue_) queue_->restore(s);
  recover();  // the lists
  fold();     // links, readiness, leaves
  for (std::uint32_t b = 0; t_.links != 0 && b < t_.n_blocks; ++b) {  // writers are gone
    if (blocks_[b].state.load(std::memory_order_relaxed) == kOpen) finish_chains(b);
  }
  if (uses_ != nullptr || std::any_of(views_.begin(), views_.end(), [](const ViewIndex& view) { return view.marked(); })) {
    for (ViewIndex& view : views_) view.shared().rebuild = 1;
    recover();  // rows that have been drawn in this epoch, or used up, have no leaf, nor do the last ones of chains
  }
  t_.free = {kNoRow, kNoRow, 0};
  std::uint32_t left_open = 0;
  for (const SavedBlock& saved : s.blocks) {
    if (blocks_[saved.block].state.load(std::memory_order_relaxed) == kFree) links_.push(t_.free, saved.block);
    left_open += saved.birth != 0 && saved.sealed == 0;
  }
  t_.left_open.store(left_open, std::memory_order_relaxed);
  restore_counts(s);
}

void TableCore::restore_counts(const SavedTable& s) {
  if (s.steps_folded < t_.live_steps || s.steps_folded < s.settings.inserts_before) fail(ErrorCode::damaged, "table '%s' holds more rows than were ever appended", t_.name);
  Counters& c = t_.counters;
  c.steps_folded.store(s.steps_folded);
  c.steps_evicted.store(s.steps_folded - t_.live_steps);
  c.evicted_early.store(s.evicted_early);
  c.sampled_rows.store(s.sampled_rows);
  c.sampled_batches.store(s.sampled_batches);
  c.updated.store(s.updated);
  c.stale_updates.store(s.stale_updates);
  c.discarded_batches.store(s.discarded_batches);
  c.blocks_opened.store(s.blocks_opened);
  c.used_up.store(s.used_up);
  c.recoveries.store(0);
  for (const SavedStream& saved : s.streams) {
    StreamCount* count = saved.view < kMaxViews ? find_stream(t_, saved.view, saved.stream, true) : nullptr;
    if (count == nullptr) continue;
    count->first.store(saved.delivered, std::memory_order_release);
    count->delivered.store(saved.delivered, std::memory_order_relaxed);
  }
  if (t_.limiter != kSampleToInsert) return;
  Tally& tally = tallies_[process_->slot()];
  const std::uint64_t era = s.settings.era << kTallyBits;
  tally.claim.store(process_->claim(), std::memory_order_relaxed);
  tally.delivered.store(era | (s.samples & kTallyMask), std::memory_order_relaxed);
  tally.returned.store(era, std::memory_order_relaxed);
  tally.taken.store(era | (s.samples & kTallyMask), std::memory_order_release);
}

// What was delivered and not acknowledged waits again. Ages of rows go on: the clock that stamps are read from may have begun
// anew since.
void QueueIndex::restore(const SavedTable& s) {
  q_.stamp = s.queue.stamp;
  q_.fences = s.queue.fences;
  q_.policy_version.store(s.queue.policy_version, std::memory_order_relaxed);
  q_.ended.store(s.queue.ended, std::memory_order_relaxed);
  std::copy_n(s.queue.grouped, kGroups, q_.grouped);
  std::copy_n(s.queue.counters, kGroups, q_.counters);
  const std::uint64_t least = s.rows == 0 ? s.queue.stamp : *std::min_element(s.stamps, s.stamps + s.rows);
  std::uint64_t shift = now_ns() - s.queue.now_ns;  // modulo 2^64: backwards too
  if (static_cast<std::int64_t>(least + shift) < 1) shift = 1 - least;
  std::uint64_t i = 0, newest = 0;
  for (const SavedBlock& saved : s.blocks) {
    const std::uint32_t base = saved.block * t_.rows_per_block;
    for (std::uint32_t g = 0; saved.birth != 0 && g < q_.groups; ++g) std::fill_n(words(g) + base, saved.first, kAcked);
    for (std::uint32_t row = saved.first; row < saved.count; ++row, ++i) {
      stamps_[base + row] = s.stamps[i] + shift;
      newest = std::max(newest, stamps_[base + row]);
      for (std::uint32_t g = 0; g < q_.groups; ++g) {
        const std::uint32_t word = s.words[g][i];
        words(g)[base + row] = word == kWaiting || word == kAcked ? word : kAgain;
      }
    }
  }
  q_.stamp = std::max(newest, now_ns());
}

}  // namespace conduit
