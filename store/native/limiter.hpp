// Limiters: how far inserts and samples of a table may run apart. All of it is decided under the index lock, after folding.
//
//   kMinSize         a sample needs min_size live steps
//   kSampleToInsert  cursor = inserts * ratio - samples + shift. A sample of n needs min_size live steps and cursor - n >= low(),
//                    an insert needs cursor + ratio <= high(), or fewer than min_size live steps
//   kQueueCapacity   an insert needs fewer than `capacity` live steps; steps leave by being sampled
//
// An insert also goes in, one at a time, while nothing can be drawn: else a table of unfinished episodes would stand still.
// Inserts count when they are folded, which every decision does first, and what limited tables publish they publish under the
// same lock: no decision misses one. Samples count when they are drawn: the draw takes them (Tally::taken), and holds them as a
// reservation until they are delivered or returned.
// A. Cassirer et al., "Reverb: a framework for experience replay", 2021.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "layout.hpp"

namespace conduit {

class TableCore;

// A table's limiter at one moment, for decisions and for messages.
struct LimiterState {
  Settings settings{};
  std::uint64_t live_steps = 0;
  std::uint64_t inserts = 0;       // steps, since creation or the last clear
  std::uint64_t samples = 0;       // rows drawn and not returned; kSampleToInsert only, as the next two
  std::uint64_t reserved = 0;      // of these, neither delivered nor returned
  double cursor = 0.0;

  // Steps that the limiter of kind `kind` lets in now; `drawable`: whether anything can be drawn. All `asked` go in at once
  // with `whole`.
  std::uint64_t room(std::uint32_t kind, std::uint64_t asked, bool whole, bool drawable) const;
  bool admits(std::uint64_t samples_asked) const;  // kSampleToInsert
};

// Rows that a draw has taken from the limiter's allowance. They return when this ends without their delivery. Neither needs the
// lock. In a forked child it does nothing.
class Reservation {
 public:
  Reservation() = default;
  Reservation(std::shared_ptr<TableCore> table, std::uint64_t rows, std::uint64_t era);
  Reservation(Reservation&& other) noexcept { swap(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    Reservation old(std::move(*this));
    swap(other);
    return *this;
  }
  ~Reservation();

  void delivered();
  // Whether `rows` are held of the counts of `era`.
  bool holds(std::uint64_t rows, std::uint64_t era) const { return table_ != nullptr && rows_ == rows && era_ == era; }

 private:
  void swap(Reservation& other) noexcept {
    table_.swap(other.table_);
    std::swap(rows_, other.rows_);
    std::swap(era_, other.era_);
    std::swap(slot_, other.slot_);
    std::swap(forks_, other.forks_);
  }
  std::shared_ptr<TableCore> table_;
  std::uint64_t rows_ = 0, era_ = 0;
  std::uint32_t slot_ = 0, forks_ = 0;
};

// Of `n` rows with these flags (null: none), how many are steps, and how many of them from the first on go in where `room`
// steps may: final observations behind the last of those go with it.
std::uint32_t steps_of(const std::uint8_t* flags, std::uint32_t n);
std::uint32_t rows_within(const std::uint8_t* flags, std::uint32_t n, std::uint64_t room);

enum class InsertStatus { published, sealed, blocked, never };

// What became of rows that a writer wanted to publish: how many of them, from the first on, are in.
struct Insert {
  InsertStatus status = InsertStatus::published;
  std::uint32_t rows = 0;
};

}  // namespace conduit
