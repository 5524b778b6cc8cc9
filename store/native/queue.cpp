// A queue's rows on their way in, and what becomes of them: delivered, acknowledged, returned.
#include "queue.hpp"

#include <string.h>

#include <algorithm>
#include <limits>

#include "error.hpp"
#include "failpoints.hpp"

namespace conduit {
namespace {

// Only this thread's death matters: whoever then takes the robust lock sees a killed thread's stores in program order. It is
// the compiler that must not move them.
void keep_order() { std::atomic_signal_fence(std::memory_order_seq_cst); }

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

// ---- out

// The first block in the order whose birth is at least `birth`.
std::uint64_t QueueIndex::first_at(std::uint64_t birth) const {
  std::uint64_t low = t_.order_head, high = t_.order_tail;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (block(ordered(middle)).birth < birth) low = middle + 1;
    else high = middle;
  }
  return low;
}

Found QueueIndex::collect(std::uint32_t group, const Demand& demand) {
  Found found;
  const std::uint32_t* word = words(group);
  bool passed = true;  // nothing waits before here, nor will
  for (std::uint64_t i = first_at(q_.cursor[group]); i < t_.order_tail; ++i) {
    const std::uint32_t b = ordered(i), base = b * t_.rows_per_block, end = folded(b);
    std::uint32_t row = hints(group)[b];
    while (row < end && !free_word(word[base + row])) ++row;
    hints(group)[b] = row;
    passed = passed && row == end && closed(b);
    if (passed) q_.cursor[group] = block(b).birth + 1;
    for (; row < end; ++row) {
      const std::uint32_t slot = base + row;
      if (!free_word(word[slot])) continue;
      if (demand.max_tokens > 0) {
        const std::uint64_t tokens = length(slot, demand.tokens);
        if (tokens > demand.max_tokens - found.tokens) {
          if (found.slots.empty()) {
            found.too_large = table_.key_of(slot);
            found.too_large_tokens = tokens;
          }
          found.full = true;
          return found;
        }
        found.tokens += tokens;
      }
      found.slots.push_back(slot);
      if (found.slots.size() == demand.rows) {
        found.full = true;
        return found;
      }
    }
  }
  return found;
}

void QueueIndex::purge(std::uint32_t group) {
  const std::int64_t version = q_.policy_version.load(std::memory_order_acquire);
  if (q_.max_staleness < 0 || q_.purged[group] == version) return;
  std::vector<std::uint32_t> stale;
  for (std::uint64_t i = t_.order_head; i < t_.order_tail; ++i) {
    const std::uint32_t base = ordered(i) * t_.rows_per_block;
    for (std::uint32_t slot = base; slot < base + folded(ordered(i)); ++slot) {
      if (waits(group, slot) && too_stale(slot)) stale.push_back(slot);
    }
  }
  if (!stale.empty()) acknowledge(group, stale, &QueueCounters::stale_rows);
  q_.purged[group] = version;
}

LeaseName QueueIndex::lease(std::uint32_t group, const std::vector<std::uint32_t>& slots, std::uint64_t now) {
  std::uint32_t at = q_.lease_cursor;
  for (std::uint32_t tried = 0; q_.leases[at].fence != 0; at = (at + 1) % kLeases) {
    if (++tried == kLeases) fail(ErrorCode::busy, "queue '%.63s' has %u deliveries out, its limit: acknowledge or release batches before taking more", t_.name, kLeases);
  }
  q_.lease_cursor = (at + 1) % kLeases;
  Lease& lease = q_.leases[at];
  lease.began_ns = now;
  lease.deadline_ns = now + q_.lease_timeout_ns;
  lease.process = table_.process().slot();
  lease.claim = table_.process().claim();
  lease.group = group;
  lease.rows = static_cast<std::uint32_t>(slots.size());
  lease.first_birth = std::numeric_limits<std::uint64_t>::max();
  lease.last_birth = 0;
  std::uint32_t b = kNoRow;
  for (const std::uint32_t slot : slots) {
    if (b != kNoRow && slot - b * t_.rows_per_block < t_.rows_per_block) continue;
    b = table_.block_of(slot);
    lease.first_birth = std::min(lease.first_birth, block(b).birth);
    lease.last_birth = std::max(lease.last_birth, block(b).birth);
  }
  const std::uint64_t fence = ++q_.fences;
  keep_order();
  FAILPOINT(lease_written);
  std::atomic_ref(lease.fence).store(fence, std::memory_order_release);
  keep_order();
  std::uint32_t* word = words(group);
  std::uint64_t again = 0;
  for (const std::uint32_t slot : slots) {
    again += word[slot] == kAgain;
    word[slot] = at + 1;
    FAILPOINT(lease_row);
  }
  ++q_.leases_active;
  q_.leases_used = std::max(q_.leases_used, at + 1);
  q_.next_deadline_ns = std::min(q_.next_deadline_ns, lease.deadline_ns);
  q_.waiting[group] -= slots.size();
  q_.leased[group] += slots.size();
  q_.counters[group].delivered += slots.size();
  q_.counters[group].redelivered += again;
  FAILPOINT(lease_made);
  return {at, fence};
}

void QueueIndex::acknowledge(std::uint32_t group, const std::vector<std::uint32_t>& slots, std::uint64_t QueueCounters::* counter) {
  std::uint32_t* word = words(group);
  for (const std::uint32_t slot : slots) {
    word[slot] |= kMarked;
    FAILPOINT(ack_row_marked);
  }
  keep_order();
  FAILPOINT(ack_marked);
  q_.acking.store(1, std::memory_order_release);
  keep_order();
  FAILPOINT(ack_decided);
  std::uint64_t done = 0;
  for (const std::uint32_t slot : slots) {
    if (word[slot] == kAcked) continue;  // named twice
    const std::uint32_t before = word[slot] & ~kMarked;
    word[slot] = kAcked;
    FAILPOINT(ack_row);
    q_.counters[group].*counter += 1;
    if (free_word(before)) {
      --q_.waiting[group];
    } else {
      --q_.leased[group];
      Lease& lease = q_.leases[before - 1];
      if (--lease.rows == 0) {
        std::atomic_ref(lease.fence).store(0, std::memory_order_release);
        --q_.leases_active;
      }
    }
    if (!row_done(slot)) continue;
    ++done_[table_.block_of(slot)];
    ++done;
  }
  keep_order();
  q_.acking.store(0, std::memory_order_release);
  keep_order();
  FAILPOINT(ack_done);
  if (done == 0) return;
  t_.live_steps -= done;
  t_.counters.steps_evicted.fetch_add(done, std::memory_order_relaxed);
  std::uint32_t settled = kNoRow;
  for (const std::uint32_t slot : slots) {
    const std::uint32_t b = table_.block_of(slot);
    if (b != settled && block(b).state.load(std::memory_order_relaxed) == kOpen) settle(b);
    settled = b;
  }
  q_.room_progress.fetch_add(1, std::memory_order_seq_cst);
}

// Rows of the block have become done: those at its front are gone from views, and the block goes when all are.
void QueueIndex::settle(std::uint32_t b) {
  std::uint32_t evicted = block(b).evicted.load(std::memory_order_relaxed);
  while (evicted < folded(b) && row_done(b * t_.rows_per_block + evicted)) ++evicted;
  block(b).evicted.store(evicted, std::memory_order_release);
  if (done_[b] == folded(b) && closed(b)) table_.retire(b);
}

void QueueIndex::end_lease(std::uint32_t index) {
  Lease& lease = q_.leases[index];
  const std::uint32_t group = lease.group;
  FAILPOINT(return_begin);
  std::uint32_t* word = words(group);
  for (std::uint64_t i = first_at(lease.first_birth); i < t_.order_tail && block(ordered(i)).birth <= lease.last_birth; ++i) {
    const std::uint32_t b = ordered(i), base = b * t_.rows_per_block;
    for (std::uint32_t row = 0; row < folded(b); ++row) {
      if (word[base + row] != index + 1) continue;
      word[base + row] = kAgain;
      FAILPOINT(return_row);
      hints(group)[b] = std::min(hints(group)[b], row);
      q_.cursor[group] = std::min(q_.cursor[group], block(b).birth);
      ++q_.waiting[group];
      --q_.leased[group];
    }
  }
  ++q_.returns[group];
  q_.purged[group] = std::numeric_limits<std::int64_t>::min();  // rows that were out were not looked at
  keep_order();
  // Whoever still copies these rows looks at the fence after it has shown itself in an epoch: see Delivery::copy.
  std::atomic_ref(lease.fence).store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  lease.rows = 0;
  --q_.leases_active;
  q_.rows_progress.fetch_add(1, std::memory_order_seq_cst);
  FAILPOINT(return_done);
}

void QueueIndex::end_lost(std::uint64_t now, bool processes) {
  std::vector<std::pair<std::uint64_t, bool>> seen;  // process and claim, alive
  const auto alive = [&](const Lease& lease) {
    const std::uint64_t who = std::uint64_t{lease.process} << 32 | lease.claim;
    for (const auto& [other, lives] : seen) {
      if (other == who) return lives;
    }
    seen.emplace_back(who, table_.process().alive(lease.process, lease.claim));
    return seen.back().second;
  };
  std::uint64_t next = std::numeric_limits<std::uint64_t>::max();
  for (std::uint32_t i = 0; i < q_.leases_used; ++i) {
    const Lease& lease = q_.leases[i];
    if (lease.fence == 0) continue;
    if (lease.deadline_ns <= now) {
      ++q_.expired_leases;
      end_lease(i);
    } else if (processes && !alive(lease)) {
      ++q_.orphaned_leases;
      end_lease(i);
    } else {
      next = std::min(next, lease.deadline_ns);
    }
  }
  q_.next_deadline_ns = next;
}

void QueueIndex::end_own() {
  if (table_.process().inherited()) return;  // they are the parent's
  bool any = false;
  {
    IndexLock lock(table_);
    for (std::uint32_t i = 0; i < q_.leases_used; ++i) {
      const Lease& lease = q_.leases[i];
      if (lease.fence == 0 || lease.process != table_.process().slot() || lease.claim != table_.process().claim()) continue;
      ++q_.released_leases;
      end_lease(i);
      any = true;
    }
  }
  if (any) announce_rows();
}

}  // namespace conduit
