// The pages behind a segment: where it is mapped, which pages are touched, and how large they are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace conduit {

inline constexpr std::uint64_t kPage = 4096;
inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

// Maps a file as shared memory, large ones at a multiple of a huge page: else the kernel could not map one as a whole.
// MAP_FAILED, with errno, where it cannot.
void* map_shared(int fd, std::uint64_t bytes, int protection);

// Both may fail, and it does not matter: pages then are as large as they were, and fault in one by one.

// Has bytes [offset, offset + bytes) of a mapping of `size` bytes in the page table of this process.
void touch_pages(std::byte* base, std::uint64_t size, std::uint64_t offset, std::uint64_t bytes, bool writable);
// Puts what lies in whole huge pages of [offset, offset + bytes) into such, whatever the machine's setting for shared memory
// is: the rows of a batch lie anywhere, and with small pages nearly each of them costs a walk through page tables. All that is
// there must be allocated already: then it takes no memory. Whoever reads or writes these bytes meanwhile waits for some
// hundred microseconds at most, in any process. Linux 6.1; before that, nothing happens.
void join_pages(std::byte* base, std::uint64_t offset, std::uint64_t bytes);

}  // namespace conduit
