#include "packed.hpp"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "codec.hpp"
#include "crc32c.hpp"
#include "disk_file.hpp"
#include "error.hpp"
#include "failpoints.hpp"
#include "table.hpp"

namespace conduit {
namespace {

thread_local Unpacked* current = nullptr;

constexpr std::uint64_t kPrefix = sizeof(std::int64_t);
constexpr std::int64_t kAsItIs = -1;

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

std::uint64_t number_at(const std::byte* text, std::uint64_t at) {
  std::uint64_t value;
  memcpy(&value, text + at, sizeof value);
  return value;
}

// One buffer of a message's body, to exactly `bytes` at `to`.
bool unpack_buffer(const Codec& codec, const std::byte* from, std::uint64_t length, std::byte* to, std::uint64_t bytes) {
  if (bytes == 0) return true;
  if (length < kPrefix) return false;
  std::int64_t raw;
  memcpy(&raw, from, sizeof raw);
  from += kPrefix;
  length -= kPrefix;
  if (raw != kAsItIs) return raw >= 0 && static_cast<std::uint64_t>(raw) == bytes && codec.unpack(from, length, to, bytes);
  if (length < bytes) return false;
  memcpy(to, from, bytes);
  return true;
}

}  // namespace

// --- blocks, by TableCore

// Calls f(offset in the block, bytes) for each buffer that an Arrow message of so many rows has, in its order, until one is false. Where the
// elements of a column end is read from `base` once f has been called for its ends.
template <class F>
bool TableCore::each_buffer(std::uint32_t block, std::uint32_t rows, const std::byte* base, F f) const {
  std::uint32_t v = 0;
  for (std::uint32_t c = 0; c < t_.n_columns; ++c) {
    const Column& column = columns_[c];
    if (column.element_bytes == 0) {
      if (!f(column.block_offset, rows * column.row_bytes)) return false;
      continue;
    }
    if (!f(column.block_offset, (std::uint64_t{rows} + 1) * sizeof(std::int64_t))) return false;
    const std::uint64_t* starts = ragged_.starts(block);
    const std::uint64_t start = starts[v], limit = v + 1 < ragged_.n() ? starts[v + 1] : t_.block_bytes;
    const std::int64_t elements = RaggedBlocks::ends(base, column)[rows];
    ++v;
    if (start > limit || limit > t_.block_bytes || elements < 0 || static_cast<std::uint64_t>(elements) > (limit - start) / column.element_bytes) return false;
    if (!f(start, static_cast<std::uint64_t>(elements) * column.element_bytes)) return false;
  }
  return true;
}

int TableCore::write_packed(std::uint32_t block, std::uint32_t rows, const std::byte* base, std::uint64_t* written) const {
  const Packing& packing = *disk_->packing();
  std::vector<std::byte> body(disk_->packed_room()), scratch;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> buffers;
  std::uint64_t at = 0;
  each_buffer(block, rows, base, [&](std::uint64_t offset, std::uint64_t bytes) {
    if (bytes == 0) {
      buffers.emplace_back(at, 0);
      return true;
    }
    scratch.resize(std::max(scratch.size(), packing.codec->bound(bytes)));
    const std::uint64_t packed = packing.codec->pack(base + offset, bytes, scratch.data(), scratch.size());
    const bool smaller = packed > 0 && packed < bytes;
    const std::int64_t raw = smaller ? static_cast<std::int64_t>(bytes) : kAsItIs;
    const std::uint64_t length = smaller ? packed : bytes;
    memcpy(body.data() + at, &raw, sizeof raw);
    memcpy(body.data() + at + kPrefix, smaller ? scratch.data() : base + offset, length);
    buffers.emplace_back(at, kPrefix + length);
    at = aligned(at + kPrefix + length);
    return true;
  });
  const std::vector<std::byte> text = message_of(packing.message, block, rows, at, &buffers);
  *written = text.size() + at;
  std::atomic_ref(sums_[block]).store(crc32c(crc32c(0, text.data(), text.size()), body.data(), at), std::memory_order_relaxed);
  return disk_->write_packed(block, text, body.data(), at);
}

// 0 or errno: EBADMSG where what lies there is not what was written, also if another block's, or what was there before.
int TableCore::unpack(std::uint32_t block, std::byte* to) const {
  const Packing& packing = *disk_->packing();
  std::vector<std::byte> text(packing.message.text.size()), body;
  if (const int error = disk_->read_slot(block, 0, text.data(), text.size()); error != 0) return error;
  const std::uint64_t rows = number_at(text.data(), packing.rows_at), bytes = number_at(text.data(), packing.bytes_at);
  if (rows > t_.rows_per_block || bytes > disk_->packed_room()) return EBADMSG;
  body.resize(bytes);
  if (const int error = disk_->read_slot(block, text.size(), body.data(), bytes); error != 0) return error;
  if (crc32c(crc32c(0, text.data(), text.size()), body.data(), bytes) != std::atomic_ref(sums_[block]).load(std::memory_order_relaxed)) return EBADMSG;
  std::size_t k = 0;
  const bool whole = each_buffer(block, static_cast<std::uint32_t>(rows), to, [&](std::uint64_t offset, std::uint64_t size) {
    if (k == packing.buffers.size()) return false;
    const std::uint64_t from = number_at(text.data(), packing.buffers[k].first), length = number_at(text.data(), packing.buffers[k].second);
    ++k;
    return from <= bytes && length <= bytes - from && unpack_buffer(*packing.codec, body.data() + from, length, to + offset, size);
  });
  return whole ? 0 : EBADMSG;
}

BlockCache& TableCore::block_cache() const {
  const std::uint32_t forks = process_->forks();
  BlockCache* now = cache_.load(std::memory_order_acquire);
  while (now == nullptr || now->forks() != forks) {
    auto made = std::make_unique<BlockCache>(forks);
    if (cache_.compare_exchange_strong(now, made.get())) return *made.release();  // a parent's is left alone
  }
  return *now;
}

// --- copies

std::shared_ptr<Staging> BlockCache::find(std::uint32_t block, std::uint64_t generation) {
  const std::lock_guard guard(mutex_);
  const auto found = by_block_.find(block);
  if (found == by_block_.end() || found->second->generation != generation) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->bytes;
}

void BlockCache::put(std::uint32_t block, std::uint64_t generation, std::shared_ptr<Staging> bytes) {
  std::list<Entry> gone;  // outlives the mutex: what is freed is freed outside
  const std::lock_guard guard(mutex_);
  const auto drop = [&](std::list<Entry>::iterator entry) {
    bytes_ -= entry->bytes->bytes();
    by_block_.erase(entry->block);
    gone.splice(gone.end(), entries_, entry);
  };
  if (const auto found = by_block_.find(block); found != by_block_.end()) drop(found->second);
  bytes_ += bytes->bytes();
  entries_.push_front({block, generation, std::move(bytes)});
  by_block_[block] = entries_.begin();
  while (bytes_ > kBytes && entries_.size() > 1) drop(std::prev(entries_.end()));
}

Unpacked::Unpacked(const TableCore& table, ReaderEpoch* epoch) : table_(table), epoch_(epoch), outer_(current) { current = this; }

Unpacked::~Unpacked() { current = outer_; }

void Unpacked::clear() {
  held_.clear();
  last_ = kNoRow;
}

void Unpacked::ahead(const std::uint32_t* slots, std::uint32_t n) const {
  if (!table_.packs()) return;
  std::uint32_t before = kNoRow;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t b = table_.block_of(slots[i]);
    if (b == before || !table_.packed(b)) continue;
    before = b;
    if (table_.block_cache().find(b, table_.block(b).generation.load(std::memory_order_relaxed)) == nullptr) table_.disk()->slot_ahead(b);
  }
}

