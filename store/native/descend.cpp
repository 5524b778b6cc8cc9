#include "descend.hpp"

#include <bit>

#include "avx512.hpp"

namespace conduit {
namespace {

// 1 if the mass lies in the right one of two neighbours; the left one is then taken off. By masks, not branches: which
// way a draw goes is not to be predicted.
inline std::int64_t choose(double left, double right, double& mass) {
  const std::uint64_t second = static_cast<std::uint64_t>(mass >= left) & static_cast<std::uint64_t>(right != 0.0);
  mass -= std::bit_cast<double>(std::bit_cast<std::uint64_t>(left) & (std::uint64_t{0} - second));
  return static_cast<std::int64_t>(second);
}

void descend_portable(const double* level, double* mass, std::int64_t* node, std::uint32_t n, std::uint64_t) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const double* x = level + node[i] * 8;
    const double pair[4] = {x[0] + x[1], x[2] + x[3], x[4] + x[5], x[6] + x[7]};
    const std::int64_t half = choose(pair[0] + pair[1], pair[2] + pair[3], mass[i]);
    const std::int64_t quarter = half * 2 + choose(pair[half * 2], pair[half * 2 + 1], mass[i]);
    const std::int64_t child = quarter * 2 + choose(x[quarter * 2], x[quarter * 2 + 1], mass[i]);
    node[i] = node[i] * 8 + child;
  }
}

#ifdef CONDUIT_AVX512
// The same for eight draws at a time. `child(c, node)`: of eight nodes the child number c.
template <class Child>
[[gnu::target("avx512f,avx512dq"), gnu::always_inline]] inline void descend_by(Child child, double* mass, std::int64_t* node, std::uint32_t n) {
  const __m512d zero = _mm512_setzero_pd();
  for (std::uint32_t i = 0; i < n; i += 8) {
    const __m512i parent = _mm512_loadu_si512(node + i), at = _mm512_slli_epi64(parent, 3);
    __m512d x[8];
    for (unsigned c = 0; c < 8; ++c) x[c] = child(c, parent, at);
    const __m512d p0 = x[0] + x[1], p1 = x[2] + x[3], p2 = x[4] + x[5], p3 = x[6] + x[7];
    __m512d m = _mm512_loadu_pd(mass + i);

    __m512d left = p0 + p1, right = p2 + p3;
    const __mmask8 half = _mm512_cmp_pd_mask(m, left, _CMP_GE_OQ) & _mm512_cmp_pd_mask(right, zero, _CMP_NEQ_UQ);
    m = _mm512_mask_sub_pd(m, half, m, left);

    left = _mm512_mask_blend_pd(half, p0, p2);
    right = _mm512_mask_blend_pd(half, p1, p3);
    const __mmask8 quarter = _mm512_cmp_pd_mask(m, left, _CMP_GE_OQ) & _mm512_cmp_pd_mask(right, zero, _CMP_NEQ_UQ);
    m = _mm512_mask_sub_pd(m, quarter, m, left);

    left = _mm512_mask_blend_pd(quarter, _mm512_mask_blend_pd(half, x[0], x[4]), _mm512_mask_blend_pd(half, x[2], x[6]));
    right = _mm512_mask_blend_pd(quarter, _mm512_mask_blend_pd(half, x[1], x[5]), _mm512_mask_blend_pd(half, x[3], x[7]));
    const __mmask8 last = _mm512_cmp_pd_mask(m, left, _CMP_GE_OQ) & _mm512_cmp_pd_mask(right, zero, _CMP_NEQ_UQ);
    _mm512_storeu_pd(mass + i, _mm512_mask_sub_pd(m, last, m, left));

    __m512i to = _mm512_mask_add_epi64(at, half, at, _mm512_set1_epi64(4));
    to = _mm512_mask_add_epi64(to, quarter, to, _mm512_set1_epi64(2));
    to = _mm512_mask_add_epi64(to, last, to, _mm512_set1_epi64(1));
    _mm512_storeu_si512(node + i, to);
  }
}

[[gnu::target("avx512f,avx512dq")]] void descend_avx512(const double* level, double* mass, std::int64_t* node, std::uint32_t n, std::uint64_t nodes) {
  if (nodes > 8) {
    descend_by([level](unsigned c, __m512i, __m512i at) __attribute__((target("avx512f,avx512dq"))) { return _mm512_i64gather_pd(at, level + c, sizeof(double)); }, mass, node, n);
    return;
  }
  // Child c of each of the nodes, of which there are no more than a vector has places.
  const auto there = static_cast<__mmask8>((1u << nodes) - 1);
  const __m512i lines = _mm512_slli_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), 3);
  __m512d children[8];
  for (unsigned c = 0; c < 8; ++c) children[c] = _mm512_mask_i64gather_pd(_mm512_setzero_pd(), there, lines, level + c, sizeof(double));
  descend_by([&children](unsigned c, __m512i parent, __m512i) __attribute__((target("avx512f,avx512dq"))) { return _mm512_permutexvar_pd(parent, children[c]); }, mass, node, n);
}
#endif

auto choose_descend() {
#ifdef CONDUIT_AVX512
  if (has_avx512()) return descend_avx512;
#endif
  return descend_portable;
}

}  // namespace

void (*const descend)(const double*, double*, std::int64_t*, std::uint32_t, std::uint64_t) = choose_descend();

}  // namespace conduit
