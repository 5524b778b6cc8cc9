#include "part_file.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "crc32c.hpp"
#include "error.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kStep = 512 << 10;  // what has been read is summed and passed on while it is in the cache

// By write, not through a map: pages that were reserved and never touched then need neither a fault nor zeroing.
void write_all(int fd, const std::byte* from, std::uint64_t bytes, std::uint64_t at) {
  while (bytes > 0) {
    const ssize_t done = pwrite(fd, from, bytes, static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail(ErrorCode::memory, "%llu bytes of rows cannot be put where they belong: %s", static_cast<unsigned long long>(bytes), strerror(errno));
    from += done;
    at += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::uint64_t>(done);
  }
}

}  // namespace

std::uint32_t read_summed(int fd, std::uint64_t bytes, const std::vector<Extent>& extents) {
  posix_fadvise(fd, 0, static_cast<off_t>(bytes), POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> scratch(kStep);
  std::uint32_t crc = 0;
  auto extent = extents.begin();
  for (std::uint64_t at = 0; at < bytes;) {
    const ssize_t got = pread(fd, scratch.data(), std::min(bytes - at, kStep), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::damaged, "byte %llu of the file cannot be read: %s", static_cast<unsigned long long>(at), strerror(errno));
    if (got == 0) fail(ErrorCode::damaged, "the file ends at byte %llu, %llu early", static_cast<unsigned long long>(at), static_cast<unsigned long long>(bytes - at));
    const std::uint64_t end = at + static_cast<std::uint64_t>(got);
    crc = crc32c(crc, scratch.data(), static_cast<std::size_t>(got));
    for (; extent != extents.end(); ++extent) {
      const std::uint64_t from = std::max(at, extent->offset), to = std::min(end, extent->offset + extent->bytes);
      if (from < to) write_all(extent->fd, scratch.data() + (from - at), to - from, extent->to + (from - extent->offset));
      if (extent->offset + extent->bytes > end) break;
    }
    at = end;
  }
  return crc;
}

}  // namespace conduit
