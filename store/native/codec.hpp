// Compression of blocks on disk, as Arrow has it: LZ4 frames or ZSTD, by the system's libraries, which are looked up when a table
// first needs them. Nothing else does, so they are no dependency of the core.
#pragma once

#include <cstddef>
#include <cstdint>

namespace conduit {

class Codec {
 public:
  virtual ~Codec() = default;
  // The most bytes that so many become.
  virtual std::size_t bound(std::size_t bytes) const = 0;
  // Bytes written to `to`, which has room for `bound`; 0: it failed.
  virtual std::size_t pack(const std::byte* from, std::size_t bytes, std::byte* to, std::size_t room) const = 0;
  // Whether `from` was exactly `bytes` that are now in `to`. Safe whatever `from` is.
  virtual bool unpack(const std::byte* from, std::size_t packed, std::byte* to, std::size_t bytes) const = 0;
};

// "lz4" or "zstd"; lives for ever. Null: its library is not on this machine, or there is no such codec.
const Codec* codec_of(const char* name);

}  // namespace conduit
