// A queue's rows on their way out: found, leased, acknowledged, and back again when a lease ends.
#include <string.h>

#include <algorithm>
#include <limits>

#include "error.hpp"
#include "failpoints.hpp"
#include "queue.hpp"

namespace conduit {

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
