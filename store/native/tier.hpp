// What others need of tier.cpp.
#pragma once

#include "layout.hpp"
#include "process.hpp"

namespace conduit {

#ifdef CONDUIT_FAILPOINTS
inline constexpr std::uint64_t kLookEvery = 256;
#else
inline constexpr std::uint64_t kLookEvery = 8192;  // rows read from disk between two looks at heat
#endif

void fill_frames(const Segments& segments, Table& t);

}  // namespace conduit
