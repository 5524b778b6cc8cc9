// Philox4x32-10: a counter-based generator, so that the i-th draw of batch b of stream s needs no state.
// J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace conduit {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1);

// Fills out[0, n) with uniform doubles in [0, 1), 53 bits each: draw i of batch `batch` of stream `stream` under `seed`.
// A batch of n draws begins with the draws of any smaller batch. `first`, an even number: of the draw that goes into out[0].
void uniform_draws(std::uint64_t seed, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, double* out, std::uint32_t first = 0);

}  // namespace conduit
