// A queue's creation, its recovery from the ground truth, and the check that both agree.
#include <algorithm>
#include <limits>

#include "failpoints.hpp"
#include "queue.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kAlign = 64;

// Lays the parts of a queue out after its state; returns the bytes of all.
std::uint64_t lay_out(std::uint32_t groups, std::uint32_t n_blocks, std::uint64_t slots, std::uint64_t offset, QueueState* q) {
  std::uint64_t at = offset + sizeof(QueueState);
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t from = (at + kAlign - 1) / kAlign * kAlign;
    at = from + bytes;
    return from;
  };
  const std::uint64_t words = take(groups * slots * sizeof(std::uint32_t)), stamps = take(slots * sizeof(std::uint64_t));
  const std::uint64_t hints = take(std::uint64_t{groups} * n_blocks * sizeof(std::uint32_t)), done = take(n_blocks * sizeof(std::uint32_t));
  const std::uint64_t publications = take(n_blocks * sizeof(Publication));
  if (q != nullptr) {
    q->words_offset = words;
    q->stamps_offset = stamps;
    q->hints_offset = hints;
    q->done_offset = done;
    q->publications_offset = publications;
  }
  return at - offset;
}

}  // namespace

std::uint64_t QueueIndex::bytes(std::uint32_t groups, std::uint32_t n_blocks, std::uint64_t slots) { return lay_out(groups, n_blocks, slots, 0, nullptr); }

void QueueIndex::fill(const QueueSpec& spec, std::uint32_t n_blocks, std::uint32_t rows_per_block, std::uint64_t offset, const Segments& segments) {
  QueueState& q = *segments.control_at<QueueState>(offset);
  lay_out(spec.groups, n_blocks, std::uint64_t{n_blocks} * rows_per_block, offset, &q);
  q.groups = spec.groups;
  q.lease_timeout_ns = spec.lease_timeout_ns;
  q.max_staleness = spec.max_staleness;
  q.version_column = spec.version_column;
  q.next_deadline_ns = std::numeric_limits<std::uint64_t>::max();
  std::fill_n(q.purged, kGroups, std::numeric_limits<std::int64_t>::min());
}

// Everything that is derived, from words, publications and leases. Idempotent: whoever dies in here is followed by another.
void QueueIndex::recover() {
  complete_publications();
  const bool acking = q_.acking.load(std::memory_order_acquire) != 0;
  std::uint32_t active = 0;
  for (std::uint32_t i = 0; i < kLeases; ++i) {
    q_.leases[i].rows = 0;
    q_.fences = std::max(q_.fences, q_.leases[i].fence);
  }
  std::fill_n(q_.waiting, kGroups, 0);
  std::fill_n(q_.leased, kGroups, 0);
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    done_[b] = 0;
    if (block(b).state.load(std::memory_order_relaxed) != kOpen) continue;
    const auto count = static_cast<std::uint32_t>(block(b).pub.load(std::memory_order_acquire) & kCountMask);
    block(b).folded.store(count, std::memory_order_release);
    for (std::uint32_t slot = b * t_.rows_per_block; slot < b * t_.rows_per_block + count; ++slot) {
      q_.stamp = std::max(q_.stamp, stamps_[slot]);
      for (std::uint32_t g = 0; g < q_.groups; ++g) {
        std::uint32_t& word = words(g)[slot];
        if (word != kAcked && (word & kMarked) != 0) word = acking ? kAcked : word & ~kMarked;
        if (word != kAcked && !free_word(word) && q_.leases[word - 1].fence == 0) word = kAgain;
        if (word == kAcked) continue;
        if (free_word(word)) {
          ++q_.waiting[g];
        } else {
          ++q_.leased[g];
          ++q_.leases[word - 1].rows;
        }
      }
      done_[b] += row_done(slot);
    }
    for (std::uint32_t g = 0; g < q_.groups; ++g) hints(g)[b] = 0;
    std::uint32_t evicted = 0;
    while (evicted < count && row_done(b * t_.rows_per_block + evicted)) ++evicted;
    block(b).evicted.store(evicted, std::memory_order_release);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  q_.acking.store(0, std::memory_order_release);
  for (std::uint32_t i = 0; i < kLeases; ++i) {
    if (q_.leases[i].fence == 0) continue;
    if (q_.leases[i].rows == 0) {
      std::atomic_ref(q_.leases[i].fence).store(0, std::memory_order_release);
    } else {
      ++active;
      q_.leases_used = std::max(q_.leases_used, i + 1);
    }
  }
  q_.leases_active = active;
  q_.lease_cursor %= kLeases;
  q_.next_deadline_ns = 0;  // the next look finds the right one
  for (std::uint32_t g = 0; g < q_.groups; ++g) {
    q_.cursor[g] = 0;
    ++q_.returns[g];
    q_.purged[g] = std::numeric_limits<std::int64_t>::min();
  }
  q_.rows_progress.fetch_add(1, std::memory_order_seq_cst);
  q_.room_progress.fetch_add(1, std::memory_order_seq_cst);
}

void QueueIndex::retire_done() {
  std::vector<std::uint32_t> done;
  for (std::uint64_t i = t_.order_head; i < t_.order_tail; ++i) {
    if (done_[ordered(i)] == folded(ordered(i)) && closed(ordered(i))) done.push_back(ordered(i));
  }
  for (const std::uint32_t b : done) table_.retire(b);
}

