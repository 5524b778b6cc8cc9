// Numbers of up to 8 bytes that change after their rows were published: whoever reads one gets a whole value, old or new.
//
// The only bytes of a published row that do. They lie in the block like any column, at multiples of their size. Written
// under the index lock, so that the row is live and a draw made later finds the new value; read without one, relaxed: a
// batch that is being copied meanwhile holds some values from before and some from after.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace conduit {

inline constexpr std::uint64_t kMaxScalar = 8;

template <class T>
T load_scalar(const std::byte* at) {
  return std::atomic_ref(*reinterpret_cast<T*>(const_cast<std::byte*>(at))).load(std::memory_order_relaxed);
}

template <class T>
void copy_scalars_of(const std::byte* from, std::uint64_t n, std::byte* to) {
  for (std::uint64_t i = 0; i < n; ++i) {
    const T value = load_scalar<T>(from + i * sizeof(T));
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

// `n` of them that lie one after the other; `bytes` is 1, 2, 4 or 8.
inline void copy_scalars(const std::byte* from, std::uint64_t n, std::uint64_t bytes, std::byte* to) {
  switch (bytes) {
    case 1: return copy_scalars_of<std::uint8_t>(from, n, to);
    case 2: return copy_scalars_of<std::uint16_t>(from, n, to);
    case 4: return copy_scalars_of<std::uint32_t>(from, n, to);
    default: return copy_scalars_of<std::uint64_t>(from, n, to);
  }
}

template <class T>
void store_scalar_of(std::byte* to, const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  std::atomic_ref(*reinterpret_cast<T*>(to)).store(value, std::memory_order_relaxed);
}

inline void store_scalar(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  switch (bytes) {
    case 1: return store_scalar_of<std::uint8_t>(to, from);
    case 2: return store_scalar_of<std::uint16_t>(to, from);
    case 4: return store_scalar_of<std::uint32_t>(to, from);
    default: return store_scalar_of<std::uint64_t>(to, from);
  }
}

}  // namespace conduit
