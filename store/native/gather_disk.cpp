// Copying rows of which some lie on disk: they are read through the file's mapping, which may take long and may fail.
#include "disk_file.hpp"
#include "sampler.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kSignOfLife = 16;            // pieces that are touched between two signs of life of a reader
constexpr std::uint64_t kColdNs = 5'000;             // for each piece: longer, and the disk was waited for

}  // namespace

// Calls f(address, bytes) for what the plan copies of each row that was resolved.
template <class F>
void Sampler::each_piece(std::uint32_t n, F f) const {
  for (const Output& output : plan_.outputs) {
    if (!of_columns(output.source) || output.source == Source::n_step_sum) continue;
    const Column& column = table_->columns()[output.column];
    const auto cursors = [&](const Cursor* rows, const Column& of) {
      for (std::uint32_t i = 0; i < n; ++i) {
        if (rows[i].base != nullptr) f(rows[i].base + of.block_offset + rows[i].row * of.row_bytes, of.row_bytes);
      }
    };
    const auto runs = [&](const std::vector<CopyRun>& all) {
      for (const CopyRun& run : all) {
        if (run.base != nullptr) f(run.base + column.block_offset + run.row * column.row_bytes, run.n * column.row_bytes);
      }
    };
    switch (output.source) {
      case Source::successor: cursors(rows_.data() + n, column); break;
      case Source::first: cursors(firsts_.data(), column); break;
      case Source::sequence: runs(sequence_runs_); break;
      case Source::stack: runs(stack_runs_); break;
      case Source::next_stack: runs(next_stack_runs_); break;
      case Source::after: runs(after_runs_); break;
      case Source::goal: case Source::next_goal:
        cursors(rows_.data() + (output.source == Source::next_goal ? n : 0), column);
        cursors(goal_rows_.data(), table_->columns()[plan_.achieved]);
        break;
      default: cursors(rows_.data(), column); break;
    }
  }
}

// Waits until the pages of all rows on disk are there. Each wait is one of a few rows, with a sign of life after it: a slow disk
// is no stalled reader. Where the last batch had to wait all of them are asked for at once first, so that the disk has
// many to choose from. False: expelled.
bool Sampler::bring(ReaderEpoch& epoch, std::uint32_t n) {
  const DiskFile& disk = *table_->disk();
  pieces_.clear();
  const std::byte* last = nullptr;
  each_piece(n, [&](const std::byte* at, std::uint64_t bytes) {
    const auto* page = reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(at) / kPage * kPage);
    if (!disk.has(at) || (page == last && at + bytes <= page + kPage)) return;
    last = page;
    pieces_.push_back({at, bytes});
  });
  if (pieces_.empty()) return true;
  const std::uint64_t began = now_ns();
  if (cold_) {
    for (const Piece& piece : pieces_) disk.ahead(piece.at, piece.bytes);
  }
  bool held = true;
  table_->reach_disk([&] {
    const std::size_t all = pieces_.size();
    for (std::size_t i = 0; i < all && held; ++i) {
      const std::byte* end = pieces_[i].at + pieces_[i].bytes;
      for (const std::byte* at = pieces_[i].at; at < end; at += kPage) (void)*static_cast<const volatile std::byte*>(at);
      (void)*static_cast<const volatile std::byte*>(end - 1);
      if (i % kSignOfLife == kSignOfLife - 1) held = epoch.progress();
    }
  });
  cold_ = now_ns() - began > kColdNs * pieces_.size();
  return held;
}

bool Sampler::copy_from_disk_too(ReaderEpoch& epoch, std::uint32_t n, const std::uint64_t* offsets, Target* target) {
  const TableCore& t = *table_;
  const DiskFile& disk = *t.disk();
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
  if (!bring(epoch, n)) return false;
  std::byte* out = target->staging->data();
  t.reach_disk([&] { whole = gather(epoch, n, offsets, out); });
  return whole;
}

}  // namespace conduit
