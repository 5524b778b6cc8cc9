// The file of a table that may outgrow memory: a slot for each block, mapped to be read and written by system calls.
//
//   | head: Arrow's magic and the schema | slot of block 0 | slot of block 1 | ...     each slot: | Arrow message | bytes of a block |
//
// So each slot holds one encapsulated Arrow record batch, whose body is the block as it lies in memory. The file is sparse: a
// block takes room there once it has been written.
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error.hpp"

namespace conduit {

// While a thread is in `guarded`, a page of this range that cannot be read ends that call instead of the process.
struct ReadGuard {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool active = false;
  sigjmp_buf back;
};
extern thread_local ReadGuard read_guard __attribute__((tls_model("initial-exec")));

class DiskFile {
 public:
  // Takes over `fd`. `head` goes to the front of a new file, `message` before each block. `writes`: blocks there are
  // also written through the mapping. Throws disk.
  DiskFile(int fd, std::string path, const std::vector<std::byte>& head, std::vector<std::byte> message, std::uint64_t block_bytes, std::uint32_t n_blocks, bool writes);
  // The last of all processes that have the file open removes it.
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* body(std::uint32_t block) const { return map_ + slot_at(block) + message_.size(); }
  bool has(const std::byte* at) const { return at >= map_ && at < map_ + bytes_; }
  std::uint64_t block_bytes() const { return block_bytes_; }

  // 0 or errno. What was written counts only after `sync`.
  int write(std::uint32_t block, const std::byte* bytes) const;
  int read(std::uint32_t block, std::byte* bytes) const;
  int sync() const;
  // What `write` puts before a block's bytes; where these are in the file.
  int write_message(std::uint32_t block) const;
  std::uint64_t body_at(std::uint32_t block) const { return slot_at(block) + message_.size(); }
  int fd() const { return fd_; }
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
  std::string path_;
  std::vector<std::byte> message_;
  std::uint64_t block_bytes_, head_bytes_, slot_bytes_, bytes_;
  std::byte* map_ = nullptr;
};

}  // namespace conduit
