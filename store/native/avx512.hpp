// For kernels that are written for AVX-512 by hand: whether the compiler can, and whether the processor that runs them does.
// A function of such code has the attribute gnu::target("avx512f,avx512dq").
#pragma once

#if defined(__x86_64__) && !defined(CONDUIT_NO_TARGET_CLONES)
#define CONDUIT_AVX512 1
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC's own intrinsics use undefined vectors on purpose
#endif

namespace conduit {

inline bool has_avx512() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"); }

}  // namespace conduit
#endif
