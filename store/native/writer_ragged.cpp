// A writer's rows that vary in length: which blocks they go into.
#include <algorithm>

#include "error.hpp"
#include "writer.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kLongCopy = 1 << 16;  // bytes whose copy is worth letting go of the interpreter's lock

}  // namespace

bool Writer::takes_long(const Rows& rows) const {
  const Table& t = table_->shared();
  if (table_->queue() != nullptr || block_ == kNoRow || t.limits_inserts != 0 || rows.n > 64) return true;
  if (expected_.empty()) return count_ + rows.n > t.rows_per_block;
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < rows.n; ++i) bytes += table_->ragged().row_bytes(rows.cells, i);
  return bytes > kLongCopy || fitting(rows, 0, rows.n) < rows.n;
}

void Writer::check_lengths(const Rows& rows) const {
  const RaggedBlocks& ragged = table_->ragged();
  for (std::uint32_t i = 0; !expected_.empty() && i < rows.n; ++i) {
    if (ragged.blocks_for(rows.cells, i) <= table_->shared().n_blocks) continue;
    fail(ErrorCode::busy, "row %u of %u has %llu bytes in its columns of varying length, table '%.63s' could hold %llu if it were empty. Nothing was appended: "
         "raise max_size or mean_length, or split the row", i, rows.n, static_cast<unsigned long long>(ragged.exact_bytes(rows.cells, i)),
         table_->shared().name, static_cast<unsigned long long>(ragged.largest_row()));
  }
}

// Throws disk, with the block given back.
void Writer::divide(std::uint32_t block, const Rows& rows, std::uint32_t from) {
  if (expected_.empty()) return;
  try {
    if (table_->born_on_disk(block)) table_->reserve_run(block);
  } catch (const Error&) {
    give_back_spares();
    if (block_ == block) release_block(0);
    throw;
  }
  table_->ragged().divide(block, table_->block_data(block), rows.cells, from, expected_);
}

// What goes in next lies where it cannot be lost. Throws disk.
void Writer::confirm(const Placed& piece) const {
  if (table_->born_on_disk(piece.block)) table_->confirm_run(piece.block, piece.row + piece.n);
}

// What the block that is given back held says how the next one is divided.
void Writer::learn() {
  const RaggedBlocks& ragged = table_->ragged();
  if (table_->born_on_disk(block_)) return;  // of one row, longer than all others
  for (std::uint32_t v = 0; v < ragged.n(); ++v) {
    const Column& c = ragged.column(v);
    const double bytes = static_cast<double>(RaggedBlocks::ends(table_->block_data(block_), c)[count_]) * static_cast<double>(c.element_bytes);
    expected_[v] = std::max(1.0, (expected_[v] + bytes / static_cast<double>(count_)) / 2);
  }
}

// Places for rows that go in together: in the open block, and in new ones, which are kept in `spare_`. False: there is no space, as
// `stopped_` then says, or they take more blocks than are published together.
bool Writer::place_varying(const Rows& rows) {
  const RaggedBlocks& ragged = table_->ragged();
  placed_.clear();
  give_back_spares();  // of an attempt that came to nothing: how large a block must be depends on the rows
  if (block_ != kNoRow && (fitting(rows, 0, 1) == 0 || (table_->block(block_).pub.load(std::memory_order_acquire) & kSealed) != 0)) {
    FAILPOINT(append_sealed);
    release_block(0);
  }
  std::uint32_t block = block_, row = count_;
  for (std::uint32_t done = 0; done < rows.n;) {
    const std::uint32_t part = block == kNoRow ? 0 : ragged.fitting(block, table_->block_data(block), row, rows.cells, done, rows.n - done);
    if (part > 0) placed_.push_back({block, row, part});
    done += part;
    if (done == rows.n) break;
    block = placed_.size() == kPublications ? kNoRow : open_block(static_cast<std::uint32_t>(ragged.blocks_for(rows.cells, done)));
    if (block == kNoRow) {
      if (placed_.size() < kPublications) stopped_ = Stopped::space;
      give_back_spares();
      return false;
    }
    spare_.push_back(block);
    row = 0;
    divide(block, rows, done);
  }
  return true;
}

// Places for all rows of an append to a queue, in the open block and in new ones, which are kept in `spare_`.
Admission Writer::place_ragged(const Rows& rows, const std::int64_t* versions) {
  const RaggedBlocks& ragged = table_->ragged();
  placed_.clear();
  give_back_spares();  // of an attempt that came to nothing: how large a block must be depends on the rows
  std::uint32_t block = block_, row = count_;
  for (std::uint32_t done = 0; done < rows.n;) {
    const std::uint32_t part = block == kNoRow ? 0 : ragged.fitting(block, table_->block_data(block), row, rows.cells, done, rows.n - done);
    if (part > 0) placed_.push_back({block, row, part});
    done += part;
    if (done == rows.n) break;
    const auto run = static_cast<std::uint32_t>(ragged.blocks_for(rows.cells, done));
    const Admission admission = table_->queue()->reserve(rows.n, versions, 1, run, number_, &spare_, &holders_, &stalled_);
    watch_disk(admission == Admission::blocked && holders_.in_memory > 0);
    if (admission != Admission::ok) return admission;
    stalled_.clear();
    block = spare_.back();
    row = 0;
    divide(block, rows, done);
  }
  return Admission::ok;
}

}  // namespace conduit
