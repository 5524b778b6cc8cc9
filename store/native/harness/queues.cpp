// A queue: producers, consumers of two groups, leases that run out, upkeep. Every row is acknowledged once by each group.
#include <cstdio>
#include <optional>

#include "../consumer.hpp"
#include "../error.hpp"
#include "actors.hpp"

namespace conduit::harness {
namespace {

constexpr std::uint32_t kConsumers = 2;  // of each group
constexpr std::uint32_t kQueueGroups = 2;
constexpr std::uint64_t kLeaseNs = 20'000'000;  // short: consumers that nap lose theirs

struct QueueStage {
  TableShape shape;
  World world;
  std::shared_ptr<TableCore> creator;
  std::uint32_t index;
  std::shared_ptr<DiskFile> disk;
  std::atomic<std::uint64_t> appended{0}, waits{0}, acknowledged[kQueueGroups] = {}, released{0}, expired{0};
  std::atomic<bool> over{false};

  QueueStage(const TableShape& table_shape, std::uint64_t seed) : shape(table_shape) {
    const std::shared_ptr<Process> process = world.attach();
    TableSpec spec = spec_of(shape, seed);
    spec.views.clear();
    spec.queue.groups = kQueueGroups;
    spec.queue.lease_timeout_ns = kLeaseNs;
    index = world.create(*process, spec);
    disk = disk_of(spec, false);
    creator = open(process);
  }
  std::shared_ptr<TableCore> open() const { return open(world.attach()); }
  std::shared_ptr<TableCore> open(std::shared_ptr<Process> process) const {
    auto table = std::make_shared<TableCore>(std::move(process), index);
    if (disk != nullptr) table->use_disk(disk);
    return table;
  }
};

void produce(QueueStage& stage, std::uint32_t rows, std::uint64_t seed) {
  Random random(seed);
  Feed feed(Kind::plain, 1, seed);
  Writer writer(stage.open(), 1);
  while (rows > 0) {
    const std::uint32_t n = std::min(rows, 1 + random.below(random.below(8) == 0 ? 40 : 6));
    feed.fill(n);
    while (writer.append(feed.rest(0)) == 0) {
      ++stage.waits;
      writer.wait_space(2'000'000);
    }
    stage.appended += n;
    rows -= n;
  }
  writer.close();
}

void check_rows(const std::byte* stamps, const std::byte* tags, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const Stamp& stamp = reinterpret_cast<const Stamp*>(stamps)[i];
    EXPECT(stamp.whole() && reinterpret_cast<const std::uint64_t*>(tags)[i] == stamp.tag(), "row %u of %u is torn", i, n);
  }
}

void consume(QueueStage& stage, std::uint32_t group, bool grouped, std::uint64_t seed) {
  Random random(seed);
  Consumer consumer(stage.open(), group);
  std::optional<GroupIndex> groups;  // of one row each: the tag differs from row to row
  if (grouped) groups.emplace(consumer.table(), group, 2, 1);
  Target target;
  for (;;) {
    const std::uint64_t seen = consumer.progress();
    std::shared_ptr<Delivery> delivery;
    TakeState state;
    const TakeStatus status = consumer.take({1 + random.below(24), 0, {}}, grouped ? &*groups : nullptr, true, &delivery, &state);
    if (status == TakeStatus::ended) return;
    if (status == TakeStatus::too_few) {
      consumer.wait(seen, state, 5'000'000);
      continue;
    }
    const std::vector<std::uint64_t> offsets = consumer.offsets(delivery->rows());
    if (!delivery->copy(offsets, &target)) continue;
    const std::byte* buffer = target.staging->data();
    check_rows(buffer + offsets[0], buffer + offsets[2], delivery->rows());
    const std::uint32_t way = random.below(40);
    if (way == 0) nap_us(30'000);  // longer than the lease
    if (way < 6) {
      stage.released += delivery->release();
      continue;
    }
    try {
      if (way < 14) {
        const auto* keys = reinterpret_cast<const std::uint64_t*>(buffer + offsets[3]);
        stage.acknowledged[group] += delivery->acknowledge(keys, (delivery->rows() + 1) / 2);
      } else {
        if (way < 18 && !delivery->renew()) continue;
        stage.acknowledged[group] += delivery->acknowledge(nullptr, 0);
      }
    } catch (const Error& error) {
      EXPECT(error.code == ErrorCode::lease_expired, "%s", error.what());
      ++stage.expired;
    }
  }
}

void look_after_queue(QueueStage& stage) {
  const std::shared_ptr<TableCore> table = stage.open();
  while (!stage.over.load()) {
    expect_consistent(*table, "beside producers and consumers");
    EXPECT(table->steps() <= stage.shape.max_size, "more rows than max_size");
    table->queue()->lease_holders();
    table->info(0);
    nap_us(500);
  }
}

void move_blocks(QueueStage& stage) {
  const std::shared_ptr<TableCore> table = stage.open();
  while (!stage.over.load()) EXPECT(table->move_blocks(1'000'000) != TableCore::Moves::failed, "blocks cannot be moved");
}

std::string beside(const Options& options, const TableShape& shape) {
  QueueStage stage(shape, options.seed);
  const std::uint32_t rows = 6'000 * options.rounds;
  {
    Crew upkeep;
    upkeep.start("upkeep", [&stage] { look_after_queue(stage); });
    for (int i = 0; i < 2 && stage.disk != nullptr; ++i) upkeep.start("mover", [&stage] { move_blocks(stage); });
    {
      Crew consumers;
      for (std::uint32_t i = 0; i < kQueueGroups * kConsumers; ++i) {
        consumers.start("consumer", [&stage, &options, i] { consume(stage, i % kQueueGroups, i == 0, options.seed * 50 + i); });
      }
      Crew producers;
      for (std::uint32_t i = 0; i < 2; ++i) {
        producers.start("producer", [&stage, &options, rows, i] { produce(stage, rows, options.seed * 100 + i); });
      }
      producers.join();
      stage.creator->queue()->end();
    }
    stage.over = true;
  }
  expect_consistent(*stage.creator, "at the end");
  for (std::uint32_t g = 0; g < kQueueGroups; ++g) {
    EXPECT(stage.acknowledged[g].load() == stage.appended.load(), "group %u acknowledged %llu rows of %llu", g,
           static_cast<unsigned long long>(stage.acknowledged[g].load()), static_cast<unsigned long long>(stage.appended.load()));
  }
  EXPECT(stage.creator->steps() == 0, "rows are left");
  EXPECT(stage.disk == nullptr || stage.creator->tier_info().blocks_written > 0, "no block was moved");
  return std::to_string(stage.appended.load()) + " rows, " + std::to_string(stage.waits.load()) + " waits for room, " + std::to_string(stage.released.load()) +
         " deliveries given back, " + std::to_string(stage.expired.load()) + " that ran out";
}

std::string queue_beside(const Options& options) { return beside(options, {}); }
std::string queue_disk(const Options& options) { return beside(options, {Kind::plain, 13, 60, 600, true, 10}); }

}  // namespace

std::vector<Scenario> queue_scenarios() {
  return {{"queue", "producers and consumers of two groups, with short leases", queue_beside},
          {"queue-disk", "the same with a backlog of which memory holds a few blocks", queue_disk}};
}

}  // namespace conduit::harness
