// Blocks of tables that may outgrow memory: which lie in host memory and which on disk. How they move is in movers.cpp, what of
// them is on disk in disk_blocks.cpp.
#include "tier.hpp"

#include <errno.h>

#include <algorithm>
#include <functional>

#include "disk_file.hpp"
#include "error.hpp"
#include "failpoints.hpp"
#include "packed.hpp"
#include "table.hpp"

namespace conduit {
namespace {

constexpr std::uint32_t kMostFree = 64;  // frames kept free for writers

}  // namespace

void fill_frames(const Segments& segments, Table& t) {
  std::fill_n(segments.control_at<std::uint32_t>(t.places_offset), t.n_blocks, kNowhere);
  auto* frames = segments.control_at<Frame>(t.frames_offset);
  for (std::uint32_t f = 0; f < t.n_frames; ++f) frames[f] = {kFrameFree, kNoRow, 0, 0, 0, f + 1 < t.n_frames ? f + 1 : kNoRow, 0, 0};
  t.tier.free = 0;
  t.tier.free_count = t.n_frames;
  t.tier.leaving = kNoRow;
  t.tier.least_free = std::clamp<std::uint32_t>(t.n_frames / 16, 2, kMostFree);
}

std::byte* TableCore::placed(std::uint32_t block) const {
  // acquire: what was written to the place comes before its name
  const std::uint32_t place = std::atomic_ref(places_[block]).load(std::memory_order_acquire);
  if (place < t_.n_frames) return data_ + place * t_.block_bytes;
  if (place == kPacked) return Unpacked::address(*this, block);
  // Nowhere: only seen by a reader that was expelled, whose batch is thrown away.
  return const_cast<std::byte*>(disk_->body(block));
}

void TableCore::free_frame(std::uint32_t f) {
  frames_[f] = {kFrameFree, kNoRow, 0, 0, 0, t_.tier.free, 0, 0};
  t_.tier.free = f;
  ++t_.tier.free_count;
}

// Gives a block that is being opened a frame. False: there is none.
bool TableCore::take_frame(std::uint32_t block) {
  const std::uint32_t f = t_.tier.free;
  if (f == kNoRow) return false;
  t_.tier.free = frames_[f].next;
  --t_.tier.free_count;
  frames_[f] = {kFrameUsed, block, 0, 0, 0, kNoRow, 0, 0};
  std::atomic_ref(heat_[block]).store(0, std::memory_order_relaxed);
  std::atomic_ref(places_[block]).store(f, std::memory_order_release);
  FAILPOINT(tier_given);
  return true;
}

// Of a block that is being opened, and has its span.
void TableCore::give_place(std::uint32_t block) {
  if (!born_on_disk(block)) {
    take_frame(block);
    return;
  }
  std::atomic_ref(heat_[block]).store(0, std::memory_order_relaxed);
  std::atomic_ref(places_[block]).store(kOnDisk, std::memory_order_release);
}

// Of a block that comes free: nobody reads it any more.
void TableCore::free_place(std::uint32_t block) {
  const std::uint32_t place = places_[block];
  std::atomic_ref(places_[block]).store(kNowhere, std::memory_order_release);
  if (place < t_.n_frames) free_frame(place);
}

// Of a block that now lies on disk: readers that entered until now may still be copying from the frame.
void TableCore::leave_frame(std::uint32_t f) {
  const std::uint64_t epoch = process_->segments().header().epoch.fetch_add(1, std::memory_order_acq_rel) & kEpochMask;
  frames_[f] = {kFrameLeaving, kNoRow, 0, 0, epoch, t_.tier.leaving, 0, 0};
  t_.tier.leaving = f;
  ++t_.tier.leaving_count;
}

bool TableCore::reclaim_frames(std::uint64_t oldest) {
  const std::uint32_t before = t_.tier.free_count;
  std::uint32_t* link = &t_.tier.leaving;
  while (*link != kNoRow) {
    const std::uint32_t f = *link;
    if (frames_[f].epoch >= oldest) {
      link = &frames_[f].next;
      continue;
    }
    *link = frames_[f].next;
    --t_.tier.leaving_count;
    free_frame(f);
  }
  for (std::uint32_t f = 0; f < t_.n_frames && t_.tier.free_count == 0; ++f) {
    if (frames_[f].state == kFrameTaken && !process_->alive(frames_[f].process, frames_[f].claim)) free_frame(f);
  }
  return t_.tier.free_count > before;
}

// The last holder of the lock died: places of blocks that are not free are the truth.
void TableCore::recover_frames() {
  std::vector<std::uint32_t> owner(t_.n_frames, kNoRow);
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    const std::uint32_t place = places_[b];
    if (blocks_[b].state.load(std::memory_order_relaxed) == kFree) std::atomic_ref(places_[b]).store(kNowhere, std::memory_order_release);
    else if (place < t_.n_frames) owner[place] = b;
  }
  t_.tier.free = t_.tier.leaving = kNoRow;
  t_.tier.free_count = t_.tier.leaving_count = 0;
  for (std::uint32_t f = 0; f < t_.n_frames; ++f) {
    Frame& frame = frames_[f];
    if (owner[f] != kNoRow) {
      // Whether its bytes are on disk too is not known of one that was just given: then they are written again.
      if (frame.state != kFrameUsed || frame.block != owner[f]) frame.copied = 0;
      frame.state = kFrameUsed;
      frame.block = owner[f];
    } else if (frame.state != kFrameTaken) {
      leave_frame(f);  // it may have been left, or been free: either way nobody reads it after this epoch
    }
  }
}

