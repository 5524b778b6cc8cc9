// A queue's rows on their way in; how they go out is in leases.cpp.
#include "queue.hpp"

#include <string.h>

#include <algorithm>
#include <limits>

#include "error.hpp"
#include "failpoints.hpp"

namespace conduit {
namespace {

std::int64_t oldest_allowed(std::int64_t version, std::int64_t staleness) {
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  return version < least + staleness ? least : version - staleness;
}

}  // namespace

QueueIndex::QueueIndex(TableCore& table)
    : table_(table), t_(table.t_), q_(*table.process().segments().control_at<QueueState>(t_.queue_offset)), slots_(std::uint64_t{t_.n_blocks} * t_.rows_per_block) {
  const Segments& s = table.process().segments();
  words_ = s.control_at<std::uint32_t>(q_.words_offset);
  stamps_ = s.control_at<std::uint64_t>(q_.stamps_offset);
  hints_ = s.control_at<std::uint32_t>(q_.hints_offset);
  done_ = s.control_at<std::uint32_t>(q_.done_offset);
  publications_ = s.control_at<Publication>(q_.publications_offset);
}

void QueueIndex::read(std::uint32_t slot, std::uint32_t column, void* to, std::uint64_t bytes) const {
  const std::uint32_t b = table_.block_of(slot);
  const Column& c = table_.columns()[column];
  table_.reach_disk([&] { memcpy(to, table_.block_data(b) + c.block_offset + (slot - b * t_.rows_per_block) * c.row_bytes, bytes); });
}

std::uint64_t QueueIndex::length(std::uint32_t slot, const LengthColumn& column) const {
  if (const Column& c = table_.columns()[column.column]; c.element_bytes > 0) {
    const std::uint32_t b = table_.block_of(slot);
    std::uint64_t elements = 0;
    table_.reach_disk([&] { elements = RaggedBlocks::length(table_.block_data(b), slot - b * t_.rows_per_block, c); });
    return elements;
  }
  std::uint64_t bits = 0;
  read(slot, column.column, &bits, column.bytes);
  // a negative length takes no room: its sign is the top bit of its own width
  return column.is_signed && (bits >> (column.bytes * 8 - 1)) != 0 ? 0 : bits;
}

bool QueueIndex::too_stale(std::uint32_t slot) const {
  std::int64_t version;
  read(slot, q_.version_column, &version, sizeof version);
  return version < oldest_allowed(q_.policy_version.load(std::memory_order_relaxed), q_.max_staleness);
}

bool QueueIndex::row_done(std::uint32_t slot) const {
  for (std::uint32_t g = 0; g < q_.groups; ++g) {
    if (words(g)[slot] != kAcked) return false;
  }
  return true;
}

bool QueueIndex::find(std::uint64_t key, std::uint32_t* slot) const {
  *slot = static_cast<std::uint32_t>(key & kSlotMask);
  if (*slot >= slots_) return false;
  const std::uint32_t b = table_.block_of(*slot);
  return block(b).generation.load(std::memory_order_relaxed) == key >> kSlotBits && block(b).state.load(std::memory_order_relaxed) == kOpen &&
         *slot - b * t_.rows_per_block < folded(b);
}

std::uint64_t QueueIndex::distance(std::uint32_t b) const {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t g = 0; g < q_.groups; ++g) {
    if (block(b).birth >= q_.cursor[g] && hints(g)[b] < folded(b)) least = std::min(least, block(b).birth - q_.cursor[g] + 1);
  }
  return least == std::numeric_limits<std::uint64_t>::max() ? 0 : least;
}

std::uint32_t QueueIndex::unacknowledged(std::uint32_t b) const { return folded(b) - done_[b]; }

// ---- in

void QueueIndex::opened(std::uint32_t b) {
  for (std::uint32_t g = 0; g < q_.groups; ++g) {
    std::fill_n(words(g) + b * t_.rows_per_block, t_.rows_per_block, kWaiting);
    hints(g)[b] = 0;
  }
  done_[b] = 0;
}

void QueueIndex::admit(std::uint32_t n, const std::int64_t* versions) const {
  if (q_.ended.load(std::memory_order_relaxed) != 0) {
    fail(ErrorCode::queue_ended, "queue '%.63s' has ended: nothing was appended. Create another queue for more rows", t_.name);
  }
  if (q_.max_staleness < 0 || versions == nullptr) return;
  const std::int64_t now = q_.policy_version.load(std::memory_order_relaxed), oldest = oldest_allowed(now, q_.max_staleness);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (versions[i] >= oldest) continue;
    fail(ErrorCode::stale_policy, "row %u of %u has policy version %lld, queue '%.63s' takes %lld and newer: the learner is at %lld and max_staleness is %lld. "
         "Nothing was appended: fetch newer weights", i, n, static_cast<long long>(versions[i]), t_.name, static_cast<long long>(oldest),
         static_cast<long long>(now), static_cast<long long>(q_.max_staleness));
  }
}

Admission QueueIndex::reserve(std::uint32_t n, const std::int64_t* versions, std::uint32_t blocks, std::uint32_t run, std::uint64_t writer,
                              std::vector<std::uint32_t>* out, SpaceHolders* holders, std::vector<std::uint64_t>* stalled) {
  bool dropped = false;
  const Admission admission = reserve_locked(n, versions, blocks, run, writer, out, holders, stalled, &dropped);
  if (dropped) announce_room();
  return admission;
}

