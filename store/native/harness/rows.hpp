// What the harness writes, and what every reader checks: each row says who wrote it and carries a checksum, and all of it
// follows from its identity, so that bytes of two rows can never pass for one.
#pragma once

#include <memory>
#include <vector>

#include "world.hpp"

namespace conduit::harness {

enum class Kind { plain, episodes };

inline constexpr std::uint32_t kSteps = 3;      // windows of episodes: three steps
inline constexpr double kGamma = 0.5;           // rewards are small whole numbers: returns are exact
inline constexpr std::uint32_t kWriters = 1 << 16;

// Identity of a row; for plain rows `chain` and `episode` are 0 and `step` counts the writer's rows.
struct Stamp {
  std::uint32_t writer, chain, episode, step;
  std::uint64_t filler[4];
  std::uint64_t checksum;

  static Stamp of(std::uint32_t writer, std::uint32_t chain, std::uint32_t episode, std::uint32_t step);
  bool whole() const;
  std::uint64_t tag() const;  // what the row's last column holds
};

// Episodes are functions of their identity too.
std::uint32_t episode_length(const Stamp& s);
bool ends_terminated(const Stamp& s);
float reward_of(const Stamp& s, std::uint32_t step);

struct TableShape {
  Kind kind = Kind::plain;
  std::uint32_t rows_per_block = 13, n_blocks = 12;  // odd: lines of the trees belong to two blocks
  std::uint64_t max_size = 60;
  bool prioritized = true;
  std::uint32_t n_frames = 0;  // blocks that memory holds, where others lie on disk
};
TableSpec spec_of(const TableShape& shape, std::uint64_t seed);
Plan plan_of(const TableShape& shape);

// An endless supply of rows of one writer.
class Feed {
 public:
  Feed(Kind kind, std::uint32_t chains, std::uint64_t seed);
  std::uint32_t writer() const { return writer_; }
  std::uint32_t chains() const { return static_cast<std::uint32_t>(at_.size()); }
  void fill(std::uint32_t n);
  Rows rest(std::uint32_t done);  // what fill() made, from row `done` on; valid until the next call
  std::uint32_t steps(std::uint32_t first, std::uint32_t last) const;  // rows [first, last) that are not final observations

 private:
  struct Position {
    std::uint32_t episode = 0, step = 0;
  };
  void add(std::uint32_t chain);

  Kind kind_;
  std::uint32_t writer_;
  Random random_;
  std::vector<Position> at_;
  std::vector<Stamp> stamps_;
  std::vector<float> rewards_, priorities_;
  std::vector<std::uint64_t> tags_;
  std::vector<std::uint8_t> flags_;
  std::vector<std::int32_t> chains_;
  bool with_priorities_ = false, whole_ = false;
  const std::byte* columns_[3] = {};
};

// Writers that may have cut their chains short (closed or dead): their last windows may be shorter. Set before they close.
std::atomic<bool>& cut(std::uint32_t writer);

// Fatal unless all `n` rows of a gathered batch are whole and are what their identity says.
void check_batch(const TableShape& shape, const Plan& plan, std::uint32_t n, const std::byte* batch, bool drawn);
// The same for rows [first, last) of a block, in place.
void check_block(const TableShape& shape, const TableCore& table, std::uint32_t block, std::uint32_t first, std::uint32_t last);

}  // namespace conduit::harness
