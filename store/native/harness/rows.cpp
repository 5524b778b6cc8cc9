#include "rows.hpp"

#include <string.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace conduit::harness {
namespace {

std::atomic<std::uint32_t> writers{0};
std::array<std::atomic<bool>, kWriters> cuts{};

constexpr std::uint64_t align(std::uint64_t n) { return (n + 63) / 64 * 64; }

std::uint64_t identity(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  return mix(mix(std::uint64_t{a} << 32 | b) ^ (std::uint64_t{c} << 32 | d));
}

std::uint64_t episode_hash(const Stamp& s) { return identity(s.writer, s.chain, s.episode, ~0u); }

[[noreturn]] void torn(const char* where, const Stamp& s) {
  fatal("torn row in %s: writer %u, chain %u, episode %u, step %u", where, s.writer, s.chain, s.episode, s.step);
}

Stamp stamp_at(const std::byte* at) {
  Stamp s;
  memcpy(&s, at, sizeof s);
  return s;
}

template <class T>
T value_at(const std::byte* base, std::uint64_t index) {
  T value;
  memcpy(&value, base + index * sizeof(T), sizeof value);
  return value;
}

}  // namespace

std::atomic<bool>& cut(std::uint32_t writer) { return cuts[writer % kWriters]; }

Stamp Stamp::of(std::uint32_t writer, std::uint32_t chain, std::uint32_t episode, std::uint32_t step) {
  Stamp s{writer, chain, episode, step, {}, 0};
  const std::uint64_t h = identity(writer, chain, episode, step);
  for (std::uint32_t i = 0; i < 4; ++i) s.filler[i] = mix(h + i);
  s.checksum = mix(h ^ s.filler[0] ^ s.filler[1] ^ s.filler[2] ^ s.filler[3]);
  return s;
}

bool Stamp::whole() const {
  const Stamp expected = of(writer, chain, episode, step);
  return memcmp(this, &expected, sizeof expected) == 0;
}

std::uint64_t Stamp::tag() const { return ~checksum; }

std::uint32_t episode_length(const Stamp& s) { return 1 + static_cast<std::uint32_t>(episode_hash(s) % 11); }
bool ends_terminated(const Stamp& s) { return episode_hash(s) >> 32 & 1; }
float reward_of(const Stamp& s, std::uint32_t step) { return static_cast<float>((episode_hash(s) >> 40 & 15) + step % 5) - 8.0f; }

TableSpec spec_of(const TableShape& shape, std::uint64_t seed) {
  TableSpec spec;
  spec.name = shape.kind == Kind::plain ? "plain" : "episodes";
  spec.spec = "{}";
  spec.seed = seed;
  spec.max_size = shape.max_size;
  spec.n_blocks = shape.n_blocks;
  spec.n_frames = shape.n_frames > 0 ? shape.n_frames : shape.n_blocks;
  spec.rows_per_block = shape.rows_per_block;
  for (const std::uint64_t bytes : {sizeof(Stamp), sizeof(float), sizeof(std::uint64_t)}) {
    spec.columns.push_back({spec.block_bytes, bytes});
    spec.block_bytes += align(bytes * shape.rows_per_block);
  }
  ViewSpec view;
  view.prioritized = shape.prioritized;
  view.chances.alpha = 0.6;
  view.chances.beta = 0.4;
  if (shape.kind == Kind::episodes) {
    spec.links = true;
    view.steps_after = kSteps;
  }
  spec.views = {view};
  return spec;
}

Plan plan_of(const TableShape& shape) {
  Plan plan;
  plan.outputs = {{Source::row, 0, sizeof(Stamp)}, {Source::row, 2, sizeof(std::uint64_t)}};
  if (shape.kind == Kind::plain) {
    plan.outputs.push_back({Source::row, 1, sizeof(float)});
    return plan;
  }
  plan.steps = kSteps;
  plan.gamma = kGamma;
  plan.outputs.insert(plan.outputs.end(), {{Source::n_step_sum, 1, sizeof(float)}, {Source::successor, 0, sizeof(Stamp)},
                                           {Source::terminated, 0, 1}, {Source::truncated, 0, 1},
                                           {Source::discount, 0, sizeof(float)}, {Source::steps, 0, sizeof(std::int32_t)}});
  return plan;
}

Feed::Feed(Kind kind, std::uint32_t chains, std::uint64_t seed) : kind_(kind), writer_(writers.fetch_add(1)), random_(seed), at_(chains) {}

void Feed::add(std::uint32_t chain) {
  Position& p = at_[chain];
  const Stamp stamp = Stamp::of(writer_, chain, p.episode, p.step);
  std::uint8_t flags = 0;
  ++p.step;
  if (kind_ == Kind::episodes) {
    const std::uint32_t length = episode_length(stamp);
    if (stamp.step + 1 == length) flags = ends_terminated(stamp) ? kTerminated : kTruncated;
    if (stamp.step == length) {
      flags = kFinal;
      p = {p.episode + 1, 0};
    }
  }
  stamps_.push_back(stamp);
  rewards_.push_back(reward_of(stamp, stamp.step));
  tags_.push_back(stamp.tag());
  flags_.push_back(flags);
  chains_.push_back(static_cast<std::int32_t>(chain));
  const std::uint32_t choice = random_.below(8);  // some zero, which is never drawn; some the default
  priorities_.push_back(choice == 0 ? 0.0f : choice == 1 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(random_.below(100)));
}

