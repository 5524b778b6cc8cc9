// One step down the sum tree for a group of draws.
#pragma once

#include <cstdint>

namespace conduit {

inline constexpr std::uint32_t kDescendGroup = 64;  // draws that descend together: their cache misses overlap

// For each of `n` draws: from node[i] of the level above, the child (index into `level`) that holds mass[i]; mass[i]
// becomes what is left inside that child. Both arrays have kDescendGroup entries, valid ones also past n.
//
// The eight children of a node are halved three times. A half of zero is never taken unless both are: rounding can leave
// a mass at or past the end, which then means the last child that is not zero.
//
// `nodes`: of the level above. Few of them, near the root, fit in registers and are not looked up for each draw.
extern void (*const descend)(const double* level, double* mass, std::int64_t* node, std::uint32_t n, std::uint64_t nodes);

}  // namespace conduit