std::byte* Unpacked::address(const TableCore& table, std::uint32_t block) {
  Unpacked* self = current;
  if (self == nullptr || &self->table_ != &table) fail(ErrorCode::disk, "block %u of table '%s' lies compressed, and nobody has opened it", block, table.shared().name);
  if (self->last_ == block) return self->last_at_;
  std::shared_ptr<Staging>& held = self->held_[block];
  if (held == nullptr) {
    const std::uint64_t generation = table.block(block).generation.load(std::memory_order_acquire);
    BlockCache& cache = table.block_cache();
    held = cache.find(block, generation);
    if (held == nullptr) {
      auto made = std::make_shared<Staging>(table.shared().block_bytes);
      const int error = table.unpack(block, made->data());
      // What a reader that was expelled finds may be half of the block's next life.
      std::atomic_thread_fence(std::memory_order_acquire);
      const bool expelled = self->epoch_ != nullptr && !self->epoch_->held();
      if (expelled) memset(made->data(), 0, made->bytes());
      else if (error != 0) {
        self->held_.erase(block);
        table.fail_block(block, error);
      } else {
        cache.put(block, generation, made);
      }
      held = std::move(made);
      if (self->epoch_ != nullptr) self->epoch_->progress();
    }
  }
  self->last_ = block;
  return self->last_at_ = held->data();
}

}  // namespace conduit
