// Deaths at every failpoint: a thread that plays a whole process ends there, with whatever lock it holds. The kernel marks
// the robust mutex as it does for a process; the next holder repairs the index. Survivors work on all the while.
//
// Not under ThreadSanitizer: it knows neither that a thread can end without a word, nor that the kernel hands its locks on.
#include <pthread.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include "../error.hpp"
#include "../failpoints.hpp"
#include "../sync.hpp"
#include "actors.hpp"

namespace conduit::harness {
namespace {

constexpr std::size_t kPage = 4096, kStackBytes = 1 << 20;

// What the doomed thread works with. Owned by the scenario, which buries it: the thread's own destructors never run.
struct Doomed {
  Stage* stage;
  std::uint64_t seed;
  std::shared_ptr<Process> process;
  std::shared_ptr<TableCore> table;
  std::unique_ptr<Writer> writer;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<Feed> feed;
  Target target;
};

void work(Doomed& d, std::uint32_t turns) {
  Random random(d.seed);
  Stage& stage = *d.stage;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    d.feed->fill(1 + random.below(20));
    append_all(stage, *d.writer, *d.feed);
    SampleState state;
    Reservation held;
    std::vector<std::uint64_t> keys;
    if (d.sampler->sample(24, &d.target, 50, turn, &state, &held) == SampleStatus::ok) {
      check_batch(stage.shape, d.sampler->plan(), 24, d.target.staging->data(), true);
      const auto* at = d.target.staging->data() + d.sampler->plan().offsets(24)[d.sampler->plan().outputs.size()];
      keys.resize(24);
      memcpy(keys.data(), at, 24 * sizeof keys[0]);
      const std::vector<float> priorities(24, static_cast<float>(turn));
      if (stage.shape.prioritized) d.table->update(0, keys.data(), priorities.data(), keys.size());
    }
    std::uint32_t first, last;
    std::uint64_t generation;
    try {
      const std::uint32_t entry = d.table->pin_block(random.below(stage.shape.n_blocks), &first, &last, &generation);
      d.process->unpin(entry, d.process->forks());
    } catch (const Error& error) {
      if (error.code != ErrorCode::stale) throw;
    }
    if (turn % 4 == 0) d.table->info(0);
    if (turn % 8 == 3) reconfigure(*d.table, 0.25 * (1 + random.below(4)), 0.4, 0.0);
    if (turn % 8 == 7) d.table->clear();
    d.sampler->wait(d.sampler->begin_wait(), 1000, SampleStatus::no_mass);
    if (turn % 8 == 5) d.writer->wait_space(1000);
  }
  d.writer->close();
}

struct Body {
  std::function<void()> run;
  bool finished = false;
};

void* mortal_thread(void* argument) {
  auto& body = *static_cast<Body*>(argument);
#if defined(__SANITIZE_ADDRESS__)
  __lsan_disable();  // what it holds when it ends is lost, as it is with a process
#endif
  failpoint_mortal(true);
  try {
    body.run();
  } catch (const std::exception& error) {
    fatal("doomed process: %s", error.what());
  }
  body.finished = true;
  return nullptr;
}

// Runs `body` in a thread that ends at the `nth` pass of `point`. Whether it did.
bool dies_at(const std::string& point, long nth, std::function<void()> run) {
  Body body{std::move(run)};
  failpoint_arm(point, FailAction::exit_thread, nth);
  // A stack of ours: the C library would hand its own to the next thread with what the dead one has left in it.
  static void* const stack = aligned_alloc(kPage, kStackBytes);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, kStackBytes);
  pthread_t thread;
  if (pthread_create(&thread, &attributes, mortal_thread, &body) != 0) fatal("no thread");
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  failpoint_arm(point, FailAction::none, 0);
  return !body.finished;
}

// Whether the point was reached, and so the process died there.
bool kill_at(Stage& stage, const std::string& point, long nth, std::uint64_t seed) {
  Doomed d{&stage, seed, stage.world.attach(), nullptr, nullptr, nullptr, nullptr, {}};
  leave_corpse(stage, seed);  // for the one who dies here to come upon; attached later, it lies in another slot
  d.table = stage.open(d.process);
  d.writer = std::make_unique<Writer>(d.table, 2);
  d.sampler = std::make_unique<Sampler>(stage.open(d.process), plan_of(stage.shape));
  d.feed = std::make_unique<Feed>(stage.shape.kind, 2, seed);
  cut(d.feed->writer()).store(true);
  const bool dead = dies_at(point, nth, [&d] { work(d, 24); });
  if (dead) die(*d.process);
  return dead;
}

// Points that the doomed thread cannot be ended at here: the Process would still hold its slot. The crash suite, which
// kills real processes, has them.
bool elsewhere(const std::string& point) {
  return point.starts_with("attach_") || point.starts_with("detach_") || point.starts_with("create_") || point.starts_with("recover_");
}

