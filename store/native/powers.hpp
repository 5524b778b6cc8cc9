// Powers of many non-negative numbers at once, with the same bits on every instruction set.
//
// Only additions, multiplications, divisions and bit operations, none contracted: every compiled version rounds alike, so
// a priority has one mass whoever computes it, and one seed draws the same rows everywhere. Relative error below 1e-14.
#pragma once

#include <cstdint>

namespace conduit {

// out[i] = base[i]^exponent; 0 where base[i] is 0. base finite and >= 0, exponent in [0, 4]. `out` may be `base`.
void powers(const double* base, double exponent, double* out, std::uint32_t n);

}  // namespace conduit
