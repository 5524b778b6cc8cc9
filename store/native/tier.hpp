// What creation needs of tier.cpp.
#pragma once

#include "layout.hpp"
#include "process.hpp"

namespace conduit {

void fill_frames(const Segments& segments, Table& t);

}  // namespace conduit
