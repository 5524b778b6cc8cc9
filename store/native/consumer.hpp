// A consumer of a queue: takes deliveries for one consumer group, copies their rows, acknowledges or returns them.
//
// Rows are leased under the index lock and copied without it, inside a reader epoch. While a lease holds, its rows are not
// acknowledged and so their blocks stay; the epoch is for a lease that ends while its rows are being copied.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "groups.hpp"
#include "queue.hpp"
#include "staging.hpp"

namespace conduit {

// One delivery and its lease. The rows wait again when this object dies before they are acknowledged; in a forked child it is
// inert. For one thread at a time.
class Delivery {
 public:
  Delivery(std::shared_ptr<TableCore> table, LeaseName name, std::uint32_t group, std::vector<std::uint32_t> slots, std::uint32_t group_size);
  ~Delivery();
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  std::uint32_t rows() const { return rows_; }  // as delivered
  // Copies all columns, then keys (uint64), each array 64-byte aligned, at `offsets`; then the elements of rows that vary in
  // length, as of a Plan. False: the lease ended meanwhile, or this reader was stopped for so long that the bytes may be others'.
  bool copy(const std::vector<std::uint64_t>& offsets, Target* target) const;
  // All rows that are left, or those of `keys`: all of them or, if we die, none. Throws lease_expired, and changes nothing
  // then; stale when a key names no row of this delivery that is left.
  std::uint32_t acknowledge(const std::uint64_t* keys, std::uint64_t n);
  // Ends the lease. False: it had ended before.
  bool release();
  // At hand-over: begins the lease's time anew. False: it has ended, or rows are too stale now (those are dropped and the
  // others returned): the delivery is of no use.
  bool renew();
  std::uint32_t left() const { return static_cast<std::uint32_t>(slots_.size()); }

 private:
  void check() const;
  bool held() const;
  void find_cells(const std::vector<Placed>& runs, std::vector<Cell>* cells) const;
  bool bring(ReaderEpoch& epoch, const std::vector<Placed>& runs) const;
  bool copy_columns(ReaderEpoch& epoch, const std::vector<Placed>& runs, const std::vector<Cell>& cells, const std::vector<std::uint64_t>& offsets, std::byte* out) const;
  bool holds_lease() const;
  [[noreturn]] void expired() const;

  std::shared_ptr<TableCore> table_;
  QueueIndex& queue_;
  LeaseName name_;
  std::uint32_t group_, group_size_, forks_, rows_;
  std::vector<std::uint32_t> slots_;  // not acknowledged so far, in order of delivery
};

enum class TakeStatus { ok = 0, too_few = 1, ended = 2, too_large = 3 };

struct TakeState {
  std::uint64_t waiting = 0, leased = 0, groups = 0, key = kNoKey, tokens = 0;
  std::uint64_t look_ns = ~std::uint64_t{0};  // when leases are to be looked after next
};

class Consumer {
 public:
  Consumer(std::shared_ptr<TableCore> table, std::uint32_t group);

  // One attempt. Without `partial`, or after the queue's end, fewer rows than demanded will do, but not none. Rows come in
  // groups where `groups` is given: `demand.rows` is a multiple of its size then.
  TakeStatus take(const Demand& demand, GroupIndex* groups, bool partial, std::shared_ptr<Delivery>* out, TakeState* state);
  // Where a wait begins: before the attempt that fails.
  std::uint64_t progress() const { return queue_.state().rows_progress.load(std::memory_order_seq_cst); }
  void wait(std::uint64_t seen, const TakeState& state, std::uint64_t timeout_ns);
  // Waiting rows of the group, whatever their leases, that are acknowledged without having been delivered.
  std::uint64_t drop(const std::uint64_t* keys, std::uint64_t n);
  std::vector<GroupIndex::Incomplete> incomplete(GroupIndex& groups);
  std::uint64_t drop_incomplete(GroupIndex& groups, std::uint64_t older_than_ns);

  // Byte offsets of the columns of n rows, of their keys, and the size of all.
  std::vector<std::uint64_t> offsets(std::uint64_t n) const;
  TableCore& table() const { return *table_; }
  std::uint32_t group() const { return group_; }

 private:
  void look_after_leases();

  std::shared_ptr<TableCore> table_;
  QueueIndex& queue_;
  std::uint32_t group_;
  std::atomic<std::uint64_t> looked_ns_{0};
};

}  // namespace conduit
