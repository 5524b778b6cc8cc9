// Reading a file of a checkpoint: every byte once, in order, summed as it comes, some of it on to where it belongs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace conduit {

// `bytes` bytes from `offset` of the file on belong at `to` of the file `fd`.
struct Extent {
  std::uint64_t offset, bytes, to;
  int fd;
};

// CRC-32C of the first `bytes` bytes of the file. `extents`: in order, apart from each other, inside the file; they are written
// where they belong. Throws damaged where the file is shorter or cannot be read, memory where those cannot be written.
std::uint32_t read_summed(int fd, std::uint64_t bytes, const std::vector<Extent>& extents);

}  // namespace conduit
