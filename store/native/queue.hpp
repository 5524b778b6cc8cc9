// The index of a queue: which rows wait, which are out with whom, which are done. See QueueState in layout.hpp.
//
// A row of a queue is published under the index lock and counted there; so is everything that happens to it afterwards.
// Nothing is ever evicted that some consumer group has not acknowledged.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "table.hpp"

namespace conduit {

// Only this thread's death matters: whoever then takes the robust lock sees a killed thread's stores in program order. It is
// the compiler that must not move them.
inline void keep_order() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Rows of one block, one after the other: n from `row` on.
struct Placed {
  std::uint32_t block, row, n;
};

enum class Admission {
  ok,
  full,     // max_size rows are not acknowledged
  blocked,  // no free block: rows that are not acknowledged, or writers, hold part of each
  sealed,   // a block was sealed meanwhile: the rows go into another
};

// A column that says how long each row is: of integers, or one whose rows vary in length and have their own.
struct LengthColumn {
  std::uint32_t column = 0, bytes = 0;
  bool is_signed = false;
};

// What a consumer asks for.
struct Demand {
  std::uint32_t rows = 0;        // the most
  std::uint64_t max_tokens = 0;  // the most in all rows together; 0: rows alone count
  LengthColumn tokens;
};

// Rows that were found waiting, oldest first.
struct Found {
  std::vector<std::uint32_t> slots;
  std::uint64_t tokens = 0;
  bool full = false;                  // no further row would fit
  std::uint64_t too_large = kNoKey;   // key of a row that is above max_tokens by itself
  std::uint64_t too_large_tokens = 0;
};

// One delivery: names a lease until it has ended.
struct LeaseName {
  std::uint32_t lease = 0;
  std::uint64_t fence = 0;
};

class QueueIndex {
 public:
  static std::uint64_t bytes(std::uint32_t groups, std::uint32_t n_blocks, std::uint64_t slots);
  // Writes a new queue's state at `offset` of the control segment, whose bytes are zero.
  static void fill(const QueueSpec& spec, std::uint32_t n_blocks, std::uint32_t rows_per_block, std::uint64_t offset, const Segments& segments);
  explicit QueueIndex(TableCore& table);

  QueueState& state() const { return q_; }

  // --- take the index lock themselves ---
  // Whether `n` rows of these versions (null: none) may come in now, and if so `blocks` free blocks, all or none; `run`: one
  // block instead, with the bytes of so many adjacent ones. Throws stale_policy, queue_ended.
  Admission reserve(std::uint32_t n, const std::int64_t* versions, std::uint32_t blocks, std::uint32_t run, std::uint64_t writer,
                    std::vector<std::uint32_t>* out, SpaceHolders* holders, std::vector<std::uint64_t>* stalled);
  // All rows, which the caller has written into blocks of its own, or none. Throws stale_policy, queue_ended.
  Admission publish(const std::vector<Placed>& pieces, std::uint32_t n, const std::int64_t* versions);
  void end();
  // The learner's version. Throws config when it is lower than it was.
  void raise_version(std::int64_t version);
  // Ends every lease of this process: its rows wait again.
  void end_own();

  // --- under the index lock ---
  void opened(std::uint32_t b);
  std::uint32_t unacknowledged(std::uint32_t b) const;
  void recover();
  void restore(const SavedTable& saved);  // before `recover`
  void retire_done();
  void clear();
  std::vector<std::string> verify() const;

  bool waits(std::uint32_t group, std::uint32_t slot) const { return free_word(words(group)[slot]); }
  std::uint64_t stamp(std::uint32_t slot) const { return stamps_[slot]; }
  // A number of a row, wherever it lies. Throws disk.
  void read(std::uint32_t slot, std::uint32_t column, void* to, std::uint64_t bytes) const;
  std::uint64_t length(std::uint32_t slot, const LengthColumn& column) const;
  // The slot of a row that is in the queue and not done.
  bool find(std::uint64_t key, std::uint32_t* slot) const;
  bool row_done(std::uint32_t slot) const;  // by every group
  bool too_stale(std::uint32_t slot) const;

  // Oldest waiting rows, in order of their blocks' birth.
  Found collect(std::uint32_t group, const Demand& demand);
  // Drops waiting rows that are too stale for the learner's version of now.
  void purge(std::uint32_t group);
  // How many blocks the next group that comes to this one has before it; 0: none waits for it.
  std::uint64_t distance(std::uint32_t b) const;
  // Whether `n` rows find no room, also once rows that nobody will get have been dropped: for appends, whose consumers may not
  // come by. `dropped`: whether there were such.
  bool full(std::uint32_t n, bool* dropped);
  LeaseName lease(std::uint32_t group, const std::vector<std::uint32_t>& slots, std::uint64_t now);
  bool holds(const LeaseName& name) const { return q_.leases[name.lease].fence == name.fence; }
  bool leased_by(const LeaseName& name, std::uint32_t slot) const { return words(q_.leases[name.lease].group)[slot] == name.lease + 1; }
  // Rows that wait or are leased are done for this group, all of them or (if we die) none; `counter` says why.
  void acknowledge(std::uint32_t group, const std::vector<std::uint32_t>& slots, std::uint64_t QueueCounters::* counter);
  void end_lease(std::uint32_t lease);
  // Ends leases whose time is over, and with `processes` those of processes that are gone.
  void end_lost(std::uint64_t now, bool processes);

  // For waits, without the lock.
  void announce_rows();
  void announce_room();

  // (pid, rows) of each process that holds leases. Takes the lock.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> lease_holders();

 private:
  static bool free_word(std::uint32_t word) { return word == kWaiting || word == kAgain; }
  std::uint32_t* words(std::uint32_t group) const { return words_ + group * slots_; }
  std::uint32_t* hints(std::uint32_t group) const { return hints_ + group * t_.n_blocks; }
  Block& block(std::uint32_t b) const { return table_.block(b); }
  std::uint32_t folded(std::uint32_t b) const { return block(b).folded.load(std::memory_order_relaxed); }
  // Whether the block takes no more rows.
  bool closed(std::uint32_t b) const { return folded(b) == t_.rows_per_block || (block(b).pub.load(std::memory_order_acquire) & kSealed) != 0; }
  std::uint64_t first_at(std::uint64_t birth) const;
  std::uint32_t ordered(std::uint64_t i) const { return table_.order_[i % t_.n_blocks]; }
  void admit(std::uint32_t n, const std::int64_t* versions) const;
  Admission reserve_locked(std::uint32_t n, const std::int64_t* versions, std::uint32_t blocks, std::uint32_t run, std::uint64_t writer,
                           std::vector<std::uint32_t>* out, SpaceHolders* holders, std::vector<std::uint64_t>* stalled, bool* dropped);
  Admission publish_locked(const std::vector<Placed>& pieces, std::uint32_t n, const std::int64_t* versions, bool* dropped);
  void complete_publications();
  void settle(std::uint32_t b);

  friend class Cut;

  TableCore& table_;
  Table& t_;
  QueueState& q_;
  std::uint64_t slots_;
  std::uint32_t* words_;
  std::uint64_t* stamps_;
  std::uint32_t* hints_;
  std::uint32_t* done_;
  Publication* publications_;
};

}  // namespace conduit
