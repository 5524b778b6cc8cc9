// Function multiversioning: one body, compiled for AVX-512, AVX2 and the portable baseline, chosen when the module loads.
// Floating-point contraction is off for the whole build, so every version gives the same bits.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(CONDUIT_NO_TARGET_CLONES)
#define CONDUIT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CONDUIT_CLONES
#endif
