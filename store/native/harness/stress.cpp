// Writers, samplers, updaters, pins and upkeep on one small table, whose blocks are retired and reused all the time.
#include <algorithm>
#include <cstdio>

#include "actors.hpp"

namespace conduit::harness {
namespace {

struct Load {
  std::uint32_t writers = 3, rows = 24'000, samplers = 3, batches = 3000, pins = 200, upkeeps = 600;
  std::uint32_t chains = 1;
  bool clear = true;
};

std::string crowd(const Options& options, const TableShape& shape, const Load& load) {
  Stage stage(shape, options.seed);
  stage.writing = load.writers;
  const std::uint32_t rounds = options.rounds;
  {
    Crew crew;
    for (std::uint32_t i = 0; i < load.writers; ++i) {
      crew.start("writer", [&stage, &load, rounds, i] { write_rows(stage, stage.open(), load.rows * rounds, load.chains + i % 2, stage.seed * 100 + i); });
    }
    const std::shared_ptr<Process> shared = stage.world.attach();  // all samplers but the first are threads of one process
    for (std::uint32_t i = 0; i < load.samplers; ++i) {
      crew.start("sampler", [&stage, &load, rounds, shared, i] {
        sample_batches(stage, i == 0 ? stage.open() : stage.open(shared), load.batches * rounds, i, i != 1);
      });
    }
    crew.start("pins", [&stage, &load, rounds] { hold_pins(stage, stage.open(), load.pins * rounds, stage.seed + 7); });
    crew.start("upkeep", [&stage, &load, rounds] { look_after(stage, stage.open(), load.upkeeps * rounds, stage.seed + 8, load.clear); });
  }
  stage.finish(false);
  return stage.counts();
}

std::string plain(const Options& options) { return crowd(options, {}, {}); }

std::string uniform(const Options& options) {
  TableShape shape;
  shape.prioritized = false;
  Load load;
  load.rows = 12'000;
  load.batches = 1500;
  return crowd(options, shape, load);
}

constexpr TableShape kEpisodes{Kind::episodes, 10, 18, 64, true};

std::string episodes(const Options& options) {
  Load load;
  load.chains = 2;
  return crowd(options, kEpisodes, load);
}

std::string episodes_kept(const Options& options) {  // no clear(): rows live as long as they may
  Load load;
  load.writers = 2;
  load.rows = 16'000;
  load.batches = 2000;
  load.clear = false;
  return crowd(options, kEpisodes, load);
}

// A slow writer beside a fast one: the evictor seals the slow one's block while it still appends to it.
std::string sealed(const Options& options, const TableShape& shape) {
  Stage stage(shape, options.seed);
  stage.writing = 2;
  std::uint32_t sealed_blocks = 0;
  {
    Crew crew;
    crew.start("fast writer", [&] { write_rows(stage, stage.open(), 30'000 * options.rounds, 1, options.seed * 100); });
    crew.start("slow writer", [&] {
      const std::shared_ptr<TableCore> table = stage.open();
      Feed feed(shape.kind, 2, options.seed);
      Writer writer(table, 2);
      while (stage.writing.load() == 2) {
        feed.fill(1);
        append_all(stage, writer, feed);
        nap_us(300);
        for (std::uint32_t b = 0; b < shape.n_blocks; ++b) {
          const std::uint64_t pub = table->block(b).pub.load();
          sealed_blocks += (pub & kSealed) != 0 && (pub & (kReleased | kCut)) == 0;
        }
      }
      cut(feed.writer()).store(true);
      writer.close();
      --stage.writing;
    });
    for (std::uint32_t i = 0; i < 2; ++i) {
      crew.start("sampler", [&stage, &options, i] { sample_batches(stage, stage.open(), 1500 * options.rounds, i, true); });
    }
  }
  EXPECT(sealed_blocks > 0, "no block was sealed under its writer: the scenario does not do what it is for");
  stage.finish(false);
  return stage.counts();
}

std::string sealed_plain(const Options& options) { return sealed(options, {}); }
std::string sealed_episodes(const Options& options) { return sealed(options, kEpisodes); }

// A process that comes, works a little, and goes: in order, or dead.
void visit(Stage& stage, std::uint64_t seed) {
  if (seed % 2 == 0) return leave_corpse(stage, seed);
  const std::shared_ptr<Process> process = stage.world.attach();
  stage.writing += 1;
  write_rows(stage, stage.open(process), static_cast<std::uint32_t>(1 + seed % 30), 1, seed);
  sample_batches(stage, stage.open(process), 1, 100, true);
}

std::string churn(const Options& options, const TableShape& shape) {
  Stage stage(shape, options.seed);
  stage.writing = 1;
  std::atomic<std::uint32_t> visits{0};
  {
    Crew crew;
    crew.start("writer", [&] { write_rows(stage, stage.open(), 20'000 * options.rounds, 2, options.seed); });
    crew.start("sampler", [&] { sample_batches(stage, stage.open(), 1000 * options.rounds, 0, true); });
    crew.start("upkeep", [&] { look_after(stage, stage.open(), 200 * options.rounds, options.seed, true); });
    for (std::uint32_t i = 0; i < 3; ++i) {
      crew.start("visitor", [&, i] {
        for (std::uint32_t turn = 0; turn < 300 * options.rounds; ++turn, ++visits) visit(stage, (options.seed * 3 + i) * 100'001 + turn);
      });
    }
  }
  stage.finish(true);
  return stage.counts() + ", " + std::to_string(visits.load()) + " visits";
}

std::string churn_plain(const Options& options) { return churn(options, {Kind::plain, 13, 20, 60, true}); }
std::string churn_episodes(const Options& options) { return churn(options, {Kind::episodes, 10, 26, 64, true}); }

}  // namespace

std::vector<Scenario> stress_scenarios() {
  return {{"plain", "prioritized plain rows: writers, samplers, updaters, pins, clear, configure, verify", plain},
          {"uniform", "the same without priorities", uniform},
          {"episodes", "the same with 3-step windows over several chains a writer", episodes},
          {"episodes-kept", "3-step windows, never cleared", episodes_kept},
          {"sealed-plain", "a slow writer whose blocks are sealed under it", sealed_plain},
          {"sealed-episodes", "the same with windows across sealed blocks", sealed_episodes},
          {"churn-plain", "processes that attach, work and leave or die", churn_plain},
          {"churn-episodes", "the same with episodes", churn_episodes}};
}

}  // namespace conduit::harness
