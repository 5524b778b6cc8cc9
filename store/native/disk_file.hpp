// The file of a table that may outgrow memory: a slot for each block, mapped to be read and written by system calls.
//
//   | head: Arrow's magic and the schema | slot of block 0 | slot of block 1 | ...     each slot: | Arrow message | bytes of a block |
//
// So each slot holds one encapsulated Arrow record batch, whose body is the block as it lies in memory. The file is sparse: a
// block takes room there once it has been written. A run of blocks, see ragged.hpp, has its bytes one after the other in the
// slots of all of them, behind the message of the first.
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace conduit {

class Codec;

// While a thread is in `guarded`, a page of this range that cannot be read ends that call instead of the process.
struct ReadGuard {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool active = false;
  sigjmp_buf back;
};
extern thread_local ReadGuard read_guard __attribute__((tls_model("initial-exec")));

// Some bytes that are about to be read.
struct Piece {
  const std::byte* at;
  std::uint64_t bytes;
};

// The Arrow message before each block, and the numbers in it (int64, at byte `at`) that each block has of its own: its rows or bytes, or of
// a column, by its number among those whose rows vary in length, where its elements begin, or how many there are. Of compressed blocks: of a
// buffer, by its number among those that have bytes, where it begins and how long it is.
struct BlockMessage {
  enum What : std::uint32_t { rows = 0, bytes = 1, start = 2, elements = 3, offset = 4, length = 5 };
  struct Number {
    std::uint32_t what, column;
    std::uint64_t at, factor;
  };
  std::vector<std::byte> text;
  std::vector<Number> numbers;
};

// How blocks of a file are compressed: by what, the message before them, and where in it the rows, the bytes, and the places of the
// buffers (begin, length) stand.
struct Packing {
  const Codec* codec;
  BlockMessage message;
  std::uint64_t rows_at = 0, bytes_at = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> buffers;

  // Throws config where the message lacks one of these.
  Packing(const Codec* codec_, BlockMessage message_);
};

class DiskFile {
 public:
  // Takes over `fd`. `head` goes to the front of a new file. `writes`: blocks there are also written through the mapping.
  // Throws disk, config.
  DiskFile(int fd, std::string path, const std::vector<std::byte>& head, BlockMessage message, std::optional<Packing> packing, std::uint64_t block_bytes, std::uint32_t n_blocks, bool writes);
  // The last of all processes that have the file open removes it.
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* body(std::uint32_t block) const { return map_ + body_at(block); }
  bool has(const std::byte* at) const { return at >= map_ && at < map_ + bytes_; }
  const BlockMessage& message() const { return message_; }
  const Packing* packing() const { return packing_ ? &*packing_ : nullptr; }

  // 0 or errno. What was written counts only after `sync`. A block with its message, or its message alone where there are no `bytes`;
  // the bytes of so many adjacent blocks.
  int write(std::uint32_t block, const std::vector<std::byte>& message, const std::byte* bytes) const;
  int read(std::uint32_t block, std::uint32_t blocks, std::byte* bytes) const;
  int sync() const;
  // The same of a compressed block of `bytes`, at most `packed_room`; what the slot does not need is given back. And what lies at a byte of a slot.
  int write_packed(std::uint32_t block, const std::vector<std::byte>& message, const std::byte* body, std::uint64_t bytes) const;
  int read_slot(std::uint32_t block, std::uint64_t at, std::byte* to, std::uint64_t bytes) const;
  std::uint64_t packed_room() const { return slot_bytes_ - packing_->message.text.size(); }
  void slot_ahead(std::uint32_t block) const;
  // Room on the disk for the slots of so many adjacent blocks: what is written there through the mapping then finds it.
  int reserve(std::uint32_t block, std::uint32_t blocks) const;
  std::uint64_t body_at(std::uint32_t block) const { return slot_at(block) + message_.text.size(); }
  int fd() const { return fd_; }
  // Adds what of some bytes lies in the file, but for a page that the last piece begins in.
  void note(const std::byte* at, std::uint64_t bytes, std::vector<Piece>* pieces) const;
  // Starts reading what lies there, without waiting.
  void ahead(const std::byte* at, std::uint64_t bytes) const;

  // Runs f, which reads from the file's mapping. False: something there could not be read, and f was left where it was: it must
  // not own anything that wants destroying, nor call what does.
  template <class F>
  [[gnu::noinline]] bool guarded(F&& f) const {
    ReadGuard& guard = read_guard;
    guard.begin = map_;
    guard.end = map_ + bytes_;
    if (sigsetjmp(guard.back, 0) != 0) return false;  // the handler is SA_NODEFER: there is no mask to restore
    guard.active = true;
    try {
      f();
    } catch (...) {
      read_guard.active = false;
      throw;
    }
    read_guard.active = false;
    return true;
  }

 private:
  std::uint64_t slot_at(std::uint32_t block) const { return head_bytes_ + block * slot_bytes_; }

  int fd_;
  int pid_;
  int read_at(std::uint64_t at, std::byte* to, std::uint64_t bytes) const;

  std::string path_;
  BlockMessage message_;
  std::optional<Packing> packing_;
  std::uint64_t block_bytes_, head_bytes_, slot_bytes_, bytes_;
  std::byte* map_ = nullptr;
};

}  // namespace conduit
