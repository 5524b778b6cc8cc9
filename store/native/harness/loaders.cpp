// Loaders beside writers, updaters and upkeep: their threads prepare ahead, are overtaken by changes, and end at any moment.
#include <cstdio>
#include <deque>

#include "../error.hpp"
#include "../loader.hpp"
#include "actors.hpp"

namespace conduit::harness {
namespace {

struct Tally {
  std::atomic<std::uint64_t> batches{0}, redrawn{0}, loaders{0};
};

// One loader after another, each for some batches; the last batches stay held while others come.
void load(Stage& stage, std::shared_ptr<Process> process, std::uint32_t loaders, std::uint32_t seed, Tally& tally) {
  Random random(seed);
  const std::shared_ptr<TableCore> table = stage.open(std::move(process));
  for (std::uint32_t turn = 0; turn < loaders; ++turn) {
    LoaderSettings settings;
    settings.n = 1 + random.below(32);
    settings.stream = seed;
    settings.depth = random.below(4);
    settings.most = random.below(2) == 0 ? 0 : 6;
    if (random.below(3) > 0) settings.max_drift = random.below(2) == 0 ? 0.0 : 0.2 * random.unit();
    Loader loader(table, plan_of(stage.shape), settings, staging_pool());
    std::deque<Prepared> held;
    const std::uint32_t batches = random.below(60);
    std::uint64_t expected = 0;
    for (std::uint32_t done = 0; done < batches && stage.writing.load() > 0;) {
      Prepared batch;
      std::vector<std::uint64_t> discarded;
      if (!loader.next(now_ns(), 2'000'000, &batch, &discarded)) continue;
      EXPECT(batch.number == expected, "batch %llu where %llu was due", static_cast<unsigned long long>(batch.number), static_cast<unsigned long long>(expected));
      ++expected;
      ++done;
      held.push_back(std::move(batch));
      if (held.size() > 3) held.pop_front();
      for (const Prepared& b : held) check_batch(stage.shape, loader.plan(), settings.n, b.staging->data(), true);
      if (random.below(4) == 0) nap_us(random.below(200));
    }
    tally.batches += expected;
    tally.redrawn += loader.metrics().redrawn;
    ++tally.loaders;
    if (random.below(2) == 0) loader.close();
  }
}

std::string beside_writers(const Options& options, const TableShape& shape) {
  Stage stage(shape, options.seed);
  stage.writing = 2;
  Tally tally;
  {
    Crew crew;
    for (std::uint32_t i = 0; i < 2; ++i) {
      crew.start("writer", [&stage, &options, i] { write_rows(stage, stage.open(), 20'000 * options.rounds, 2, stage.seed * 100 + i); });
    }
    const std::shared_ptr<Process> shared = stage.world.attach();
    for (std::uint32_t i = 0; i < 2; ++i) {
      crew.start("loaders", [&stage, &options, &tally, shared, i] { load(stage, shared, 150 * options.rounds, i + 1, tally); });
    }
    crew.start("sampler", [&stage, &options] { sample_batches(stage, stage.open(), 1000 * options.rounds, 9, true); });
    crew.start("upkeep", [&stage, &options] { look_after(stage, stage.open(), 200 * options.rounds, stage.seed + 8, true); });
  }
  stage.finish(false);
  return stage.counts() + ", " + std::to_string(tally.loaders.load()) + " loaders handed over " + std::to_string(tally.batches.load()) + " batches and redrew " +
         std::to_string(tally.redrawn.load());
}

std::string loaders_plain(const Options& options) { return beside_writers(options, {}); }
std::string loaders_episodes(const Options& options) { return beside_writers(options, {Kind::episodes, 10, 18, 64, true}); }

// Several consumers, a wait that close() ends, a store that is closed under its loader.
std::string loader_ends(const Options& options) {
  std::uint64_t handed = 0;
  for (std::uint32_t turn = 0; turn < 30 * options.rounds; ++turn) {
    Stage stage({}, options.seed + turn);
    Feed feed(Kind::plain, 1, options.seed);
    Writer writer(stage.open(), 1);
    if (turn % 3 != 0) {
      feed.fill(50);
      append_all(stage, writer, feed);
    }
    const std::shared_ptr<Process> process = stage.world.attach();
    LoaderSettings settings;
    settings.n = 8;
    settings.depth = turn % 4;
    std::atomic<std::uint64_t> taken{0};
    {
      Loader loader(stage.open(process), plan_of(stage.shape), settings, staging_pool());
      Crew crew;
      for (int i = 0; i < 3; ++i) {
        crew.start("consumer", [&] {
          try {
            for (;;) {
              Prepared batch;
              std::vector<std::uint64_t> discarded;
              taken += loader.next(now_ns(), 50'000'000, &batch, &discarded);
            }
          } catch (const Error& error) {
            EXPECT(error.code == ErrorCode::closed, "%s", error.what());
          }
        });
      }
      nap_us(2000);
      if (turn % 2 == 0) process->close();
      loader.close();
      loader.close();
    }
    handed += taken.load();
    writer.close();
    stage.finish(false);
  }
  return std::to_string(handed) + " batches";
}

}  // namespace

std::vector<Scenario> loader_scenarios() {
  return {{"loaders-plain", "loaders of prioritized rows, with and without a bound on drift, beside writers", loaders_plain},
          {"loaders-episodes", "the same with 3-step windows", loaders_episodes},
          {"loader-ends", "loaders that are closed while several wait", loader_ends}};
}

}  // namespace conduit::harness
