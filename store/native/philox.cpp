#include "philox.hpp"

#include <algorithm>

#include "avx512.hpp"
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

// Each counter gives two draws; `counter`: the first.
void draws_portable(std::uint64_t seed, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, double* out, std::uint32_t counter) {
  std::uint32_t c[4][kLanes];
  for (std::uint32_t start = 0; start < n; start += 2 * kLanes) {
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      c[0][i] = counter + start / 2 + i;
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

#ifdef CONDUIT_AVX512
// The same, eight counters at a time. Of each place of 64 bits the lower 32 count: products are whole, what lies above is not looked at.
[[gnu::target("avx512f,avx512dq")]] void draws_avx512(std::uint64_t seed, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, double* out, std::uint32_t counter) {
  const __m512i even = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), odd = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4), low = _mm512_set1_epi64(0xffffffff);
  for (std::uint32_t start = 0; start < n; start += 16) {
    __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64(counter + start / 2), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    __m512i c1 = _mm512_set1_epi64(static_cast<long long>(batch)), c2 = _mm512_srli_epi64(c1, 32), c3 = _mm512_set1_epi64(stream);
    std::uint32_t key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const __m512i a = _mm512_mul_epu32(c0, _mm512_set1_epi64(0xD2511F53)), b = _mm512_mul_epu32(c2, _mm512_set1_epi64(0xCD9E8D57));
      c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(b, 32), c1, _mm512_set1_epi64(key0), 0x96);  // 0x96: exclusive or of three
      c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(a, 32), c3, _mm512_set1_epi64(key1), 0x96);
      c1 = b, c3 = a;
      key0 += 0x9E3779B9, key1 += 0xBB67AE85;
    }
    const __m512i x = _mm512_srli_epi64(_mm512_ternarylogic_epi64(_mm512_slli_epi64(c0, 32), c1, low, 0xf8), 11);  // 0xf8: a or (b and c)
    const __m512i y = _mm512_srli_epi64(_mm512_ternarylogic_epi64(_mm512_slli_epi64(c2, 32), c3, low, 0xf8), 11);
    const __m512d scale = _mm512_set1_pd(0x1p-53), first = _mm512_mul_pd(_mm512_cvtepu64_pd(x), scale), second = _mm512_mul_pd(_mm512_cvtepu64_pd(y), scale);
    const std::uint32_t count = std::min(n - start, std::uint32_t{16});
    const auto places = [](std::uint32_t k) { return static_cast<__mmask8>((1u << std::min(k, 8u)) - 1); };
    _mm512_mask_storeu_pd(out + start, places(count), _mm512_permutex2var_pd(first, even, second));
    if (count > 8) _mm512_mask_storeu_pd(out + start + 8, places(count - 8), _mm512_permutex2var_pd(first, odd, second));
  }
}
#endif

auto choose_draws() {
#ifdef CONDUIT_AVX512
  if (has_avx512()) return draws_avx512;
#endif
  return draws_portable;
}
const auto draws = choose_draws();

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1) {
  std::uint32_t c[4][kLanes] = {};
  for (std::uint32_t k = 0; k < 4; ++k) c[k][0] = counter[k];
  rounds(c, key0, key1);
  return {c[0][0], c[1][0], c[2][0], c[3][0]};
}

void uniform_draws(std::uint64_t seed, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, double* out, std::uint32_t first) {
  draws(seed, stream, batch, n, out, first / 2);
}

}  // namespace conduit