bool QueueIndex::full(std::uint32_t n, bool* dropped) {
  if (t_.live_steps + n <= t_.max_size) return false;
  const std::uint64_t live = t_.live_steps;
  for (std::uint32_t g = 0; g < q_.groups; ++g) {
    if (q_.grouped[g] == 0) purge(g);
  }
  *dropped = t_.live_steps != live;
  return t_.live_steps + n > t_.max_size;
}

Admission QueueIndex::reserve_locked(std::uint32_t n, const std::int64_t* versions, std::uint32_t blocks, std::uint32_t run, std::uint64_t writer,
                                     std::vector<std::uint32_t>* out, SpaceHolders* holders, std::vector<std::uint64_t>* stalled, bool* dropped) {
  IndexLock lock(table_);
  FAILPOINT(queue_reserved);
  admit(n, versions);
  if (full(n, dropped)) return Admission::full;
  const std::uint32_t frames = run > 1 ? 0 : blocks;
  const auto short_of = [&] { return (run > 1 ? table_.free_run(run) == kNoRow : t_.free.count < blocks) || table_.lacks_frames(frames); };
  if (short_of()) table_.reclaim(holders, stalled);
  if (short_of()) {
    table_.seal_dead(true);
    retire_done();
    table_.reclaim(holders, stalled);
  }
  if (table_.lacks_frames(frames)) table_.ask_movers(static_cast<std::uint32_t>(out->size()) + frames, holders);
  if (short_of()) return Admission::blocked;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const std::uint32_t b = table_.free_run(run);
    table_.give(b, run, writer);
    out->push_back(b);
  }
  table_.tell_movers();
  return Admission::ok;
}

Admission QueueIndex::publish(const std::vector<Placed>& pieces, std::uint32_t n, const std::int64_t* versions) {
  bool dropped = false;
  const Admission admission = publish_locked(pieces, n, versions, &dropped);
  if (dropped) announce_room();
  return admission;
}

Admission QueueIndex::publish_locked(const std::vector<Placed>& pieces, std::uint32_t n, const std::int64_t* versions, bool* dropped) {
  IndexLock lock(table_);
  FAILPOINT(queue_locked);
  for (const Placed& piece : pieces) {  // whoever seals holds the lock: blocks that are open now stay so
    if ((block(piece.block).pub.load(std::memory_order_relaxed) & kSealed) != 0) return Admission::sealed;
  }
  admit(n, versions);
  if (full(n, dropped)) return Admission::full;
  q_.stamp = std::max(q_.stamp + 1, now_ns());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Placed& piece = pieces[i];
    std::fill_n(stamps_ + piece.block * t_.rows_per_block + piece.row, piece.n, q_.stamp);
    publications_[i] = {piece.block, piece.row + piece.n};
  }
  keep_order();
  q_.publications_used.store(static_cast<std::uint32_t>(pieces.size()), std::memory_order_release);
  keep_order();
  FAILPOINT(queue_noted);
  complete_publications();
  t_.live_steps += n;
  for (std::uint32_t g = 0; g < q_.groups; ++g) q_.waiting[g] += n;
  t_.counters.steps_folded.fetch_add(n, std::memory_order_relaxed);
  q_.rows_progress.fetch_add(1, std::memory_order_seq_cst);
  FAILPOINT(queue_published);
  return Admission::ok;
}

void QueueIndex::complete_publications() {
  for (std::uint32_t i = 0; i < q_.publications_used.load(std::memory_order_acquire); ++i) {
    const auto [b, count] = publications_[i];
    std::atomic<std::uint64_t>& pub = block(b).pub;
    const std::uint64_t published = pub.load(std::memory_order_relaxed) & kCountMask;
    if (published < count) pub.fetch_add(count - published, std::memory_order_acq_rel);
    block(b).folded.store(count, std::memory_order_release);
    if (i == 0) FAILPOINT(queue_halfway);
  }
  keep_order();
  q_.publications_used.store(0, std::memory_order_release);
}

void QueueIndex::end() {
  {
    IndexLock lock(table_);
    q_.ended.store(1, std::memory_order_release);
  }
  announce_rows();
  announce_room();
}

void QueueIndex::raise_version(std::int64_t version) {
  {
    IndexLock lock(table_);
    const std::int64_t now = q_.policy_version.load(std::memory_order_relaxed);
    if (version < now) {
      fail(ErrorCode::config, "policy version %lld is below %lld, which queue '%.63s' has: versions only grow", static_cast<long long>(version),
           static_cast<long long>(now), t_.name);
    }
    q_.policy_version.store(version, std::memory_order_release);
  }
  announce_room();  // writers that wait may hold rows that are too old now
}

void QueueIndex::announce_rows() {
  q_.rows_progress.fetch_add(1, std::memory_order_seq_cst);
  announce(t_.rows_waiting, t_.rows_signal);
}

void QueueIndex::announce_room() {
  q_.room_progress.fetch_add(1, std::memory_order_seq_cst);
  announce(t_.space_waiting, t_.space_signal);
}

}  // namespace conduit
