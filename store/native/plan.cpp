#include "plan.hpp"

#include <algorithm>

namespace conduit {
namespace {

constexpr std::uint64_t kAlign = 64;

}  // namespace

bool Plan::has(Source source) const {
  return std::any_of(outputs.begin(), outputs.end(), [&](const Output& output) { return output.source == source; });
}

bool Plan::ragged() const {
  return std::any_of(outputs.begin(), outputs.end(), [](const Output& output) { return output.element_bytes > 0; });
}

std::uint32_t Plan::count(Source source) const {
  switch (source) {
    case Source::sequence: case Source::mask: return before + steps;
    case Source::stack: case Source::next_stack: return stack;
    case Source::after: return steps;
    default: return 1;
  }
}

std::vector<std::uint64_t> Plan::offsets(std::uint64_t n) const {
  std::vector<std::uint64_t> result;
  result.reserve(outputs.size() + 4);
  std::uint64_t at = 0;
  const auto add = [&](std::uint64_t bytes) {
    result.push_back(at);
    at = (at + bytes + kAlign - 1) / kAlign * kAlign;
  };
  for (const Output& output : outputs) add(output.element_bytes > 0 ? (n * count(output.source) + 1) * sizeof(std::int64_t) : output.row_bytes * n);
  add(sizeof(std::uint64_t) * n);
  add(sizeof(double) * n);
  add(sizeof(float) * n);
  result.push_back(at);
  return result;
}

}  // namespace conduit