// Every row goes, those that are out too. Crash: blocks that are still open keep their rows.
void QueueIndex::clear() {
  for (std::uint32_t i = 0; i < q_.leases_used; ++i) std::atomic_ref(q_.leases[i].fence).store(0, std::memory_order_release);
  q_.leases_active = 0;
  std::fill_n(q_.waiting, kGroups, 0);
  std::fill_n(q_.leased, kGroups, 0);
  while (t_.order_head != t_.order_tail) {
    const std::uint32_t b = ordered(t_.order_head);
    block(b).pub.fetch_or(kSealed, std::memory_order_acq_rel);
    const std::uint32_t rows = unacknowledged(b);
    t_.live_steps -= rows;
    t_.counters.steps_evicted.fetch_add(rows, std::memory_order_relaxed);
    table_.retire(b);
  }
  for (std::uint32_t g = 0; g < q_.groups; ++g) ++q_.returns[g];
  q_.room_progress.fetch_add(1, std::memory_order_seq_cst);
}

std::vector<std::string> QueueIndex::verify() const {
  std::vector<std::string> wrong;
  const auto expect = [&](bool holds, const std::string& what) {
    if (!holds && wrong.size() < 20) wrong.push_back(what);
  };
  const auto same = [&](std::uint64_t counted, std::uint64_t noted, const std::string& what) {
    expect(counted == noted, what + " " + std::to_string(noted) + ", recount " + std::to_string(counted));
  };
  expect(q_.publications_used.load() == 0, "an append is half published at rest");
  expect(q_.acking.load() == 0, "an acknowledgement is half done at rest");
  std::uint64_t live = 0, open = 0, waiting[kGroups] = {}, leased[kGroups] = {};
  std::vector<std::uint64_t> of_lease(kLeases, 0);
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    if (block(b).state.load() != kOpen) continue;
    ++open;
    const std::string name = "block " + std::to_string(b) + ": ";
    same(block(b).pub.load() & kCountMask, folded(b), name + "folded rows");
    std::uint32_t done = 0, front = 0;
    for (std::uint32_t row = 0; row < t_.rows_per_block; ++row) {
      const std::uint32_t slot = b * t_.rows_per_block + row;
      for (std::uint32_t g = 0; g < q_.groups; ++g) {
        const std::uint32_t word = words(g)[slot];
        if (row >= folded(b)) {
          expect(word == kWaiting, "slot " + std::to_string(slot) + " holds no row and was delivered");
          continue;
        }
        if (word == kAcked) continue;
        expect((word & kMarked) == 0, "slot " + std::to_string(slot) + " is marked at rest");
        if (free_word(word)) {
          ++waiting[g];
          expect(row >= hints(g)[b] && block(b).birth >= q_.cursor[g], "slot " + std::to_string(slot) + " waits where nobody looks");
        } else if (word <= kLeases) {
          ++leased[g];
          ++of_lease[word - 1];
          const Lease& lease = q_.leases[word - 1];
          expect(lease.fence != 0 && lease.group == g, "slot " + std::to_string(slot) + " is out with a lease that has ended");
          expect(lease.first_birth <= block(b).birth && block(b).birth <= lease.last_birth, "slot " + std::to_string(slot) + " is outside its lease's blocks");
        }
      }
      if (row < folded(b) && row_done(slot)) {
        ++done;
        front += front == row;
      }
    }
    live += folded(b) - done;
    same(done, done_[b], name + "done rows");
    same(front, block(b).evicted.load(), name + "rows done from the front");
  }
  std::uint64_t active = 0;
  for (std::uint32_t i = 0; i < kLeases; ++i) {
    const Lease& lease = q_.leases[i];
    if (lease.fence == 0) {
      same(of_lease[i], 0, "rows of a free lease");
      continue;
    }
    ++active;
    same(of_lease[i], lease.rows, "rows of lease " + std::to_string(i));
    expect(i < q_.leases_used && lease.deadline_ns >= q_.next_deadline_ns, "lease " + std::to_string(i) + " ends unseen");
  }
  same(active, q_.leases_active, "leases");
  for (std::uint32_t g = 0; g < q_.groups; ++g) {
    same(waiting[g], q_.waiting[g], "waiting rows of consumer " + std::to_string(g));
    same(leased[g], q_.leased[g], "leased rows of consumer " + std::to_string(g));
  }
  std::uint64_t ordered_blocks = 0;
  for (std::uint64_t i = t_.order_head; i < t_.order_tail; ++i, ++ordered_blocks) {
    expect(block(ordered(i)).state.load() == kOpen, "a block in the order is not open");
    expect(i == t_.order_head || block(ordered(i - 1)).birth < block(ordered(i)).birth, "the order of blocks is not the order of birth");
  }
  same(open, ordered_blocks, "blocks in order");
  same(live, t_.live_steps, "unacknowledged rows");
  same(live, t_.counters.steps_folded.load() - t_.counters.steps_evicted.load(), "appended less acknowledged rows");
  expect(t_.live_steps <= t_.max_size, "unacknowledged rows " + std::to_string(t_.live_steps) + " above max_size");
  return wrong;
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> QueueIndex::lease_holders() {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> holders;
  IndexLock lock(table_);
  for (std::uint32_t i = 0; i < q_.leases_used; ++i) {
    const Lease& lease = q_.leases[i];
    if (lease.fence == 0) continue;
    const std::uint32_t pid = table_.process().segments().process(lease.process).pid.load(std::memory_order_relaxed);
    const auto found = std::find_if(holders.begin(), holders.end(), [&](const auto& h) { return h.first == pid; });
    if (found != holders.end()) found->second += lease.rows;
    else holders.emplace_back(pid, lease.rows);
  }
  return holders;
}

}  // namespace conduit
