// Numbers that change with the count of batches drawn: linearly or by a constant factor, from `start` to `end`, which is
// reached after `batches` batches and kept.
#pragma once

#include <algorithm>
#include <cmath>

#include "layout.hpp"

namespace conduit {

inline double value_at(const Schedule& schedule, std::uint64_t batch) {
  if (batch >= schedule.batches) return schedule.end;
  const double part = static_cast<double>(batch) / static_cast<double>(schedule.batches);
  if (schedule.kind == kLinear) return schedule.start + (schedule.end - schedule.start) * part;
  return schedule.start * std::pow(schedule.end / schedule.start, part);
}

}  // namespace conduit
