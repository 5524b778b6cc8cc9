// Blocks that lie compressed on disk. They have no address: who reads rows of such a block opens an `Unpacked`, inside which the
// block has one, of a copy in this process's memory.
//
//   slot: | Arrow message, with Arrow's compression | a column's bytes: int64 length, compressed | ... | hole |
//
// Each buffer is compressed by itself (length -1: as it is), as Arrow says, so that a slot is read by whoever reads Arrow. Where the buffers
// are stands in the message, at places that are the same in all messages of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "process.hpp"
#include "staging.hpp"

namespace conduit {

class TableCore;

// Copies of some blocks, those that were asked for last. Safe in any thread.
class BlockCache {
 public:
  static constexpr std::size_t kBytes = std::size_t{32} << 20;

  explicit BlockCache(std::uint32_t forks) : forks_(forks) {}
  // Null: not here. A block is another one in its next life, so its name has its generation.
  std::shared_ptr<Staging> find(std::uint32_t block, std::uint64_t generation);
  void put(std::uint32_t block, std::uint64_t generation, std::shared_ptr<Staging> bytes);
  // In a forked child another thread of the parent may have held the mutex: the child makes a new one.
  std::uint32_t forks() const { return forks_; }

 private:
  struct Entry {
    std::uint32_t block;
    std::uint64_t generation;
    std::shared_ptr<Staging> bytes;
  };
  std::uint32_t forks_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the latest first
  std::unordered_map<std::uint32_t, std::list<Entry>::iterator> by_block_;
  std::size_t bytes_ = 0;
};

// While it lives, blocks of the table that lie compressed have an address in this thread, the same one. Blocks are unpacked as they are asked for,
// with a sign of life of the reader after each. One at a time in a thread.
class Unpacked {
 public:
  // `epoch`: the reader's; null where the blocks are pinned.
  explicit Unpacked(const TableCore& table, ReaderEpoch* epoch = nullptr);
  ~Unpacked();
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;
  // Has the disk read ahead the blocks of some rows.
  void ahead(const std::uint32_t* slots, std::uint32_t n) const;
  // Lets go of the copies: addresses that were given are none any more.
  void clear();

  // For TableCore. Throws disk, unless the reader was expelled: then it is of zeros.
  static std::byte* address(const TableCore& table, std::uint32_t block);

 private:
  const TableCore& table_;
  ReaderEpoch* epoch_;
  Unpacked* outer_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Staging>> held_;
  std::uint32_t last_ = 0xffffffffu;
  std::byte* last_at_ = nullptr;
};

}  // namespace conduit