// By a writer that waits for so many frames.
void TableCore::ask_movers(std::uint32_t frames, SpaceHolders* holders) {
  holders->in_memory = t_.n_frames;
  t_.tier.wanted.store(std::max(frames, t_.tier.wanted.load(std::memory_order_relaxed)), std::memory_order_seq_cst);
  wake_movers();
}

// After frames have been taken.
void TableCore::tell_movers() {
  if (tiered() && t_.tier.free_count + t_.tier.leaving_count < t_.tier.least_free) wake_movers();
}

void TableCore::wake_movers() { announce(t_.tier.work_waiting, t_.tier.work_signal); }

void TableCore::warm(const std::uint32_t* slots, std::uint32_t n) const {
  std::uint64_t cold = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t b = block_of(slots[i]);
    std::atomic_ref(heat_[b]).fetch_add(1, std::memory_order_relaxed);
    cold += on_disk(b);
  }
  if (cold == 0) return;
  const std::uint64_t before = t_.tier.rows_from_disk.fetch_add(cold, std::memory_order_relaxed);
  if (before / kLookEvery != (before + cold) / kLookEvery) announce(t_.tier.work_waiting, t_.tier.work_signal);
}

std::uint32_t TableCore::keep_in_place(std::uint32_t block) {
  IndexLock lock(*this);
  return process_->pin(index_, block);
}

void TableCore::fail_block(std::uint32_t block, int error) const {
  if (error != EBADMSG) fail_disk();
  fail(ErrorCode::disk, "block %u of table '%s' is damaged on disk, file %s: its bytes are not those that were written there. Rows elsewhere can be read", block, t_.name,
       disk_->path().c_str());
}

void TableCore::fail_disk() const {
  fail(ErrorCode::disk, "rows of table '%s' cannot be reached on disk, file %s. What is in memory stays", t_.name, disk_->path().c_str());
}

TierInfo TableCore::tier_info() {
  const Tier& tier = t_.tier;
  TierInfo info{};
  info.frames = t_.n_frames;
  {
    IndexLock lock(*this);
    info.frames_free = tier.free_count + tier.leaving_count;
  }
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) info.blocks_on_disk += on_disk(b);
  info.rows_from_disk = tier.rows_from_disk.load();
  info.blocks_written = tier.blocks_written.load();
  info.blocks_dropped = tier.blocks_dropped.load();
  info.blocks_promoted = tier.blocks_promoted.load();
  info.bytes_written = tier.bytes_written.load();
  info.write_ns = tier.write_ns.load();
  info.failures = tier.failures.load();
  info.losses = tier.losses.load();
  info.error = tier.error.load();
  return info;
}

void TableCore::wrong_frames(const std::function<void(bool, const std::string&)>& expect) const {
  std::vector<std::uint32_t> owners(t_.n_frames, 0);
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    const std::uint32_t state = blocks_[b].state.load(), place = places_[b];
    const std::string name = "block " + std::to_string(b);
    const bool used = state == kOpen || state == kRetired;
    expect(used != (place == kNowhere), name + (used ? " is in use and nowhere" : " has no bytes of its own and has a place"));
    const std::uint64_t pub = blocks_[b].pub.load();
    expect(!on_disk(b) || !used || born_on_disk(b) || (pub & kSealed) != 0, name + " takes rows and is on disk");
    expect(!used || place == kOnDisk || !born_on_disk(b), name + " begins a run and is in memory");
    if (place >= t_.n_frames) continue;
    ++owners[place];
    expect(frames_[place].state == kFrameUsed && frames_[place].block == b, name + " lies in frame " + std::to_string(place) + ", which says otherwise");
  }
  std::uint32_t free = 0, leaving = 0, used = 0, taken = 0;
  for (std::uint32_t f = 0; f < t_.n_frames; ++f) {
    expect(owners[f] == (frames_[f].state == kFrameUsed ? 1u : 0u), "frame " + std::to_string(f) + " holds " + std::to_string(owners[f]) + " blocks");
    used += frames_[f].state == kFrameUsed;
    taken += frames_[f].state == kFrameTaken;
  }
  for (std::uint32_t f = t_.tier.free; f != kNoRow && free <= t_.n_frames; f = frames_[f].next) ++free;
  for (std::uint32_t f = t_.tier.leaving; f != kNoRow && leaving <= t_.n_frames; f = frames_[f].next) ++leaving;
  expect(free == t_.tier.free_count && leaving == t_.tier.leaving_count, "lists of frames are counted wrong");
  expect(free + leaving + used + taken == t_.n_frames, "a frame is in no list");
}

}  // namespace conduit