void Feed::fill(std::uint32_t n) {
  stamps_.clear();
  rewards_.clear();
  priorities_.clear();
  tags_.clear();
  flags_.clear();
  chains_.clear();
  with_priorities_ = random_.below(2) == 0;
  whole_ = random_.below(2) == 0;
  for (std::uint32_t i = 0; i < n; ++i) add(random_.below(chains()));
}

Rows Feed::rest(std::uint32_t done) {
  columns_[0] = reinterpret_cast<const std::byte*>(stamps_.data() + done);
  columns_[1] = reinterpret_cast<const std::byte*>(rewards_.data() + done);
  columns_[2] = reinterpret_cast<const std::byte*>(tags_.data() + done);
  Rows rows;
  rows.n = static_cast<std::uint32_t>(stamps_.size()) - done;
  rows.columns = columns_;
  rows.flags = kind_ == Kind::episodes ? flags_.data() + done : nullptr;
  rows.priorities = with_priorities_ ? priorities_.data() + done : nullptr;
  rows.chains = chains() > 1 ? chains_.data() + done : nullptr;
  rows.whole = whole_;
  return rows;
}

std::uint32_t Feed::steps(std::uint32_t first, std::uint32_t last) const {
  std::uint32_t count = 0;
  for (std::uint32_t i = first; i < last; ++i) count += (flags_[i] & kFinal) == 0;
  return count;
}

namespace {

void check_window(const Stamp& s, const std::byte* batch, const std::vector<std::uint64_t>& offsets, std::uint32_t i) {
  const Stamp after = stamp_at(batch + offsets[3] + i * sizeof(Stamp));
  if (!after.whole()) torn("next_obs", after);
  const std::uint32_t length = episode_length(s);
  EXPECT(s.step < length, "final observation drawn: writer %u, step %u", s.writer, s.step);
  EXPECT(after.writer == s.writer && after.chain == s.chain && after.episode == s.episode, "a window crosses episodes: writer %u chain %u episode %u, then %u %u %u",
         s.writer, s.chain, s.episode, after.writer, after.chain, after.episode);
  const auto m = value_at<std::int32_t>(batch + offsets[7], i);
  const std::uint32_t whole = std::min(kSteps, length - s.step);
  EXPECT(m >= 1 && after.step == s.step + static_cast<std::uint32_t>(m), "window from step %u of %d steps ends at %u", s.step, m, after.step);
  EXPECT(after.step == s.step + whole || (after.step < s.step + whole && cut(s.writer).load()), "window from step %u of %u has %d steps, expected %u", s.step, length, m, whole);
  const bool ends = after.step == length;
  const bool terminated = value_at<std::uint8_t>(batch + offsets[4], i) != 0, truncated = value_at<std::uint8_t>(batch + offsets[5], i) != 0;
  EXPECT(terminated == (ends && ends_terminated(s)) && truncated == (ends && !ends_terminated(s)), "window to step %u of %u: terminated %d, truncated %d", after.step, length, terminated, truncated);
  const auto discount = value_at<float>(batch + offsets[6], i);
  EXPECT(discount == (terminated ? 0.0f : static_cast<float>(std::pow(kGamma, m))), "discount %g after %d steps", static_cast<double>(discount), m);
  double sum = 0.0;
  for (std::int32_t k = 0; k < m; ++k) sum += std::pow(kGamma, k) * static_cast<double>(reward_of(s, s.step + static_cast<std::uint32_t>(k)));
  const auto reward = value_at<float>(batch + offsets[2], i);
  EXPECT(static_cast<double>(reward) == sum, "return %g over %d steps, expected %g", static_cast<double>(reward), m, sum);
}

}  // namespace

void check_batch(const TableShape& shape, const Plan& plan, std::uint32_t n, const std::byte* batch, bool drawn) {
  const std::vector<std::uint64_t> offsets = plan.offsets(n);
  const std::size_t extra = plan.outputs.size();
  float largest = 0.0f;
  for (std::uint32_t i = 0; i < n; ++i) {
    const Stamp s = stamp_at(batch + offsets[0] + i * sizeof(Stamp));
    if (!s.whole() || value_at<std::uint64_t>(batch + offsets[1], i) != s.tag()) torn("a batch", s);
    if (shape.kind == Kind::episodes) {
      check_window(s, batch, offsets, i);
    } else {
      EXPECT(value_at<float>(batch + offsets[2], i) == reward_of(s, s.step), "third column of another row: writer %u, row %u", s.writer, s.step);
    }
    if (!drawn) continue;
    const auto probability = value_at<double>(batch + offsets[extra + 1], i);
    const auto weight = value_at<float>(batch + offsets[extra + 2], i);
    EXPECT(probability > 0.0 && probability <= 1.0, "row drawn with probability %g", probability);
    EXPECT(weight > 0.0f && weight <= 1.0f, "weight %g", static_cast<double>(weight));
    largest = std::max(largest, weight);
  }
  if (drawn && n > 0) EXPECT(largest == 1.0f, "largest weight %g", static_cast<double>(largest));
}

void check_block(const TableShape& shape, const TableCore& table, std::uint32_t block, std::uint32_t first, std::uint32_t last) {
  const Unpacked unpacked(table);
  const std::byte* base = table.block_data(block);
  for (std::uint32_t row = first; row < last; ++row) {
    const Stamp s = stamp_at(base + table.columns()[0].block_offset + row * sizeof(Stamp));
    if (!s.whole() || value_at<std::uint64_t>(base + table.columns()[2].block_offset, row) != s.tag()) torn("a pinned block", s);
    if (shape.kind == Kind::plain) continue;
    EXPECT(s.step <= episode_length(s), "step %u of an episode of %u", s.step, episode_length(s));
  }
}

}  // namespace conduit::harness
