// Powers of many non-negative numbers at once, with the same bits on every instruction set.
//
// Only additions, multiplications, divisions and bit operations, none contracted: every compiled version rounds alike, so
// a priority has one mass whoever computes it, and one seed draws the same rows everywhere. Relative error below 1e-14.
#pragma once

#include <cstdint>

namespace conduit {

// out[i] = base[i]^exponent; 0 where base[i] is 0. base finite and >= 0, exponent in [0, 4]. `out` may be `base`.
void powers(const double* base, double exponent, double* out, std::uint32_t n);

// Importance weights: out[i] = (least / probabilities[i])^exponent, `least` no larger than any of them; relative error below 1e-7.
// T. Schaul et al., "Prioritized experience replay", ICLR 2016.
void importance_weights(const double* probabilities, double least, double exponent, float* out, std::uint32_t n);

}  // namespace conduit
