// A writer's appends to a queue: all rows or none, under a bound that is exact.
//
// Bytes are written without any lock into blocks that are the writer's own; under the index lock the rows are then counted
// against max_size and published together. Who finds no room has published nothing, and keeps only its one open block.
#include <algorithm>

#include "failpoints.hpp"
#include "writer.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kSpinNs = 20'000;          // a consumer at full speed makes room within microseconds
constexpr std::uint64_t kBlockedSliceNs = 500'000;  // readers do not announce that they have let go of a block

const std::int64_t* versions_of(const TableCore& table, const Rows& rows) {
  const QueueState& q = table.queue()->state();
  return q.max_staleness < 0 ? nullptr : reinterpret_cast<const std::int64_t*>(rows.columns[q.version_column]);
}

}  // namespace

std::uint32_t Writer::append_queued(const Rows& rows) {
  QueueIndex& queue = *table_->queue();
  const std::int64_t* versions = versions_of(*table_, rows);
  try {
    for (;;) {
      // before the look at the room: who is refused then waits until this has moved
      room_seen_ = queue.state().room_progress.load(std::memory_order_seq_cst);
      refused_ = reserve_queued(rows, versions);
      if (refused_ == Admission::ok && !expected_.empty()) refused_ = place_ragged(rows, versions);
      if (refused_ != Admission::ok) break;
      if (expected_.empty()) place(rows.n);
      std::uint32_t from = 0;
      for (const Placed& piece : placed_) {
        write_rows(rows, from, piece);
        from += piece.n;
      }
      put_.clear();
      for (const Placed& piece : placed_) put_.push_back({first_key(piece), piece.n});
      FAILPOINT(queue_written);
      for (const Placed& piece : placed_) confirm(piece);
      refused_ = queue.publish(placed_, rows.n, versions);
      if (refused_ != Admission::ok) put_.clear();
      if (refused_ == Admission::sealed) continue;
      if (refused_ != Admission::ok) break;
      took_place();
      return rows.n;
    }
  } catch (...) {
    put_.clear();
    give_back_spares();
    throw;
  }
  give_back_spares();
  return 0;
}

// Blocks for all rows. Only where they are short, or there was no room the last time, does it take the lock.
Admission Writer::reserve_queued(const Rows& rows, const std::int64_t* versions) {
  const std::uint32_t capacity = table_->shared().rows_per_block;
  const auto sealed = [&](std::uint32_t b) { return (table_->block(b).pub.load(std::memory_order_acquire) & kSealed) != 0; };
  if (block_ != kNoRow && sealed(block_)) release_block(0);
  if (std::any_of(spare_.begin(), spare_.end(), sealed)) give_back_spares();
  if (!expected_.empty()) {  // how many blocks they need shows when they are placed
    return refused_ == Admission::full ? table_->queue()->reserve(rows.n, versions, 0, 1, number_, &spare_, &holders_, &stalled_) : Admission::ok;
  }
  const std::uint64_t room = (block_ == kNoRow ? 0 : capacity - count_) + std::uint64_t{capacity} * spare_.size();
  const auto blocks = static_cast<std::uint32_t>(room < rows.n ? (rows.n - room + capacity - 1) / capacity : 0);
  if (blocks == 0 && refused_ != Admission::full) return Admission::ok;
  if (blocks > table_->shared().n_frames) {
    fail(ErrorCode::busy, "%u rows of queue '%.63s' go in together, and host_memory has room for %llu. Nothing was appended: append fewer at a time, or raise host_memory",
         rows.n, table_->shared().name, static_cast<unsigned long long>(std::uint64_t{table_->shared().n_frames} * capacity));
  }
  const Admission admission = table_->queue()->reserve(rows.n, versions, blocks, 1, number_, &spare_, &holders_, &stalled_);
  if (admission == Admission::ok) stalled_.clear();
  watch_disk(admission == Admission::blocked && holders_.in_memory > 0);
  return admission;
}

void Writer::place(std::uint32_t n) {
  const std::uint32_t capacity = table_->shared().rows_per_block;
  placed_.clear();
  const auto into = [&](std::uint32_t block, std::uint32_t row) {
    const std::uint32_t part = std::min(n, capacity - row);
    if (part > 0) placed_.push_back({block, row, part});
    n -= part;
  };
  if (block_ != kNoRow) into(block_, count_);
  for (const std::uint32_t block : spare_) into(block, 0);
}

// The rows are in: the block of the last of them is the open one, unless it is full. An idle writer holds no full block.
void Writer::took_place() {
  for (const Placed& piece : placed_) {
    if (piece.block != block_) {
      release_block(0);
      block_ = piece.block;
    }
    count_ = piece.row + piece.n;
  }
  spare_.clear();
  if (count_ == table_->shared().rows_per_block || table_->born_on_disk(block_)) release_block(0);
}

void Writer::give_back_spares() {
  for (const std::uint32_t block : spare_) table_->block(block).pub.fetch_or(kSealed | kReleased, std::memory_order_acq_rel);
  spare_.clear();
}

void Writer::wait_room(std::uint64_t timeout_ns) {
  Table& t = table_->shared();
  QueueState& q = table_->queue()->state();
  const std::uint64_t began = now_ns();
  if (!spin_until_moved(q.room_progress, room_seen_, std::min(kSpinNs, timeout_ns))) {
    const std::uint32_t signal = t.space_signal.load(std::memory_order_seq_cst);
    t.space_waiting.store(1, std::memory_order_seq_cst);
    FAILPOINT(wait_space);
    if (q.room_progress.load(std::memory_order_seq_cst) == room_seen_) {
      futex_wait(&t.space_signal, signal, refused_ == Admission::blocked ? std::min(timeout_ns, kBlockedSliceNs) : timeout_ns);
    }
  }
  wait_ns_ += now_ns() - began;
}

}  // namespace conduit
