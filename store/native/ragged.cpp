#include "ragged.hpp"

#include <string.h>

#include <algorithm>
#include <numeric>

#include "error.hpp"
#include "failpoints.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kProgressBytes = 1 << 20;  // copied between two signs of life of a reader

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::uint64_t elements(Cells cells, std::uint32_t column, std::uint32_t row) { return cells == nullptr || cells[column] == nullptr ? 0 : cells[column][row].elements; }

}  // namespace

RaggedBlocks::RaggedBlocks(const Segments& segments, const Table& t, const Column* columns)
    : block_bytes_(t.block_bytes), values_offset_(t.values_offset), rows_per_block_(t.rows_per_block), n_blocks_(t.n_blocks), tiered_(t.places_offset != 0) {
  if (t.n_ragged == 0) return;
  spans_ = segments.control_at<std::uint32_t>(t.spans_offset);
  starts_ = segments.control_at<std::uint64_t>(t.starts_offset);
  for (std::uint32_t c = 0; c < t.n_columns; ++c) {
    if (columns[c].element_bytes == 0) continue;
    columns_.push_back(columns + c);
    indices_.push_back(c);
  }
}

void RaggedBlocks::divide(std::uint32_t block, std::byte* base, Cells cells, std::uint32_t from, const std::vector<double>& expected) const {
  const double all = std::accumulate(expected.begin(), expected.end(), 0.0);
  const std::uint64_t area = span(block) * block_bytes_ - values_offset_;
  const auto spare = static_cast<double>(area - row_bytes(cells, from));  // shared out beyond what the first row needs
  std::uint64_t* start = starts_ + std::uint64_t{block} * n();
  std::uint64_t at = values_offset_;
  for (std::uint32_t v = 0; v < n(); ++v) {
    start[v] = at;
    *ends(base, column(v)) = 0;
    at += aligned(elements(cells, index(v), from) * column(v).element_bytes);
    at += static_cast<std::uint64_t>(spare * expected[v] / all) / kAlign * kAlign;
  }
}

void RaggedBlocks::put(std::uint32_t block, std::uint32_t blocks, const std::vector<std::uint64_t>& starts) const {
  const bool within = n() > 0 && starts.size() == n() && block < n_blocks_ && blocks >= 1 && blocks <= n_blocks_ - block;
  std::uint64_t at = values_offset_;
  for (const std::uint64_t start : starts) {
    if (!within || start < at || start % kAlign != 0 || start > blocks * block_bytes_) {
      fail(ErrorCode::damaged, "values of block %u of %u, which spans %u, begin where they cannot", block, n_blocks_, blocks);
    }
    at = start;
  }
  set_span(block, blocks);
  std::copy(starts.begin(), starts.end(), starts_ + std::uint64_t{block} * n());
}

bool RaggedBlocks::sound(std::uint32_t block, const std::byte* base, std::uint32_t first, std::uint32_t last) const {
  const std::uint32_t blocks = span(block);
  if (n() == 0) return true;
  if (blocks < 1 || blocks > n_blocks_ - block) return false;
  for (std::uint32_t v = 0; v < n(); ++v) {
    const Column& c = column(v);
    const std::uint64_t start = starts(block)[v], limit = v + 1 < n() ? starts(block)[v + 1] : blocks * block_bytes_;
    if (start < values_offset_ || start > limit || limit > blocks * block_bytes_) return false;
    const std::int64_t* end = ends(base, c);
    if (end[first] < 0 || static_cast<std::uint64_t>(end[last]) > (limit - start) / c.element_bytes) return false;
    for (std::uint32_t row = first; row < last; ++row) {
      if (end[row] > end[row + 1]) return false;
    }
  }
  return true;
}

std::uint32_t RaggedBlocks::fitting(std::uint32_t block, const std::byte* base, std::uint32_t row, Cells cells, std::uint32_t from, std::uint32_t most) const {
  if (tiered_ && span(block) > 1) most = row == 0 ? std::min(most, 1u) : 0;
  most = std::min(most, rows_per_block_ - row);
  for (std::uint32_t v = 0; v < n() && most > 0; ++v) {
    const Column& c = column(v);
    const std::uint64_t end = v + 1 < n() ? starts(block)[v + 1] : span(block) * block_bytes_;
    std::uint64_t room = (end - starts(block)[v]) / c.element_bytes - static_cast<std::uint64_t>(ends(base, c)[row]);
    for (std::uint32_t i = 0; i < most; ++i) {
      const std::uint64_t wanted = elements(cells, index(v), from + i);
      if (wanted > room) most = i;
      else room -= wanted;
    }
  }
  return most;
}

void RaggedBlocks::write(std::uint32_t block, std::byte* base, std::uint32_t row, Cells cells, std::uint32_t from, std::uint32_t rows) const {
  for (std::uint32_t v = 0; v < n(); ++v) {
    const Column& c = column(v);
    std::int64_t* end = ends(base, c) + row;
    std::byte* part = base + starts(block)[v];
    const Cell* cell = cells == nullptr || cells[index(v)] == nullptr ? nullptr : cells[index(v)] + from;
    for (std::uint32_t i = 0; i < rows; ++i) {
      const Cell given = cell == nullptr ? Cell{} : cell[i];
      if (given.elements > 0) memcpy(part + static_cast<std::uint64_t>(end[i]) * c.element_bytes, given.at, given.elements * c.element_bytes);
      end[i + 1] = end[i] + static_cast<std::int64_t>(given.elements);
    }
    FAILPOINT(append_values_written);
  }
}

std::uint64_t RaggedBlocks::exact_bytes(Cells cells, std::uint32_t row) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t v = 0; v < n(); ++v) bytes += elements(cells, index(v), row) * column(v).element_bytes;
  return bytes;
}

std::uint64_t RaggedBlocks::row_bytes(Cells cells, std::uint32_t row) const {
  std::uint64_t bytes = 0;
  for (std::uint32_t v = 0; v < n(); ++v) bytes += aligned(elements(cells, index(v), row) * column(v).element_bytes);
  return bytes;
}

std::uint64_t RaggedBlocks::blocks_for(Cells cells, std::uint32_t row) const {
  return n() == 0 ? 1 : std::max<std::uint64_t>(1, (values_offset_ + row_bytes(cells, row) + block_bytes_ - 1) / block_bytes_);
}

bool copy_cells(ReaderEpoch& epoch, const Cell* cells, std::uint64_t n, std::uint64_t element_bytes, std::byte* to, std::uint64_t* since) {
  for (std::uint64_t i = 0; i < n;) {
    const std::byte* from = cells[i].at;
    std::uint64_t left = cells[i].elements * element_bytes;
    for (++i; i < n && left > 0 && cells[i].at == from + left; ++i) left += cells[i].elements * element_bytes;  // lie one after the other
    if (i < n && cells[i].elements > 0) {
      for (std::uint64_t k = 0; k < 256; k += 64) __builtin_prefetch(cells[i].at + k);
    }
    while (left > 0) {
      const std::uint64_t part = std::min(left, kProgressBytes);
      memcpy(to, from, part);
      to += part;
      from += part;
      left -= part;
      *since += part;
      if (*since < kProgressBytes) continue;
      *since = 0;
      if (!epoch.progress()) return false;
    }
  }
  return true;
}

std::uint64_t offsets_of(const Cell* cells, std::uint64_t n, std::int64_t* offsets) {
  std::int64_t at = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    offsets[i] = at;
    at += static_cast<std::int64_t>(cells[i].elements);
  }
  offsets[n] = at;
  return static_cast<std::uint64_t>(at);
}

}  // namespace conduit
