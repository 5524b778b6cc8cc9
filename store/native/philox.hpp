// Philox4x32-10: a counter-based generator, so that the i-th draw of batch b of stream s needs no state.
// J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace conduit {

inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// Fills out[0, n) with uniform doubles in [0, 1), 53 bits each: draw i of batch `batch` of stream `stream` under `seed`.
inline void uniform_draws(std::uint64_t seed, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, double* out) {
  for (std::uint32_t i = 0; i < n; i += 2) {
    const auto r = philox({i / 2, static_cast<std::uint32_t>(batch), static_cast<std::uint32_t>(batch >> 32), stream},
                          static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    const auto unit = [](std::uint32_t high, std::uint32_t low) {
      return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
    };
    out[i] = unit(r[0], r[1]);
    if (i + 1 < n) out[i + 1] = unit(r[2], r[3]);
  }
}

}  // namespace conduit
