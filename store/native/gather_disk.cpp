// Copying rows of which some lie on disk: they are read through the file's mapping, which may take long and may fail.
#include <algorithm>

#include "disk_file.hpp"
#include "sampler.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kSignOfLife = 16;            // pages that are touched between two signs of life of a reader
constexpr std::uint64_t kColdNs = 5'000;             // for each piece, and
constexpr std::uint64_t kColdPageNs = 500;           // for each of its pages: longer, and the disk was waited for

}  // namespace

// Calls f(address, bytes) for what the plan copies of each row that was resolved.
template <class F>
void Sampler::each_piece(std::uint32_t n, F f) const {
  for (const Output& output : plan_.outputs) {
    if (!of_columns(output.source) || output.source == Source::n_step_sum) continue;
    const auto piece = [&](const CopyRun& run, const Column& column) {
      if (run.base != nullptr) f(run.base + column.block_offset + run.row * column.row_bytes, (run.n + (column.element_bytes > 0)) * column.row_bytes);  // where they vary, their ends
    };
    each_run(output.source, n, [&](const CopyRun& run) { piece(run, table_->columns()[output.column]); });
    if (output.source != Source::goal && output.source != Source::next_goal) continue;
    for (const Cursor& goal : goal_rows_) piece({goal.base, goal.row, 1}, table_->columns()[plan_.achieved]);
  }
}

// Waits until the pages of what was noted are there. Each wait is one of a few pages, with a sign of life after it: a slow disk
// is no stalled reader. `cold`: the last time the disk had to be waited for; then all of them are asked for at once first, so that it has
// many to choose from. False: expelled.
bool TableCore::bring(ReaderEpoch& epoch, const std::vector<Piece>& pieces, bool* cold) const {
  if (pieces.empty()) return true;
  const std::uint64_t began = now_ns();
  if (*cold) {
    for (const Piece& piece : pieces) disk_->ahead(piece.at, piece.bytes);
  }
  bool held = true;
  std::uint64_t pages = 0;
  reach_disk([&] {
    for (std::size_t i = 0; i < pieces.size() && held; ++i) {
      const std::byte* end = pieces[i].at + pieces[i].bytes;
      const auto* page = reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(pieces[i].at) / kPage * kPage);
      for (; page < end && held; page += kPage) {
        (void)*static_cast<const volatile std::byte*>(std::max(page, pieces[i].at));
        if (++pages % kSignOfLife == 0) held = epoch.progress();
      }
    }
  });
  *cold = now_ns() - began > kColdNs * pieces.size() + kColdPageNs * pages;
  return held;
}

// The elements of rows that vary in length.
bool Sampler::bring_cells(ReaderEpoch& epoch, std::uint32_t n) {
  const Cell* cell = cells_.data();
  pieces_.clear();
  for (const Output& output : plan_.outputs) {
    if (output.element_bytes == 0) continue;
    for (const Cell* end = cell + std::uint64_t{n} * plan_.count(output.source); cell < end; ++cell) table_->disk()->note(cell->at, cell->elements * output.element_bytes, &pieces_);
  }
  return table_->bring(epoch, pieces_, &cold_);
}

bool Sampler::copy_from_disk_too(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, Target* target) {
  const TableCore& t = *table_;
  const DiskFile& disk = *t.disk();
  t.tell_losses();
  t.warm(slots_.data(), n);
  // Rewards are read while the windows are walked.
  for (const Output& output : plan_.outputs) {
    if (output.source != Source::n_step_sum || !cold_) continue;
    const Column& column = t.columns()[output.column];
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::byte* at = rows_[i].base + column.block_offset + rows_[i].row * column.row_bytes;
      if (disk.has(at)) disk.ahead(at, column.row_bytes * plan_.steps);
    }
  }
  bool whole = false;
  t.reach_disk([&] { resolve(n, slots_.data()); });
  pieces_.clear();
  each_piece(n, [&](const std::byte* at, std::uint64_t bytes) { disk.note(at, bytes, &pieces_); });
  if (!t.bring(epoch, pieces_, &cold_)) return false;
  if (ragged_) {
    t.reach_disk([&] { whole = find_cells(epoch, n); });
    if (!whole || !make_room(epoch, n, offsets, target) || !bring_cells(epoch, n)) return false;
  }
  std::byte* out = target->staging->data();
  t.reach_disk([&] { whole = gather(epoch, n, offsets, out); });
  return whole;
}

}  // namespace conduit
