// Writing the files of a checkpoint. What is given is copied into a buffer and summed in one pass; full buffers go to the
// disk by threads of their own, past the page cache where the file system lets them: nothing is then left to be written when a
// file is synced, and no pages that somebody else wants are pushed out.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

namespace conduit {

struct WriteError : std::system_error {
  std::string file;
  WriteError(int error, std::string name) : std::system_error(error, std::generic_category(), name), file(std::move(name)) {}
};

// Files from front to back, several at a time. For one thread at a time; inert in a forked child. Every call throws WriteError
// once a write has failed, of whichever file: a checkpoint needs all of them.
class DiskWriter {
 public:
  DiskWriter();
  ~DiskWriter();
  DiskWriter(const DiskWriter&) = delete;
  DiskWriter& operator=(const DiskWriter&) = delete;

  // Takes over a descriptor of an empty file; returns the file's number. `name` is for messages.
  std::uint32_t open(int fd, std::string name);
  // Blocks while as many buffers are on their way as may be.
  void write(std::uint32_t file, const std::byte* from, std::uint64_t bytes);
  // The file is whole; returns its CRC-32C. A thread brings the rest to the disk, syncs and closes it.
  std::uint32_t close(std::uint32_t file);
  // Waits until every closed file lies on the disk.
  void finish();
  // Drops what has not been written, waits for the threads, and closes all files. Throws nothing. Idempotent.
  void stop();

 private:
  struct Shared;
  Shared* shared_;  // what the threads use: in a forked child it is left alone, since a condition that one waits on cannot be destroyed
  pid_t pid_;
};

}  // namespace conduit
