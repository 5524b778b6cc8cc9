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

constexpr std::uint64_t kStep = 1 << 20;  // what has been read is summed while it is in the cache

std::uint32_t read_run(int fd, std::uint64_t offset, std::uint64_t bytes, std::byte* to, bool scratch, std::uint32_t crc) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, to, std::min(bytes, kStep), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::damaged, "byte %llu of the file cannot be read: %s", static_cast<unsigned long long>(offset), strerror(errno));
    if (got == 0) fail(ErrorCode::damaged, "the file ends at byte %llu, %llu early", static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes));
    const auto n = static_cast<std::uint64_t>(got);
    crc = crc32c(crc, to, n);
    offset += n;
    bytes -= n;
    if (!scratch) to += n;
  }
  return crc;
}

}  // namespace

std::uint32_t read_summed(int fd, std::uint64_t bytes, const std::vector<Extent>& extents) {
  posix_fadvise(fd, 0, static_cast<off_t>(bytes), POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> scratch(kStep);
  std::uint32_t crc = 0;
  std::uint64_t at = 0;
  for (const Extent& extent : extents) {
    crc = read_run(fd, at, extent.offset - at, scratch.data(), true, crc);
    crc = read_run(fd, extent.offset, extent.bytes, extent.to, false, crc);
    at = extent.offset + extent.bytes;
  }
  return read_run(fd, at, bytes - at, scratch.data(), true, crc);
}

}  // namespace conduit
