// Single faults, made on purpose: stale keys counted exactly, a reader expelled in the middle of its copy.
#include <algorithm>
#include <cstdio>

#include "../failpoints.hpp"
#include "../sync.hpp"
#include "actors.hpp"

namespace conduit::harness {
namespace {

// One thread: which keys are stale after each append is known exactly.
void count_stale(const TableShape& shape, const Options& options) {
  Stage stage(shape, options.seed);
  Random random(options.seed);
  Feed feed(shape.kind, 1, options.seed);
  Writer writer(stage.open(), 1);
  TableCore& table = *stage.creator;
  Sampler sampler(stage.creator, plan_of(shape));
  std::vector<std::uint64_t> keys(64);
  Target target;
  for (std::uint32_t turn = 0; turn < 400 * options.rounds; ++turn) {
    feed.fill(1 + random.below(30));
    append_all(stage, writer, feed);
    if (random.below(20) == 0) table.clear();
    const std::vector<float> before = table.priorities(0, keys.data(), keys.size());
    const auto gone = static_cast<std::uint64_t>(std::count_if(before.begin(), before.end(), [](float p) { return !(p >= 0.0f); }));
    // every key twice, the second time with the value that must stay
    std::vector<std::uint64_t> twice(keys);
    twice.insert(twice.end(), keys.begin(), keys.end());
    std::vector<float> priorities(twice.size(), 3.0f);
    for (std::size_t i = 0; i < keys.size(); ++i) priorities[keys.size() + i] = static_cast<float>(keys[i] % 97);
    const UpdateCount count = table.update(0, twice.data(), priorities.data(), twice.size());
    EXPECT(count.stale == 2 * gone && count.applied == twice.size() - 2 * gone, "%llu stale of %zu, expected %llu", static_cast<unsigned long long>(count.stale), twice.size(), static_cast<unsigned long long>(2 * gone));
    stage.applied += count.applied;
    stage.stale += count.stale;
    const std::vector<float> after = table.priorities(0, keys.data(), keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT((before[i] >= 0.0f) == (after[i] >= 0.0f) && (!(after[i] >= 0.0f) || after[i] == static_cast<float>(keys[i] % 97)), "priority %g of key %llu", static_cast<double>(after[i]), static_cast<unsigned long long>(keys[i]));
    }
    expect_consistent(table, "after an update");
    SampleState state;
    Reservation held;
    const auto n = static_cast<std::uint32_t>(keys.size());
    if (sampler.sample(n, &target, 0, turn, &state, &held) != SampleStatus::ok) continue;
    check_batch(shape, sampler.plan(), n, target.staging->data(), true);
    const auto* drawn = reinterpret_cast<const std::uint64_t*>(target.staging->data() + sampler.plan().offsets(n)[sampler.plan().outputs.size()]);
    for (std::size_t i = random.below(2); i < keys.size(); i += 1 + random.below(2)) keys[i] = drawn[i];  // some stay, and grow stale
  }
  writer.close();
  stage.finish(false);
}

std::string stale_keys(const Options& options) {
  count_stale({}, options);
  count_stale({Kind::episodes, 10, 18, 64, true}, options);
  return std::to_string(800 * options.rounds) + " updates of 128 keys";
}

// A reader stops in the middle of its copy, as under SIGSTOP. Writers expel it, reuse its blocks and go on; when it wakes
// it throws its batch away and draws another. What it had copied before it was expelled and after its last sign of life
// is formally a data race with the writers that follow; it is not delivered. ThreadSanitizer cannot know, and gets the
// points only where nothing has been copied yet.
std::string expulsion(const Options& options) {
  const TableShape shapes[] = {{}, {Kind::episodes, 10, 18, 64, true}};
  std::uint64_t discarded = 0;
  for (std::uint32_t turn = 0; turn < 6 * options.rounds; ++turn) {
    if (kThreadSanitizer && turn % 3 == 2) continue;
    const TableShape& shape = shapes[turn % 2];
    Stage stage(shape, options.seed + turn);
    Feed feed(shape.kind, 1, options.seed);
    Writer writer(stage.open(), 1);
    const auto append = [&](std::uint32_t rows) {
      feed.fill(rows);
      append_all(stage, writer, feed);
    };
    append(100);
    const char* point = turn % 3 == 0 ? "reader_entered" : turn % 3 == 1 ? "gather_begin" : "gather_column";
    const long hits = failpoint_hits(point);
    failpoint_arm(point, FailAction::pause, turn % 3 == 2 ? 2 : 1);
    {
      Crew crew;
      crew.start("stopped reader", [&] { sample_batches(stage, stage.open(), 1, 0, false); });
      while (failpoint_hits(point) < hits + (turn % 3 == 2 ? 2 : 1)) nap_us(50);
      append(2000);  // needs each of the reader's blocks many times over
      EXPECT(stage.batches.load() == 0, "the stopped reader delivered a batch");
      failpoint_resume();
    }
    EXPECT(stage.batches.load() == 1, "the woken reader delivered no batch");
    const std::uint64_t count = stage.creator->info(0).discarded_batches;
    EXPECT(count >= 1, "the expelled reader discarded nothing");
    discarded += count;
    writer.close();
    stage.finish(false);
  }
  return std::to_string(discarded) + " batches discarded";
}

}  // namespace

std::vector<Scenario> special_scenarios() {
  return {{"stale-keys", "updates with keys of rows that are gone, counted exactly; the last of equal keys wins", stale_keys},
          {"expulsion", "a reader stopped in the middle of its copy", expulsion}};
}

}  // namespace conduit::harness
