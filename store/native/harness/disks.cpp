// Tables of which memory holds a few blocks: movers beside writers, samplers, loaders' views and upkeep.
#include <string>

#include "actors.hpp"

namespace conduit::harness {
namespace {

void move_blocks(Stage& stage, std::shared_ptr<TableCore> table) {
  while (!stage.over.load()) {
    EXPECT(table->move_blocks(1'000'000) != TableCore::Moves::failed, "blocks cannot be moved");
  }
}

std::string movers(const Options& options, const TableShape& shape) {
  Stage stage(shape, options.seed);
  stage.writing = 2;
  {
    Crew movers;
    for (int i = 0; i < 2; ++i) movers.start("mover", [&stage] { move_blocks(stage, stage.open()); });
    {
      Crew crew;
      for (std::uint32_t i = 0; i < 2; ++i) {
        crew.start("writer", [&stage, &options, i] { write_rows(stage, stage.open(), 15'000 * options.rounds, 2, stage.seed * 100 + i); });
      }
      const std::shared_ptr<Process> shared = stage.world.attach();
      for (std::uint32_t i = 0; i < 2; ++i) {
        crew.start("sampler", [&stage, &options, shared, i] { sample_batches(stage, stage.open(i == 0 ? stage.world.attach() : shared), 2'000 * options.rounds, i, true); });
      }
      crew.start("pins", [&stage, &options] { hold_pins(stage, stage.open(), 60 * options.rounds, stage.seed + 7); });
      crew.start("upkeep", [&stage, &options] { look_after(stage, stage.open(), 200 * options.rounds, stage.seed + 8, true); });
    }
    stage.over = true;
  }
  const TierInfo tier = stage.creator->tier_info();
  EXPECT(tier.blocks_written > 0 && tier.rows_from_disk > 0, "%llu blocks were moved, %llu rows read from disk", static_cast<unsigned long long>(tier.blocks_written),
         static_cast<unsigned long long>(tier.rows_from_disk));
  stage.finish(false);
  return stage.counts() + ", " + std::to_string(tier.blocks_written) + " blocks to disk, " + std::to_string(tier.blocks_promoted) + " back, " + std::to_string(tier.rows_from_disk) + " rows read there";
}

std::string disk_plain(const Options& options) { return movers(options, {Kind::plain, 13, 30, 300, true, 10}); }
std::string disk_episodes(const Options& options) { return movers(options, {Kind::episodes, 10, 40, 250, true, 12}); }

}  // namespace

std::vector<Scenario> disk_scenarios() {
  return {{"disk-plain", "blocks that move between memory and disk, beside writers, samplers and views", disk_plain},
          {"disk-episodes", "the same with 3-step windows", disk_episodes}};
}

}  // namespace conduit::harness
