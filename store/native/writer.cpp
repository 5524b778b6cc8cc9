#include "writer.hpp"

#include <string.h>

#include <algorithm>
#include <limits>

#include "disk_file.hpp"
#include "error.hpp"
#include "failpoints.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kTellEvery = 256;  // appends of single rows between two additions to the table's counters

std::uint32_t step_of(const Rows& rows, std::uint32_t i) { return rows.steps != nullptr ? rows.steps[i] : 0; }

}  // namespace

Writer::Writer(std::shared_ptr<TableCore> table, std::uint32_t chains)
    : table_(std::move(table)), forks_(table_->process().forks()),
      number_(table_->shared().writers.fetch_add(1, std::memory_order_relaxed) + 1), tails_(chains, kNoKey),
      numbers_(table_->shared().steps_offset != 0 ? chains : 0) {
  const RaggedBlocks& ragged = table_->ragged();
  for (std::uint32_t v = 0; v < ragged.n(); ++v) expected_.push_back(static_cast<double>(ragged.column(v).mean_bytes));
}

Writer::~Writer() {
  try {
    close();
  } catch (const Error&) {
    // a forked child's copy or a closed store: nothing here is ours to release
  }
}

void Writer::check() const {
  table_->process().check();
  if (forks_ != table_->process().forks()) {
    fail(ErrorCode::forked, "this writer of table '%s' belongs to the parent process: call table.writer() again in the child", table_->shared().name);
  }
  if (closed_) fail(ErrorCode::closed, "this writer of table '%s' is closed: call table.writer() for a new one", table_->shared().name);
}

void Writer::release_block(std::uint64_t flags) {
  if (block_ == kNoRow) return;
  if (!expected_.empty() && count_ > 0) learn();
  // release: our last bytes come before the block can be taken for another use
  table_->block(block_).pub.fetch_or(kSealed | kReleased | flags, std::memory_order_acq_rel);
  FAILPOINT(append_released);
  block_ = kNoRow;
  count_ = 0;
  tell_times();
}

std::vector<std::uint64_t> Writer::keys() const {
  std::vector<std::uint64_t> found;
  for (const Put& put : put_) {
    for (std::uint32_t i = 0; i < put.n; ++i) found.push_back(put.first + i);
  }
  return found;
}

void Writer::tell_times() {
  Counters& c = table_->shared().counters;
  c.append_ns.fetch_add(append_ns_, std::memory_order_relaxed);
  c.append_calls.fetch_add(append_calls_, std::memory_order_relaxed);
  c.append_wait_ns.fetch_add(wait_ns_, std::memory_order_relaxed);
  append_ns_ = append_calls_ = wait_ns_ = 0;
}

void Writer::close() {
  if (closed_) return;
  closed_ = true;
  if (forks_ != table_->process().forks()) return;
  const bool held = block_ != kNoRow;
  release_block(kCut);  // the next folder finishes the chains
  tell_times();
  while (!spare_.empty()) {
    block_ = spare_.back();
    spare_.pop_back();
    release_block(kCut);
  }
  if (!held && table_->shared().links != 0 && (cut_ || std::any_of(tails_.begin(), tails_.end(), [](std::uint64_t k) { return k != kNoKey; }))) {
    table_->finish_writer(number_);
  }
  announce(table_->shared().space_waiting, table_->shared().space_signal);
  announce(table_->shared().rows_waiting, table_->shared().rows_signal);  // the last windows may have become complete
}

// A new block, or kNoRow. Throws disk.
std::uint32_t Writer::open_block(std::uint32_t blocks) {
  const std::uint32_t block = table_->open_block(number_, blocks, &holders_, &stalled_);
  watch_disk(block == kNoRow && holders_.in_memory > 0);
  if (block != kNoRow) stalled_.clear();
  return block;
}

// After each look for blocks. `waits`: some have to go to disk for us first. Throws disk once for each time that they could not.
void Writer::watch_disk(bool waits) {
  const Tier& tier = table_->shared().tier;
  if (waits && !waits_for_disk_) {
    disk_failures_ = tier.failures.load(std::memory_order_acquire);
  } else if (waits && tier.failures.load(std::memory_order_acquire) != disk_failures_) {
    waits_for_disk_ = false;
    fail(ErrorCode::disk, "rows of table '%s' cannot be moved to disk, file %s: %s. What is in memory and on disk stays; make room there and append again",
         table_->shared().name, table_->disk()->path().c_str(), strerror(static_cast<int>(tier.error.load(std::memory_order_relaxed))));
  }
  waits_for_disk_ = waits;
}

