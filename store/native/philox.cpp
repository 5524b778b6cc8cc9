#include "philox.hpp"

#include <algorithm>

#include "clones.hpp"

namespace conduit {
namespace {

constexpr std::uint32_t kLanes = 16;  // counters that go through the rounds together, for vector units

CONDUIT_CLONES void rounds(std::uint32_t (&c)[4][kLanes], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0][i];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c[2][i];
      c[0][i] = static_cast<std::uint32_t>(b >> 32) ^ c[1][i] ^ key0;
      c[2][i] = static_cast<std::uint32_t>(a >> 32) ^ c[3][i] ^ key1;
      c[1][i] = static_cast<std::uint32_t>(b);
      c[3][i] = static_cast<std::uint32_t>(a);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

inline double unit(std::uint32_t high, std::uint32_t low) {
  return static_cast<double>((std::uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1) {
  std::uint32_t c[4][kLanes] = {};
  for (std::uint32_t k = 0; k < 4; ++k) c[k][0] = counter[k];
  rounds(c, key0, key1);
  return {c[0][0], c[1][0], c[2][0], c[3][0]};
}

void uniform_draws(std::uint64_t seed, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, double* out, std::uint32_t first) {
  std::uint32_t c[4][kLanes];
  for (std::uint32_t start = 0; start < n; start += 2 * kLanes) {
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      c[0][i] = (first + start) / 2 + i;
      c[1][i] = static_cast<std::uint32_t>(batch);
      c[2][i] = static_cast<std::uint32_t>(batch >> 32);
      c[3][i] = stream;
    }
    rounds(c, static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
    const std::uint32_t count = std::min(n - start, 2 * kLanes);
    for (std::uint32_t i = 0; i < count; ++i) {
      out[start + i] = i % 2 == 0 ? unit(c[0][i / 2], c[1][i / 2]) : unit(c[2][i / 2], c[3][i / 2]);
    }
  }
}

}  // namespace conduit
