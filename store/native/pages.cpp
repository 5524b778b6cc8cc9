#include "pages.hpp"

#include <sys/mman.h>

#include <algorithm>

namespace conduit {
namespace {

// Of kernels that are newer than the headers that this is built with.
constexpr int kPopulateRead = 22, kPopulateWrite = 23, kCollapse = 25;

constexpr std::uint64_t round_down(std::uint64_t n, std::uint64_t unit) { return n / unit * unit; }
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return round_down(n + unit - 1, unit); }

}  // namespace

void* map_shared(int fd, std::uint64_t bytes, int protection) {
  const std::uint64_t room = round_up(bytes, kPage) + kHugePage;
  void* around = bytes < kHugePage ? MAP_FAILED : mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (around == MAP_FAILED) return mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  const auto from = reinterpret_cast<std::uintptr_t>(around);
  const std::uint64_t before = round_up(from, kHugePage) - from, after = kHugePage - before;
  auto* begin = static_cast<std::byte*>(around) + before;
  void* at = mmap(begin, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (at == MAP_FAILED) {
    munmap(around, room);
    return at;
  }
  if (before > 0) munmap(around, before);
  if (after > 0) munmap(begin + round_up(bytes, kPage), after);
  return at;
}

void touch_pages(std::byte* base, std::uint64_t size, std::uint64_t offset, std::uint64_t bytes, bool writable) {
  const std::uint64_t first = round_down(offset, kPage), last = std::min(size, round_up(offset + bytes, kPage));
  if (first < last) madvise(base + first, last - first, writable ? kPopulateWrite : kPopulateRead);
}

void join_pages(std::byte* base, std::uint64_t offset, std::uint64_t bytes) {
  // One by one: at the first that cannot be joined the kernel would leave out the rest.
  for (std::uint64_t at = round_up(offset, kHugePage); at + kHugePage <= offset + bytes; at += kHugePage) madvise(base + at, kHugePage, kCollapse);
}

}  // namespace conduit