// A spare block, or a new one with the bytes of so many. False: none can be had now.
bool Writer::next_block(std::uint32_t blocks) {
  if (!spare_.empty()) {
    block_ = spare_.front();
    spare_.erase(spare_.begin());
  } else {
    block_ = open_block(blocks);
    if (block_ == kNoRow) return false;
  }
  count_ = 0;
  return true;
}

// Makes sure that `n` rows can be published without asking for another block in between.
bool Writer::reserve(std::uint32_t n) {
  const std::uint32_t capacity = table_->shared().rows_per_block;
  const auto sealed = [&](std::uint32_t b) { return (table_->block(b).pub.load(std::memory_order_acquire) & kSealed) != 0; };
  // Blocks that take no more rows are given back first: others may be waiting for them.
  if (block_ != kNoRow && (count_ == capacity || sealed(block_))) {
    FAILPOINT(append_sealed);
    release_block(0);
  }
  for (std::size_t i = 0; i < spare_.size();) {
    if (!sealed(spare_[i])) {
      ++i;
      continue;
    }
    table_->block(spare_[i]).pub.fetch_or(kReleased, std::memory_order_acq_rel);
    spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  std::uint64_t room = (block_ == kNoRow ? 0 : capacity - count_) + std::uint64_t{capacity} * spare_.size();
  for (; room < n; room += capacity) {
    const std::uint32_t block = open_block(1);
    if (block == kNoRow) return false;
    spare_.push_back(block);
  }
  return true;
}

// Rows from `from` that the open block has room for, of at most `most`.
std::uint32_t Writer::fitting(const Rows& rows, std::uint32_t from, std::uint32_t most) const {
  if (!expected_.empty()) return table_->ragged().fitting(block_, table_->block_data(block_), count_, rows.cells, from, most);
  return std::min(most, table_->shared().rows_per_block - count_);
}

// A restored table's blocks that were caught half full: a new writer goes on where theirs stopped, under its number, since
// blocks tell by that whose rows they hold.
void Writer::take_over() {
  fresh_ = false;
  if (table_->shared().left_open.load(std::memory_order_relaxed) == 0) return;
  std::vector<std::uint32_t> blocks;
  table_->take_over(&number_, &blocks);
  if (blocks.empty()) return;
  block_ = blocks.front();
  count_ = static_cast<std::uint32_t>(table_->block(block_).pub.load(std::memory_order_relaxed) & kCountMask);
  spare_.assign(blocks.begin() + 1, blocks.end());
}

std::uint32_t Writer::append(const Rows& rows) {
  check();
  const std::uint64_t began = now_ns();
  if (fresh_) take_over();
  const bool together = rows.whole && !table_->slots() && rows.n <= 2 * table_->shared().rows_per_block;
  stopped_ = Stopped::no;
  const std::uint32_t done = table_->queue() != nullptr ? append_queued(rows) : together ? append_together(rows) : append_in_turn(rows);
  const std::uint64_t ended = now_ns();
  append_ns_ += ended - began;
  ++append_calls_;
  if (rows.n > 1) table_->span(Stage::extend, done, began, ended);  // single rows come too often
  if (done > 0) announce(table_->shared().rows_waiting, table_->shared().rows_signal);
  return done;
}

std::uint32_t Writer::append_in_turn(const Rows& rows) {
  std::uint32_t done = 0;
  bool opened = false;
  while (done < rows.n) {
    if (block_ != kNoRow && fitting(rows, done, 1) == 0) {
      FAILPOINT(append_sealed);
      release_block(0);
    }
    std::uint32_t most = rows.n - done;
    if (table_->shared().limits_inserts != 0 && (block_ == kNoRow || most > 1)) {
      most = step_rows(rows, done, most);  // no block for, and no copies of, rows that have to wait
      if (most == 0) break;
    }
    if (block_ == kNoRow) {
      if (opened && !rows.whole && !table_->slots()) break;
      try {
        if (!next_block(static_cast<std::uint32_t>(table_->ragged().blocks_for(rows.cells, done)))) {
          stopped_ = Stopped::space;
          break;
        }
        divide(block_, rows, done);
      } catch (const Error&) {
        if (done == 0) throw;
        break;  // what is in is reported; the caller's next try meets the error again
      }
      opened = true;
    }
    const Placed piece{block_, count_, fitting(rows, done, most)};
    remember_tails(rows);
    write_rows(rows, done, piece);
    const std::uint64_t first = first_key(piece);
    FAILPOINT(append_before_publish);
    bool sealed = false;
    std::uint32_t in;
    try {
      in = publish(rows, done, &piece, 1, &sealed);
    } catch (const Error&) {  // no lock: nothing of this piece is in
      restore_tails();
      if (done == 0) throw;
      break;
    }
    if (in < piece.n) {
      restore_tails();
      keep_tails(rows, done, {block_, count_, in});
    }
    if (in > 0) {
      FAILPOINT(append_published);
      put_.push_back({first, in});
    }
    count_ += in;
    done += in;
    if (in > 0 && table_->slots()) {  // released with its publication
      block_ = kNoRow;
      count_ = 0;
      if (append_calls_ >= kTellEvery) tell_times();
    }
    if (sealed) {  // by an evictor: these rows go into another block
      opened = false;
      release_block(0);
    } else if (in < piece.n) {
      break;
    }
  }
  return done;
}

// All rows, or 0 when there is no room now. Blocks are sealed by others at any time: then all the rows are written anew.
std::uint32_t Writer::append_together(const Rows& rows) {
  const std::uint32_t capacity = table_->shared().rows_per_block;
  const bool varying = !expected_.empty();
  while (varying ? place_varying(rows) : reserve(rows.n)) {
    remember_tails(rows);
    Placed pieces[kPublications];
    Put puts[kPublications];
    std::uint32_t used = 0, done = 0;
    const auto put = [&](const Placed& piece) {
      write_rows(rows, done, piece);
      puts[used] = {first_key(piece), piece.n};
      pieces[used++] = piece;
      done += piece.n;
    };
    const auto place = [&](std::uint32_t block, std::uint32_t row) {
      if (done < rows.n) put({block, row, std::min(rows.n - done, capacity - row)});
    };
    for (std::size_t i = 0; varying && i < placed_.size(); ++i) put(placed_[i]);
    if (!varying && block_ != kNoRow) place(block_, count_);
    for (std::size_t i = 0; !varying && i < spare_.size(); ++i) place(spare_[i], 0);
    FAILPOINT(append_before_publish);
    bool sealed = false;
    std::uint32_t in;
    try {
      in = publish(rows, 0, pieces, used, &sealed);
    } catch (const Error&) {  // no lock: nothing is in
      restore_tails();
      throw;
    }
    if (in == 0) {
      restore_tails();
      if (sealed) continue;
      return 0;
    }
    FAILPOINT(append_published);
    put_.insert(put_.end(), puts, puts + used);
    for (std::uint32_t i = 0; i < used; ++i) {
      if (pieces[i].block != block_) {
        release_block(0);
        next_block(1);  // the spare block that this piece is in
      }
      count_ = pieces[i].row + pieces[i].n;
    }
    return rows.n;
  }
  if (varying && stopped_ == Stopped::no) return append_in_turn(rows);  // more blocks than are published together
  stopped_ = Stopped::space;
  return 0;
}

// How many of `n` rows from `from` on the limiter lets in now, with the final observations behind the last step.
std::uint32_t Writer::step_rows(const Rows& rows, std::uint32_t from, std::uint32_t n) {
  const std::uint8_t* flags = rows.flags == nullptr ? nullptr : rows.flags + from;
  const std::uint32_t steps = steps_of(flags, n);
  if (steps == 0) return n;
  std::uint64_t room;
  try {
    room = table_->insert_room(steps, &limiter_);
  } catch (const Error&) {
    if (from == 0) throw;
    return 0;  // what is in is reported; the caller's next try meets the error again
  }
  if (room >= steps) return n;
  const std::uint32_t in = rows_within(flags, n, room);
  if (in == 0) stopped_ = Stopped::limiter;
  return in;
}

std::uint32_t Writer::publish(const Rows& rows, std::uint32_t from, const Placed* pieces, std::uint32_t n, bool* sealed) {
  std::uint32_t all = 0;
  for (std::uint32_t i = 0; i < n; ++i) all += pieces[i].n;
  for (std::uint32_t i = 0; i < n; ++i) confirm(pieces[i]);
  if (table_->shared().limits_inserts == 0) {
    *sealed = !(n == 1 ? publish_alone(pieces[0]) : publish_together(pieces, n));
    return *sealed ? 0 : all;
  }
  Publication publications[kPublications];
  for (std::uint32_t i = 0; i < n; ++i) publications[i] = {pieces[i].block, pieces[i].row + pieces[i].n};
  const bool whole = rows.whole && all == rows.n;
  const Insert insert = table_->publish_limited(publications, n, all, rows.flags == nullptr ? nullptr : rows.flags + from, whole, &limiter_);
  *sealed = insert.status == InsertStatus::sealed;
  if (insert.status == InsertStatus::never) stopped_ = Stopped::never;
  if (insert.status == InsertStatus::blocked || (insert.status == InsertStatus::published && insert.rows < all)) stopped_ = Stopped::limiter;
  return insert.rows;
}

// Rows of the piece are in, and others that were written after them are not: what their chains end with.
void Writer::keep_tails(const Rows& rows, std::uint32_t from, const Placed& piece) {
  if (table_->shared().links == 0) return;
  const std::uint32_t base = piece.block * table_->shared().rows_per_block + piece.row;
  for (std::uint32_t i = 0; i < piece.n; ++i) {
    const std::uint8_t flags = rows.flags != nullptr ? rows.flags[from + i] : std::uint8_t{0};
    const std::uint32_t chain = rows.chains != nullptr ? static_cast<std::uint32_t>(rows.chains[from + i]) : 0;
    if (!numbers_.empty()) numbers_[chain] = tails_[chain] == kNoKey ? step_of(rows, from + i) + 1 : numbers_[chain] + 1;
    tails_[chain] = (flags & kFinal) != 0 ? kNoKey : table_->key_of(base + i);
  }
}

void Writer::remember_tails(const Rows& rows) {
  undo_.assign(tails_.begin(), tails_.end() - (rows.chains == nullptr && !tails_.empty() ? static_cast<std::ptrdiff_t>(tails_.size()) - 1 : 0));
  if (!numbers_.empty()) undo_numbers_.assign(numbers_.begin(), numbers_.begin() + static_cast<std::ptrdiff_t>(undo_.size()));
}

void Writer::restore_tails() {
  std::copy(undo_.begin(), undo_.end(), tails_.begin());
  std::copy(undo_numbers_.begin(), undo_numbers_.end(), numbers_.begin());
}

bool Writer::publish_alone(const Placed& piece) {
  std::uint64_t expected = piece.row;
  // A block of one row is full with it, and may be removed at any moment: nothing is left for its writer to do with it.
  const std::uint64_t flags = table_->slots() ? kSealed | kReleased : 0;
  // seq_cst: release for the rows, and ordered before the load of the waiting flag in announce()
  return table_->block(piece.block).pub.compare_exchange_strong(expected, (std::uint64_t{piece.row} + piece.n) | flags, std::memory_order_seq_cst);
}

bool Writer::publish_together(const Placed* pieces, std::uint32_t n) {
  Publication publications[kPublications];
  for (std::uint32_t i = 0; i < n; ++i) publications[i] = {pieces[i].block, pieces[i].row + pieces[i].n};
  return table_->publish_together(publications, n);
}

void Writer::write_rows(const Rows& rows, std::uint32_t from, const Placed& piece) {
  TableCore& t = *table_;
  const auto [block, row, n] = piece;
  std::byte* data = t.block_data(block);
  const std::uint32_t n_columns = t.shared().n_columns;
  for (std::uint32_t c = 0; c < n_columns; ++c) {
    const Column& column = t.columns()[c];
    if (column.element_bytes > 0) continue;
    std::byte* to = data + column.block_offset + row * column.row_bytes;
    if (rows.columns[c] == nullptr) {
      memset(to, 0, n * column.row_bytes);
    } else {
      memcpy(to, rows.columns[c] + from * column.row_bytes, n * column.row_bytes);
    }
  }
  if (t.ragged().n() > 0) t.ragged().write(block, data, row, rows.cells, from, n);
  FAILPOINT(append_row_written);
  const std::uint32_t base = block * t.shared().rows_per_block + row;
  const bool links = t.shared().links != 0;
  // Index entries are relaxed atomics only because a folder may scan the line they share with published rows.
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t slot = base + i;
    const std::uint8_t given = rows.flags != nullptr ? rows.flags[from + i] : std::uint8_t{0};
    std::uint8_t flags = given & (kEnd | kFinal);
    if (t.uses_ != nullptr) std::atomic_ref(t.uses_[slot]).store(0, std::memory_order_relaxed);
    if (links) {
      std::atomic_ref(t.next_[slot]).store(kNoRow, std::memory_order_relaxed);
      flags = advance_chain(rows.chains != nullptr ? static_cast<std::uint32_t>(rows.chains[from + i]) : 0, slot, flags, step_of(rows, from + i));
    }
    flags &= kWritten;
    std::atomic_ref(t.flags_[slot]).store(flags, std::memory_order_relaxed);
  }
  for (std::uint32_t v = 0; v < t.n_views(); ++v) {
    const ViewIndex& view = t.view(v);
    for (std::uint32_t i = 0; view.marked() && i < n; ++i) view.set_mark(base + i, 0);
    if (!view.prioritized()) continue;
    for (std::uint32_t i = 0; i < n; ++i) {
      view.set_raw(base + i, rows.priorities != nullptr ? rows.priorities[from + i] : std::numeric_limits<float>::quiet_NaN());
    }
  }
}

