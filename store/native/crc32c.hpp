// CRC-32C (Castagnoli, as in iSCSI and ext4): the checksum of a checkpoint's files, by the processor's instruction where it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace conduit {

// Continues `crc`, 0 at first, over `bytes` more bytes.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes);

}  // namespace conduit
