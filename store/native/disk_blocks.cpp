// A block's bytes in its table's file: copies of them, the Arrow message before them, rows that go there at once, and blocks of a
// restored table.
#include <string.h>

#include <algorithm>

#include "cut.hpp"
#include "disk_file.hpp"
#include "error.hpp"
#include "failpoints.hpp"
#include "staging.hpp"
#include "table.hpp"

namespace conduit {

std::shared_ptr<Staging> TableCore::copy_block(std::uint32_t block) const {
  Target target;
  std::byte* to = target.room(ragged_.span(block) * t_.block_bytes);
  if (!on_disk(block)) memcpy(to, block_data(block), t_.block_bytes);
  else if (const int error = packed(block) ? unpack(block, to) : disk_->read(block, ragged_.span(block), to); error != 0) fail_block(block, error);
  return target.staging;
}

// The Arrow message of a block with so many rows, which stays in place, and whose body has so many bytes, in these buffers if it is compressed.
std::vector<std::byte> TableCore::message_of(const BlockMessage& all, std::uint32_t block, std::uint32_t rows, std::uint64_t bytes, const std::vector<std::pair<std::uint64_t, std::uint64_t>>* buffers) const {
  std::vector<std::byte> text = all.text;
  std::vector<std::uint64_t> elements(ragged_.n());
  reach_disk([&] {
    for (std::uint32_t v = 0; v < ragged_.n(); ++v) elements[v] = static_cast<std::uint64_t>(RaggedBlocks::ends(block_data(block), ragged_.column(v))[rows]);
  });
  for (const BlockMessage::Number& number : all.numbers) {
    const std::uint64_t value = number.what == BlockMessage::rows    ? rows
                                : number.what == BlockMessage::bytes ? bytes
                                : number.what == BlockMessage::start ? ragged_.starts(block)[number.column]
                                : number.what == BlockMessage::offset ? (*buffers)[number.column].first
                                : number.what == BlockMessage::length ? (*buffers)[number.column].second
                                                                     : elements[number.column];
    const std::uint64_t put = value * number.factor;
    memcpy(text.data() + number.at, &put, sizeof put);
  }
  return text;
}

void TableCore::reserve_run(std::uint32_t block) const {
  const int error = disk_->reserve(block, ragged_.span(block));
  if (error == 0) return;
  fail(ErrorCode::disk, "no room on disk for a row of table '%s' that is larger than a block and takes %u of them, file %s: %s. Nothing of it was appended; make room there "
       "and append again", t_.name, ragged_.span(block), disk_->path().c_str(), strerror(error));
}

void TableCore::confirm_run(std::uint32_t block, std::uint32_t rows) const {
  int error = disk_->write(block, plain_message(block, rows), nullptr);
  if (error == 0) error = sync_disk();
  FAILPOINT(tier_confirmed);
  if (error != 0) fail(ErrorCode::disk, "a row of table '%s' cannot be written to disk, file %s: %s. It was not appended", t_.name, disk_->path().c_str(), strerror(error));
}

// --- restore

void TableCore::lay_out(const std::vector<SavedBlock>& blocks) {
  if (!tiered()) return;
  IndexLock lock(*this);
  std::uint32_t room = t_.n_frames > t_.tier.least_free ? t_.n_frames - t_.tier.least_free : 1;
  const auto place = [&](const SavedBlock& block, bool in_memory) {
    if (block.birth == 0 || block.block >= t_.n_blocks || places_[block.block] != kNowhere) return;
    if (in_memory) {
      if (!take_frame(block.block)) fail(ErrorCode::memory, "table '%s' has more half-filled blocks than memory has room for, %u", t_.name, t_.n_frames);
      room -= room > 0;
    } else {
      std::atomic_ref(places_[block.block]).store(kOnDisk, std::memory_order_release);
    }
  };
  for (const SavedBlock& block : blocks) {
    if (block.sealed == 0) place(block, true);  // new writers go on there
  }
  const auto where = [&](const SavedBlock& block) { place(block, room > 0 && block.block < t_.n_blocks && !born_on_disk(block.block)); };
  if (queue_) std::for_each(blocks.begin(), blocks.end(), where);  // what is delivered next
  else std::for_each(blocks.rbegin(), blocks.rend(), where);
}

Extent TableCore::extent(std::uint64_t offset, std::uint64_t bytes, std::uint64_t to, int data_fd) const {
  if (!tiered()) return {offset, bytes, t_.data_offset + to, data_fd};
  auto block = static_cast<std::uint32_t>(to / t_.block_bytes);
  if (bytes == 0 || block >= t_.n_blocks) return {offset, 0, 0, data_fd};
  while (block > 0 && places_[block] == kNowhere) --block;  // the first of a run, if it is one
  const std::uint64_t within = to - block * t_.block_bytes, room = ragged_.span(block) * t_.block_bytes;
  const std::uint32_t place = places_[block];
  if (place == kNowhere || within > room || bytes > room - within) fail(ErrorCode::damaged, "rows of table '%s' lie in no block of it", t_.name);
  if (place == kOnDisk) return {offset, bytes, disk_->body_at(block) + within, disk_->fd()};
  return {offset, bytes, t_.data_offset + place * t_.block_bytes + within, data_fd};
}

void TableCore::laid_out(const std::vector<SavedBlock>& blocks) {
  if (!tiered()) return;
  int error = 0;
  for (const SavedBlock& block : blocks) {
    if (error != 0 || block.birth == 0 || block.block >= t_.n_blocks || block.count > t_.rows_per_block || !on_disk(block.block)) continue;
    error = disk_->write(block.block, plain_message(block.block, block.count), nullptr);
  }
  if (error == 0) error = sync_disk();
  if (error != 0) fail(ErrorCode::disk, "file %s cannot be written: %s", disk_->path().c_str(), strerror(error));
}

}  // namespace conduit
