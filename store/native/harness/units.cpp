// The parts without shared memory, against plain recomputation.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "../layout.hpp"
#include "../philox.hpp"
#include "../sampler.hpp"
#include "../tree.hpp"
#include "harness.hpp"

namespace conduit::harness {
namespace {

std::vector<std::uint32_t> sizes_to_try(Random& random, std::uint32_t more) {
  std::vector<std::uint32_t> sizes{1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4095, 4096, 4097, 5000};
  for (std::uint32_t i = 0; i < more; ++i) sizes.push_back(1 + random.below(5000));
  return sizes;
}

struct SumMemory {
  explicit SumMemory(std::uint32_t n) {
    std::uint64_t sizes[kTreeLevels];
    double* at[kTreeLevels];
    const std::uint32_t levels = SumTree::plan(n, sizes);
    for (std::uint32_t k = 0; k < levels; ++k) {
      memory.emplace_back(sizes[k], 0.0);  // of exactly this size: the address sanitizer watches the edges
      at[k] = memory.back().data();
    }
    tree = SumTree(at, sizes, levels);
  }
  std::vector<std::vector<double>> memory;
  SumTree tree;
};

// Sets some leaves and refreshes their lines as an update does (any order, duplicates) or as an eviction does (a range).
void change_leaves(SumMemory& sum, std::uint32_t n, Random& random, const std::function<double()>& value) {
  std::vector<LineRange> lines;
  if (random.below(3) == 0) {
    const std::uint32_t first = random.below(n), last = first + random.below(n - first);
    for (std::uint32_t i = first; i <= last; ++i) sum.tree.leaves()[i] = value();
    lines.push_back({first / kFanOut, last / kFanOut});
  } else {
    for (std::uint32_t i = 0, count = 1 + random.below(300); i < count; ++i) {
      const std::uint32_t leaf = random.below(n);
      sum.tree.leaves()[leaf] = value();
      lines.push_back({leaf / kFanOut, leaf / kFanOut});
    }
  }
  sum.tree.refresh(lines.data(), static_cast<std::uint32_t>(lines.size()));
}

void check_draws(const SumMemory& sum, std::uint32_t n, Random& random) {
  std::vector<double> before(n + 1, 0.0);  // whole numbers: exact
  for (std::uint32_t i = 0; i < n; ++i) before[i + 1] = before[i] + sum.tree.leaves()[i];
  const double total = before[n];
  EXPECT(sum.tree.total() == total, "size %u: total %.17g, recomputed %.17g", n, sum.tree.total(), total);
  const std::uint32_t first = random.below(n + 1), last = first + random.below(n - first + 1);
  EXPECT(sum.tree.range_sum(first, last) == before[last] - before[first], "size %u: sum of [%u, %u)", n, first, last);
  if (total == 0.0) return;
  std::vector<double> masses{0.0, std::nextafter(total, 0.0), total, std::nextafter(total, 2 * total)};
  for (std::uint32_t i = 0, count = random.below(64); i < count; ++i) masses.push_back(random.unit() * total);
  for (std::uint32_t i = 0; i < 8; ++i) masses.push_back(before[random.below(n)]);  // on the edges
  std::vector<std::uint32_t> leaves(masses.size());
  sum.tree.find(masses.data(), static_cast<std::uint32_t>(masses.size()), leaves.data());
  for (std::size_t i = 0; i < masses.size(); ++i) {
    auto expected = static_cast<std::uint32_t>(std::upper_bound(before.begin(), before.end(), masses[i]) - before.begin()) - 1;
    if (expected >= n) {  // at or past the total: the last leaf that is not zero
      for (expected = n - 1; sum.tree.leaves()[expected] == 0.0; --expected) {
      }
    }
    EXPECT(leaves[i] == expected, "size %u: mass %.17g of %.17g found %u, expected %u", n, masses[i], total, leaves[i], expected);
  }
}

// Leaves over sixty orders of magnitude: sums round, and yet no zero leaf and none past the end may be drawn.
void check_rounding(std::uint32_t n, Random& random) {
  SumMemory sum(n);
  for (int turn = 0; turn < 4; ++turn) {
    change_leaves(sum, n, random, [&] { return random.below(3) == 0 ? 0.0 : std::pow(10.0, random.unit() * 60 - 30); });
    EXPECT(sum.tree.consistent(), "size %u: not consistent", n);
    const double total = sum.tree.total();
    if (!(total > 0.0)) continue;
    double masses[64];
    std::uint32_t leaves[64];
    for (double& mass : masses) mass = random.unit() * total;
    masses[0] = 0.0;
    masses[1] = std::nextafter(total, 0.0);
    masses[2] = total;
    sum.tree.find(masses, 64, leaves);
    for (const std::uint32_t leaf : leaves) EXPECT(leaf < n && sum.tree.leaves()[leaf] > 0.0, "size %u: leaf %u drawn", n, leaf);
  }
}

std::string sum_tree(const Options& options) {
  Random random(options.seed);
  std::uint64_t changes = 0;
  const std::vector<std::uint32_t> sizes = sizes_to_try(random, 25 * options.rounds);
  for (const std::uint32_t n : sizes) {
    SumMemory sum(n), again(n);
    for (int turn = 0; turn < 6; ++turn, ++changes) {
      change_leaves(sum, n, random, [&] { return random.below(2) == 0 ? 0.0 : 1.0 + random.below(1000); });
      std::copy_n(sum.tree.leaves(), n, again.tree.leaves());
      again.tree.refresh_all();
      EXPECT(sum.tree.consistent() && sum.memory == again.memory, "size %u: differs from its recomputation", n);
      check_draws(sum, n, random);
    }
    check_rounding(n, random);
  }
  return std::to_string(sizes.size()) + " sizes, " + std::to_string(changes) + " changes";
}

constexpr std::uint8_t kInView = ready_flag(1);

struct ExtremeMemory {
  explicit ExtremeMemory(std::uint32_t n) : raw(n, 0.0f), flags(n, 0) {
    std::uint64_t sizes[kTreeLevels];
    Extremes* at[kTreeLevels];
    const std::uint32_t levels = ExtremeTree::plan(n, sizes);
    for (std::uint32_t k = 0; k < levels; ++k) {
      memory.emplace_back(sizes[k]);
      at[k] = memory.back().data();
    }
    tree = ExtremeTree(raw.data(), flags.data(), kInView, n, at, sizes, levels);
  }
  Extremes recomputed() const {
    Extremes found;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if ((flags[i] & kInView) == 0) continue;
      found.largest = std::max(found.largest, raw[i]);
      if (raw[i] > 0.0f) found.smallest = std::min(found.smallest, raw[i]);
      found.least = std::min(found.least, raw[i]);
    }
    return found;
  }
  std::vector<float> raw;
  std::vector<std::uint8_t> flags;
  std::vector<std::vector<Extremes>> memory;
  ExtremeTree tree;
};

std::string extreme_tree(const Options& options) {
  Random random(options.seed);
  std::uint64_t changes = 0;
  const std::vector<std::uint32_t> sizes = sizes_to_try(random, 25 * options.rounds);
  for (const std::uint32_t n : sizes) {
    ExtremeMemory rows(n);
    EXPECT(rows.tree.all() == Extremes{}, "size %u: empty, and yet %g", n, static_cast<double>(rows.tree.all().largest));
    for (int turn = 0; turn < 200; ++turn, ++changes) {
      const std::uint32_t slot = random.below(n);
      if (turn % 8 == 0) {
        const std::uint32_t last = slot + random.below(n - slot);
        for (std::uint32_t i = slot; i <= last; ++i) {
          rows.flags[i] = random.below(2) == 0 ? kInView : 0;
          rows.raw[i] = static_cast<float>(random.below(50));
        }
        rows.tree.refresh(slot, last);
      } else {
        const float before = (rows.flags[slot] & kInView) != 0 ? rows.raw[slot] : -1.0f;
        rows.raw[slot] = static_cast<float>(random.below(turn < 100 ? 1000 : 10));
        rows.flags[slot] = random.below(4) != 0 ? kInView : 0;
        rows.tree.changed(slot, before);
      }
      if (turn % 16 == 0) EXPECT(rows.tree.consistent(), "size %u: not consistent", n);
      const Extremes expected = rows.recomputed();
      EXPECT(rows.tree.all() == expected, "size %u: %g and %g, recomputed %g and %g", n, static_cast<double>(rows.tree.all().largest),
             static_cast<double>(rows.tree.all().smallest), static_cast<double>(expected.largest), static_cast<double>(expected.smallest));
    }
  }
  return std::to_string(sizes.size()) + " sizes, " + std::to_string(changes) + " changes";
}

// Known answers: philox4x32 with 10 rounds, file kat_vectors of Random123.
std::string philox_vectors(const Options&) {
  struct Vector {
    std::array<std::uint32_t, 4> counter;
    std::uint32_t key[2];
    std::array<std::uint32_t, 4> expected;
  };
  const Vector vectors[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Vector& v : vectors) EXPECT(philox(v.counter, v.key[0], v.key[1]) == v.expected, "philox differs from the known answer");
  // 0x6627e8d5e169c58d >> 11, as a fraction of 2^53; and any count gives a prefix of a longer draw
  double draws[9] = {};
  uniform_draws(0, 0, 0, 1, draws);
  EXPECT(draws[0] == static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53, "first draw is %.17g", draws[0]);
  double all[9];
  uniform_draws(7, 3, 1ull << 40, 9, all);
  for (std::uint32_t n = 0; n <= 9; ++n) {
    std::fill_n(draws, 9, -1.0);
    uniform_draws(7, 3, 1ull << 40, n, draws);
    for (std::uint32_t i = 0; i < 9; ++i) EXPECT(draws[i] == (i < n ? all[i] : -1.0), "draw %u of %u", i, n);
    for (std::uint32_t i = 0; i < n; ++i) EXPECT(draws[i] >= 0.0 && draws[i] < 1.0, "draw of %.17g", draws[i]);
  }
  return "3 vectors";
}

std::string plans_and_keys(const Options& options) {
  Random random(options.seed);
  for (std::uint32_t turn = 0; turn < 2000; ++turn) {
    Plan plan;
    for (std::uint32_t k = 0, outputs = random.below(9); k < outputs; ++k) plan.outputs.push_back({Source::row, k, random.below(200)});
    const std::uint64_t n = random.below(1000);
    const std::vector<std::uint64_t> offsets = plan.offsets(n);
    EXPECT(offsets.size() == plan.outputs.size() + 4, "%zu offsets", offsets.size());
    for (std::size_t k = 0; k + 1 < offsets.size(); ++k) {
      const std::size_t tail = k - plan.outputs.size();  // keys, probabilities, weights
      const std::uint64_t bytes = n * (k < plan.outputs.size() ? plan.outputs[k].row_bytes : tail < 2 ? 8 : 4);
      EXPECT(offsets[k] % 64 == 0 && offsets[k] + bytes <= offsets[k + 1], "output %zu of %llu rows", k, static_cast<unsigned long long>(n));
      EXPECT(offsets[k + 1] - offsets[k] < bytes + 64, "output %zu takes %llu bytes", k, static_cast<unsigned long long>(offsets[k + 1] - offsets[k]));
    }
    const std::uint64_t generation = random.bits() >> kSlotBits;
    const auto slot = static_cast<std::uint32_t>(random.bits() & kSlotMask);
    const std::uint64_t key = make_key(generation, slot);
    EXPECT(key >> kSlotBits == generation && (key & kSlotMask) == slot, "key %llx", static_cast<unsigned long long>(key));
  }
  static_assert(make_key(1, 0) == std::uint64_t{1} << 28 && make_key((std::uint64_t{1} << 36) - 1, kSlotMask) == ~std::uint64_t{0});
  return "2000 plans and keys";
}

}  // namespace

std::vector<Scenario> unit_scenarios() {
  return {{"sum-tree", "changes, draws and range sums against recomputation", sum_tree},
          {"max-tree", "changes against recomputation", extreme_tree},
          {"philox", "known answers", philox_vectors},
          {"plans-keys", "offsets of a batch's columns, packing of keys", plans_and_keys}};
}

}  // namespace conduit::harness
