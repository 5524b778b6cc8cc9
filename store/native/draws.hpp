// Which rows a batch gets: what a draw is asked for and what it says. The draws themselves are in draws.cpp.
#pragma once

#include <cstdint>
#include <functional>

namespace conduit {

class ViewIndex;

inline constexpr std::uint64_t kNextBatch = ~std::uint64_t{0};

struct DrawRequest {
  std::uint32_t n = 0;
  // Uniform numbers in [0, 1), overwritten: as many as draw_numbers says.
  double* numbers = nullptr;
  // Called with the rows that were found, a few at a time and in any order: what will be read of them can come while others
  // are looked for.
  std::function<void(const std::uint32_t* slots, std::uint32_t n)> ahead;
};

// What a draw has done to its view, beside choosing rows.
struct Drawn {
  std::uint64_t index = kNextBatch;  // of the batch among all that were drawn of the view; given, it is kept
  std::uint32_t epoch = 0;           // without replacement: in which the rows from `epoch_from` on were drawn
  std::uint32_t epoch_from = 0;
  std::uint64_t found = 0;           // few_rows: how many rows could be drawn
};

enum class DrawStatus { ok, no_mass, few_rows };

// How many random numbers a batch of n takes, of view `view`.
std::uint64_t draw_numbers(const ViewIndex& view, std::uint32_t n);

}  // namespace conduit
