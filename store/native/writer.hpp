// A writer: one process's way to append rows to one table. It shares nothing with other writers but the index lock that it
// takes when a block is full.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "queue.hpp"
#include "table.hpp"

namespace conduit {

// Rows as they come in. Column pointers are to `n` contiguous rows; a null pointer leaves zeros.
struct Rows {
  std::uint32_t n = 0;
  const std::byte* const* columns = nullptr;
  Cells cells = nullptr;                      // of columns whose rows vary in length; null where the table has none
  const std::uint8_t* flags = nullptr;        // kTerminated | kTruncated | kFinal; null = none
  const float* priorities = nullptr;          // null = the default of each row
  const std::int32_t* chains = nullptr;       // which of the writer's chains (environments) each row continues; null = 0
  bool whole = false;                         // all rows or none, where they fit in two blocks
  // The row's number in its episode, where its chain has none before it; null = 0. Above 0 there were others before, which are not here: windows
  // that need them do not fit, as where they were evicted. Of rows that continue a chain it is not looked at.
  const std::uint32_t* steps = nullptr;
};

class Writer {
 public:
  Writer(std::shared_ptr<TableCore> table, std::uint32_t chains);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Appends as many rows as fit in at most one newly opened block and the limiter lets in, or all (see Rows::whole); returns
  // how many were published. 0: `stopped()` says what is in the way. Rows are published in order. Rows that were written and
  // not published are nobody's: a later append writes over them.
  std::uint32_t append(const Rows& rows);
  // Why the last append came back with fewer rows than it was given, the limiter's word on it, and how to wait for that:
  // `space` wait_space; `limiter` begin_wait, one more append, and only then wait_limiter. `never`: not as a whole.
  enum class Stopped { no, space, limiter, never };
  Stopped stopped() const { return stopped_; }
  const LimiterState& limiter() const { return limiter_; }
  std::uint32_t begin_wait();
  void wait_limiter(std::uint32_t signal, std::uint64_t timeout_ns);
  // Waits up to `timeout_ns` for space to come free. False on timeout.
  void wait_space(std::uint64_t timeout_ns);
  const SpaceHolders& holders() const { return holders_; }
  // Of queues: why the last append could not go in.
  Admission refused() const { return refused_; }
  void close();
  bool closed() const { return closed_; }
  // Keys of the rows that went in since begin_keys, in the order in which they were given.
  void begin_keys() { put_.clear(); }
  std::vector<std::uint64_t> keys() const;
  std::size_t chains() const { return tails_.size(); }
  // Whether the chain has a row that no final observation has closed.
  bool chain_open(std::uint32_t chain) const { return chain < tails_.size() && tails_[chain] != ~std::uint64_t{0}; }
  // The chain's next row begins an episode. The last row of the one before has no successor, and never will: it is treated as a
  // closed writer's when this one closes (kCut).
  void cut(std::uint32_t chain) {
    if (chain >= tails_.size() || tails_[chain] == kNoKey) return;
    tails_[chain] = kNoKey;
    cut_ = true;
  }
  // Whether appending the rows may take long: it needs the index lock (for another block, for the limiter, because the table is
  // a queue), or there is much to copy.
  bool takes_long(const Rows& rows) const;
  // Throws busy where a row is larger than the table could ever hold.
  void check_lengths(const Rows& rows) const;
  TableCore& table() const { return *table_; }
  // Throws closed / forked when this handle may not write.
  void check() const;

 private:
  void take_over();
  void release_block(std::uint64_t flags);
  void tell_times();
  bool next_block(std::uint32_t blocks);
  std::uint32_t open_block(std::uint32_t blocks);
  void watch_disk(bool waits);
  std::uint32_t fitting(const Rows& rows, std::uint32_t from, std::uint32_t most) const;
  void divide(std::uint32_t block, const Rows& rows, std::uint32_t from);
  void confirm(const Placed& piece) const;
  void learn();
  bool reserve(std::uint32_t n);
  bool place_varying(const Rows& rows);
  std::uint32_t append_in_turn(const Rows& rows);
  std::uint32_t append_together(const Rows& rows);
  std::uint32_t append_queued(const Rows& rows);
  Admission reserve_queued(const Rows& rows, const std::int64_t* versions);
  void place(std::uint32_t n);
  Admission place_ragged(const Rows& rows, const std::int64_t* versions);
  void took_place();
  void give_back_spares();
  void wait_room(std::uint64_t timeout_ns);
  void remember_tails(const Rows& rows);
  std::uint32_t step_rows(const Rows& rows, std::uint32_t from, std::uint32_t n);
  // How many rows of the pieces are in, whose first is row `from`: fewer than all where the limiter says so, 0 also where a
  // block has been sealed (`*sealed`).
  std::uint32_t publish(const Rows& rows, std::uint32_t from, const Placed* pieces, std::uint32_t n, bool* sealed);
  void restore_tails();
  bool publish_alone(const Placed& piece);  // false: the block has been sealed
  bool publish_together(const Placed* pieces, std::uint32_t n);
  void keep_tails(const Rows& rows, std::uint32_t from, const Placed& piece);
  void write_rows(const Rows& rows, std::uint32_t from, const Placed& piece);
  std::uint8_t advance_chain(std::uint32_t chain, std::uint32_t slot, std::uint8_t flags, std::uint32_t step);

  std::shared_ptr<TableCore> table_;
  std::uint32_t forks_;
  std::uint64_t number_;
  std::uint32_t block_ = kNoRow;
  std::uint32_t count_ = 0;  // rows published in block_
  std::vector<std::uint64_t> tails_;  // key of the last row of each chain, or kNoKey
  std::vector<std::uint32_t> numbers_;  // of the next row of each chain in its episode; where the table keeps them
  std::vector<std::uint64_t> undo_;
  std::vector<std::uint32_t> undo_numbers_;
  std::vector<double> expected_;      // bytes of a row in each column whose rows vary in length
  std::vector<std::uint32_t> spare_;  // blocks opened ahead, for rows that must go in together
  SpaceHolders holders_;
  std::uint64_t disk_failures_ = 0;   // of the table, when we began to wait for blocks to go to disk
  bool waits_for_disk_ = false;
  std::vector<std::uint64_t> stalled_;
  struct Put {
    std::uint64_t first;  // key; those of the others follow
    std::uint32_t n;
  };
  std::vector<Put> put_;
  // Of a piece that is not in yet: once it is, others may evict it and give its block away.
  std::uint64_t first_key(const Placed& piece) const { return table_->key_of(piece.block * table_->shared().rows_per_block + piece.row); }
  // Of queues: where the rows of the append at hand go, why it could not go in, and how far the queue was then.
  std::vector<Placed> placed_;
  Admission refused_ = Admission::ok;
  std::uint64_t room_seen_ = 0;
  std::uint64_t append_ns_ = 0, append_calls_ = 0, wait_ns_ = 0;
  Stopped stopped_ = Stopped::no;
  LimiterState limiter_;
  bool cut_ = false;  // some chain was: there are rows to finish at the close
  bool fresh_ = true;  // has never had a block
  bool closed_ = false;
};

}  // namespace conduit