std::string deaths(const Options& options, const TableShape& shape) {
  std::uint32_t died = 0, lived = 0;
  std::uint64_t recoveries = 0;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    Stage stage(shape, options.seed + round);
    stage.writing = 1;
    Crew crew;
    crew.start("surviving writer", [&] {
      Feed feed(shape.kind, 1, options.seed);
      Writer writer(stage.open(), 1);
      while (!stage.over.load()) {
        feed.fill(9);
        append_all(stage, writer, feed);
        nap_us(200);
      }
      cut(feed.writer()).store(true);
      writer.close();
      --stage.writing;
    });
    crew.start("surviving sampler", [&] { sample_batches(stage, stage.open(), ~0u, 0, true); });
    for (const std::string& point : failpoint_names()) {
      if (elsewhere(point)) continue;
      for (const long nth : {1L, 2L, 7L, 20L}) {
        const bool dead = kill_at(stage, point, nth, options.seed * 1000 + died + lived);
        died += dead;
        lived += !dead;
        expect_consistent(*stage.creator, ("after a death at " + point).c_str());
      }
    }
    stage.over = true;
    crew.join();
    recoveries += stage.creator->info(0).recoveries;
    stage.finish(true);
  }
  return std::to_string(died) + " deaths, " + std::to_string(lived) + " points not reached, " + std::to_string(recoveries) + " recoveries";
}

std::string deaths_plain(const Options& options) { return deaths(options, {Kind::plain, 13, 14, 60, true}); }
std::string deaths_episodes(const Options& options) { return deaths(options, {Kind::episodes, 10, 20, 64, true}); }

// Deaths in pairs: whoever repairs what the first left behind dies while repairing. Then a third one repairs.
std::string deaths_in_pairs(const Options& options) {
  std::uint32_t pairs = 0, deaths = 0;
  std::uint64_t seed = options.seed * 1000;
  const TableShape shapes[] = {{Kind::plain, 13, 14, 60, true}, {Kind::episodes, 10, 20, 64, true}};
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    for (const TableShape& shape : shapes) {
      Stage stage(shape, seed);
      std::uint32_t repairers = 0;
      for (const std::string& point : failpoint_names()) {
        if (elsewhere(point)) continue;
        for (const char* second : {"recover_begin", "recover_end"}) {
          for (const long nth : {1L, 5L}) {
            const bool dead = kill_at(stage, point, nth, ++seed);
            deaths += dead;
            const std::shared_ptr<TableCore> repairer = stage.open();
            const bool again = dies_at(second, 1, [&] { repairer->steps(); });
            if (again) die(repairer->process());
            repairers += again;
            expect_consistent(*stage.creator, ("after deaths at " + point + " and " + second).c_str());
          }
        }
      }
      EXPECT(stage.creator->info(0).recoveries >= repairers, "fewer recoveries than deaths in one");
      pairs += repairers;
      stage.finish(true);
    }
  }
  return std::to_string(deaths) + " deaths, " + std::to_string(pairs) + " of them followed by the repairer's";
}

// The creator of a table dies in the directory lock: nothing or all of the table is there, and the next creator goes on.
std::string dead_creators(const Options& options) {
  std::uint32_t died = 0;
  for (std::uint32_t turn = 0; turn < 6 * options.rounds; ++turn) {
    const char* point = turn % 3 == 0 ? "create_reserved" : turn % 3 == 1 ? "create_formatted" : "create_published";
    TableShape shape{turn % 2 == 0 ? Kind::episodes : Kind::plain, 11, 14, 60, true};
    Stage stage(shape, options.seed + turn);
    shape.kind = turn % 2 == 0 ? Kind::plain : Kind::episodes;
    const std::shared_ptr<Process> creator = stage.world.attach(), other = stage.world.attach();
    died += dies_at(point, 1, [&] { stage.world.create(*creator, spec_of(shape, 1)); });
    die(*creator);
    const bool published = turn % 3 == 2;
    try {
      stage.index = stage.world.create(*other, spec_of(shape, 1));
      EXPECT(!published, "table made twice");
    } catch (const Error& error) {
      EXPECT(published && error.code == ErrorCode::name_taken, "%s", error.what());
      stage.index = 1;
    }
    EXPECT(stage.index == 1, "second table has index %u", stage.index);
    stage.shape = shape;
    stage.creator = stage.open(other);
    stage.writing = 1;
    write_rows(stage, stage.open(), 500, 1, options.seed);
    sample_batches(stage, stage.open(), 10, 0, true);
    stage.finish(false);
  }
  return std::to_string(died) + " deaths";
}

std::string skipped(const Options&) { return "skipped: ThreadSanitizer does not follow the death of a thread"; }

}  // namespace

std::vector<Scenario> recovery_scenarios() {
  const auto unless_skipped = [](auto* run) { return kThreadSanitizer ? skipped : run; };
  return {{"deaths-plain", "a process dies at every failpoint, among survivors", unless_skipped(deaths_plain), true},
          {"deaths-episodes", "the same with episodes", unless_skipped(deaths_episodes), true},
          {"deaths-pairs", "and the one who repairs dies too", unless_skipped(deaths_in_pairs), true},
          {"dead-creators", "the creator of a table dies", unless_skipped(dead_creators), true}};
}

}  // namespace conduit::harness