// Links the row to the last one of its chain; returns its flags, with kFirst where it begins an episode. `step`: as of Rows::steps.
std::uint8_t Writer::advance_chain(std::uint32_t chain, std::uint32_t slot, std::uint8_t flags, std::uint32_t step) {
  TableCore& t = *table_;
  std::uint32_t previous = kNoRow;
  const std::uint64_t tail = tails_[chain];
  if (tail != kNoKey) {
    const auto at = static_cast<std::uint32_t>(tail & kSlotMask);
    // A tail whose block has been given away since is gone. If that happens after this check, the block's younger birth
    // tells the folder (TableCore::linked).
    if (t.block(at / t.shared().rows_per_block).generation.load(std::memory_order_acquire) == tail >> kSlotBits) previous = at;
  }
  std::atomic_ref(t.prev_[slot]).store(previous, std::memory_order_relaxed);
  tails_[chain] = (flags & kFinal) != 0 ? kNoKey : t.key_of(slot);
  if (!numbers_.empty()) {
    if (tail == kNoKey) numbers_[chain] = step;
    std::atomic_ref(t.steps_[slot]).store(numbers_[chain]++, std::memory_order_relaxed);
  }
  return tail == kNoKey && step == 0 ? flags | kFirst : flags;
}

void Writer::wait_space(std::uint64_t timeout_ns) {
  Table& t = table_->shared();
  if (table_->queue() != nullptr) return wait_room(timeout_ns);
  const std::uint64_t began = now_ns();
  const std::uint32_t signal = t.space_signal.load(std::memory_order_seq_cst);
  t.space_waiting.store(1, std::memory_order_seq_cst);
  FAILPOINT(wait_space);
  // Readers do not announce that they leave (it would cost them a fence each): wake by the clock as well.
  futex_wait(&t.space_signal, signal, std::min<std::uint64_t>(timeout_ns, holders_.pinned > 0 && holders_.read + holders_.saved == 0 ? 10'000'000 : 500'000));
  wait_ns_ += now_ns() - began;
}

std::uint32_t Writer::begin_wait() {
  Table& t = table_->shared();
  const std::uint32_t signal = t.inserts_signal.load(std::memory_order_seq_cst);
  t.inserts_waiting.store(1, std::memory_order_seq_cst);
  FAILPOINT(wait_limiter);
  return signal;
}

void Writer::wait_limiter(std::uint32_t signal, std::uint64_t timeout_ns) {
  Table& t = table_->shared();
  const std::uint64_t began = now_ns();
  futex_wait_briefly_awake(&t.inserts_signal, signal, timeout_ns);
  t.counters.limited_append_ns.fetch_add(now_ns() - began, std::memory_order_relaxed);
}

}  // namespace conduit
