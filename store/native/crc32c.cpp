#include "crc32c.hpp"

#include <string.h>

#include <array>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace conduit {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reversed
// Three runs of this many bytes are summed at the same time: the instruction takes three cycles, and one can begin in each.
constexpr std::size_t kRun = 4096;

constexpr std::array<std::array<std::uint32_t, 256>, 8> byte_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    t[0][i] = crc;
  }
  for (std::uint32_t i = 0; i < 256; ++i) {
    for (std::size_t k = 1; k < 8; ++k) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 255];
  }
  return t;
}
constexpr auto kBytes = byte_tables();

// What `kRun` zero bytes make of a register, for each of its four bytes: a CRC is linear, so the sums of neighbouring runs
// are put together by it.
std::array<std::array<std::uint32_t, 256>, 4> make_zeros() {
  std::array<std::uint32_t, 32> of_bit{};
  for (std::uint32_t bit = 0; bit < 32; ++bit) {
    std::uint32_t crc = 1u << bit;
    for (std::size_t i = 0; i < kRun; ++i) crc = (crc >> 8) ^ kBytes[0][crc & 255];
    of_bit[bit] = crc;
  }
  std::array<std::array<std::uint32_t, 256>, 4> zeros{};
  for (std::uint32_t place = 0; place < 4; ++place) {
    for (std::uint32_t value = 0; value < 256; ++value) {
      for (std::uint32_t bit = 0; bit < 8; ++bit) zeros[place][value] ^= (value >> bit & 1) != 0 ? of_bit[place * 8 + bit] : 0;
    }
  }
  return zeros;
}

[[maybe_unused]] std::uint32_t past_run(std::uint32_t crc) {
  static const auto zeros = make_zeros();
  return zeros[0][crc & 255] ^ zeros[1][crc >> 8 & 255] ^ zeros[2][crc >> 16 & 255] ^ zeros[3][crc >> 24];
}

std::uint64_t load(const std::byte* at) {
  std::uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

std::uint32_t by_tables(std::uint32_t crc, const std::byte* at, std::size_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const std::uint64_t word = load(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kBytes[7 - k][word >> (8 * k) & 255];
  }
  for (; bytes > 0; ++at, --bytes) crc = (crc >> 8) ^ kBytes[0][(crc ^ static_cast<std::uint32_t>(*at)) & 255];
  return crc;
}

#if defined(__x86_64__)
#define CONDUIT_CRC_TARGET __attribute__((target("sse4.2")))
CONDUIT_CRC_TARGET inline std::uint32_t step(std::uint32_t crc, std::uint64_t word) { return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word)); }
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#elif defined(__aarch64__)
#define CONDUIT_CRC_TARGET __attribute__((target("+crc")))
CONDUIT_CRC_TARGET inline std::uint32_t step(std::uint32_t crc, std::uint64_t word) { return __crc32cd(crc, word); }
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

#ifdef CONDUIT_CRC_TARGET
CONDUIT_CRC_TARGET std::uint32_t by_instruction(std::uint32_t crc, const std::byte* at, std::size_t bytes) {
  for (; bytes >= 3 * kRun; at += 3 * kRun, bytes -= 3 * kRun) {
    std::uint32_t second = 0, third = 0;
    for (std::size_t i = 0; i < kRun; i += 8) {
      crc = step(crc, load(at + i));
      second = step(second, load(at + kRun + i));
      third = step(third, load(at + 2 * kRun + i));
    }
    crc = past_run(past_run(crc) ^ second) ^ third;
  }
  for (; bytes >= 8; at += 8, bytes -= 8) crc = step(crc, load(at));
  return by_tables(crc, at, bytes);
}
#endif

}  // namespace

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
#ifdef CONDUIT_CRC_TARGET
  static const bool fast = has_instruction();
  if (fast) return ~by_instruction(~crc, at, bytes);
#endif
  return ~by_tables(~crc, at, bytes);
}

}  // namespace conduit
