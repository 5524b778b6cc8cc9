// Columns whose rows vary in length: where their elements lie, and how they are copied.
//
//   block: | other columns | int64 ends[rows_per_block + 1] of each such column | values |
//   values: | part of column 0 | part of column 1 | ...
//
// Row r of a column has the elements [ends[r], ends[r + 1]) of the column's part, one after the other without a gap: which is
// an Arrow list of 64-bit offsets. A block takes no more rows when one of its parts is full. Where the parts of a block begin
// is decided by the writer that opens it, with the first row in hand: in proportion to the lengths it has seen. The last part
// ends with the block, or with the run of blocks where the first row needs more than one.
//
// Ground truth, as the rows themselves: `starts` and `ends`, which the block's owner writes before it publishes, and the spans
// of blocks that are not free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layout.hpp"
#include "process.hpp"

namespace conduit {

// The elements of one row in one column.
struct Cell {
  const std::byte* at = nullptr;
  std::uint64_t elements = 0;
};

// Rows as a writer has them: of each column n cells, or null where it is of fixed width or all n are empty.
using Cells = const Cell* const*;

class RaggedBlocks {
 public:
  RaggedBlocks() = default;
  RaggedBlocks(const Segments& segments, const Table& t, const Column* columns);

  std::uint32_t n() const { return static_cast<std::uint32_t>(columns_.size()); }
  // A column by its number among those whose rows vary in length, and its number in the table.
  const Column& column(std::uint32_t v) const { return *columns_[v]; }
  std::uint32_t index(std::uint32_t v) const { return indices_[v]; }

  // Blocks of the run that begins with `block`; its bytes are those of all.
  std::uint32_t span(std::uint32_t block) const { return n() == 0 ? 1 : std::atomic_ref(spans_[block]).load(std::memory_order_relaxed); }
  void set_span(std::uint32_t block, std::uint32_t blocks) const {
    if (n() > 0) std::atomic_ref(spans_[block]).store(blocks, std::memory_order_relaxed);
  }
  const std::uint64_t* starts(std::uint32_t block) const { return starts_ + std::uint64_t{block} * n(); }

  // `base`, here and below: where the block's bytes are.
  static std::int64_t* ends(std::byte* base, const Column& c) { return reinterpret_cast<std::int64_t*>(base + c.block_offset); }
  static const std::int64_t* ends(const std::byte* base, const Column& c) { return reinterpret_cast<const std::int64_t*>(base + c.block_offset); }
  static std::uint64_t length(const std::byte* base, std::uint32_t row, const Column& c) {
    const std::int64_t* end = ends(base, c) + row;
    return static_cast<std::uint64_t>(end[1] - end[0]);
  }
  Cell cell(const std::byte* base, std::uint32_t block, std::uint32_t row, const Column& c) const {
    const std::int64_t* end = ends(base, c) + row;
    return {base + starts(block)[c.ragged] + static_cast<std::uint64_t>(end[0]) * c.element_bytes, static_cast<std::uint64_t>(end[1] - end[0])};
  }

  // --- for who restores a table
  // As `divide`, with parts that a file says. Throws damaged where they are not within the blocks.
  void put(std::uint32_t block, std::uint32_t span, const std::vector<std::uint64_t>& starts) const;
  // Whether the elements of rows [first, last) lie within the block, one row after the other, and it within the table.
  bool sound(std::uint32_t block, const std::byte* base, std::uint32_t first, std::uint32_t last) const;

  // --- for the block's owner, before it publishes
  // Divides the values of a block that was just opened; its first row is row `from` of `cells`. `expected`: bytes of a row in
  // each column, as far as anybody knows.
  void divide(std::uint32_t block, std::byte* base, Cells cells, std::uint32_t from, const std::vector<double>& expected) const;
  // How many of `most` rows from `from` fit from `row` on. Of a run that lies on disk: its first alone, see TableCore::born_on_disk.
  std::uint32_t fitting(std::uint32_t block, const std::byte* base, std::uint32_t row, Cells cells, std::uint32_t from, std::uint32_t most) const;
  void write(std::uint32_t block, std::byte* base, std::uint32_t row, Cells cells, std::uint32_t from, std::uint32_t rows) const;
  // Adjacent blocks that a row needs.
  std::uint64_t blocks_for(Cells cells, std::uint32_t row) const;
  // Bytes of a row's elements, each column's by itself or aligned as they lie; and of the table's values as if it were one block.
  std::uint64_t exact_bytes(Cells cells, std::uint32_t row) const;
  std::uint64_t row_bytes(Cells cells, std::uint32_t row) const;
  std::uint64_t largest_row() const { return std::uint64_t{n_blocks_} * block_bytes_ - values_offset_; }

 private:
  std::vector<const Column*> columns_;
  std::vector<std::uint32_t> indices_;
  std::uint32_t* spans_ = nullptr;
  std::uint64_t* starts_ = nullptr;
  std::uint64_t block_bytes_ = 0, values_offset_ = 0;
  std::uint32_t rows_per_block_ = 0, n_blocks_ = 0;
  bool tiered_ = false;
};

// Copies the elements of rows one after the other. `since`: bytes copied since the reader's last sign of life. False: it was
// expelled, and what it has copied is of no use.
bool copy_cells(ReaderEpoch& epoch, const Cell* cells, std::uint64_t n, std::uint64_t element_bytes, std::byte* to, std::uint64_t* since);

// Sums up: offsets[0] = 0, offsets[i + 1] = offsets[i] + cells[i].elements. Returns the last.
std::uint64_t offsets_of(const Cell* cells, std::uint64_t n, std::int64_t* offsets);

}  // namespace conduit
