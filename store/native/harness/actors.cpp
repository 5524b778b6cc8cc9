#include "actors.hpp"

#include <string.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <deque>
#include <mutex>

#include "../codec.hpp"
#include "../error.hpp"
#include "../sync.hpp"

namespace conduit::harness {
namespace {

constexpr std::uint64_t kPatienceNs = 120'000'000'000ull;  // a wait for space that is longer is a deadlock

}  // namespace

std::shared_ptr<DiskFile> disk_of(const TableSpec& spec, bool packs) {
  if (spec.n_frames == 0 || spec.n_frames >= spec.n_blocks) return nullptr;
  const std::byte mark{1};
  BlockMessage message{std::vector<std::byte>(64, mark), {}};
  std::optional<Packing> packing;
  if (const Codec* codec = codec_of("lz4"); packs && codec != nullptr) {
    BlockMessage packed{std::vector<std::byte>(256, mark), {{BlockMessage::rows, 0, 8, 1}, {BlockMessage::bytes, 0, 16, 1}}};
    for (std::uint32_t c = 0; c < spec.columns.size(); ++c) {
      packed.numbers.push_back({BlockMessage::offset, c, 24 + 16 * c, 1});
      packed.numbers.push_back({BlockMessage::length, c, 32 + 16 * c, 1});
    }
    packing.emplace(codec, std::move(packed));
  }
  return std::make_shared<DiskFile>(memfd_create("harness-disk", MFD_CLOEXEC), "no name", std::vector{mark}, std::move(message), std::move(packing), spec.block_bytes, spec.n_blocks, false);
}

Stage::Stage(const TableShape& table_shape, std::uint64_t run_seed)
    : shape(table_shape), seed(run_seed), world(4 << 20, 8 << 20, 64) {
  const std::shared_ptr<Process> process = world.attach();
  const TableSpec spec = spec_of(shape, seed);
  index = world.create(*process, spec);
  disk = disk_of(spec, shape.kind == Kind::episodes);
  creator = open(process);
}

std::string Stage::counts() const {
  char text[256];
  std::snprintf(text, sizeof text, "%llu rows, %llu batches of %llu rows, %llu updates, %llu stale, %llu pins, %llu upkeeps",
                static_cast<unsigned long long>(rows.load()), static_cast<unsigned long long>(batches.load()),
                static_cast<unsigned long long>(drawn.load()), static_cast<unsigned long long>(applied.load()),
                static_cast<unsigned long long>(stale.load()), static_cast<unsigned long long>(pins.load()),
                static_cast<unsigned long long>(upkeeps.load()));
  return text;
}

void Stage::finish(bool deaths) {
  expect_consistent(*creator, "at the end");
  const TableInfo info = creator->info(0);
  const auto number = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  EXPECT(info.blocks_open + info.blocks_free + info.blocks_retired == shape.n_blocks, "%u + %u + %u blocks", info.blocks_open, info.blocks_free, info.blocks_retired);
  EXPECT(info.open_writers == 0, "%u blocks are still being written", info.open_writers);
  EXPECT(info.blocks_pinned == 0, "%u blocks are pinned", info.blocks_pinned);
  if (!deaths) {  // who dies between a change and its counting leaves the monotonic counters behind
    EXPECT(info.steps_folded == steps.load(), "%llu steps folded, %llu appended", number(info.steps_folded), number(steps.load()));
    EXPECT(info.steps_folded - info.steps_evicted == info.live_steps, "%llu - %llu steps, %llu live", number(info.steps_folded), number(info.steps_evicted), number(info.live_steps));
    EXPECT(info.updated == applied.load() && info.stale_updates == stale.load(), "%llu updates and %llu stale, callers saw %llu and %llu", number(info.updated),
           number(info.stale_updates), number(applied.load()), number(stale.load()));
    EXPECT(info.recoveries == 0, "%llu recoveries", number(info.recoveries));
  }
  creator->clear();
  std::vector<std::uint64_t> stalled;
  SpaceHolders holders;
  const std::uint32_t all = creator->shared().n_frames;
  for (std::uint32_t i = 0; i < all; ++i) {  // every block can be had again, every frame where those are fewer
    EXPECT(creator->open_block(1, 1, &holders, &stalled) != kNoRow, "block %u of %u cannot be had: %u pinned, %u read, %u written", i, all, holders.pinned, holders.read, holders.written);
  }
  expect_consistent(*creator, "with all blocks given away");
  const TableInfo empty = creator->info(0);
  EXPECT(empty.live_steps == 0 && empty.ready_rows == 0 && empty.total == 0.0, "%llu steps after clear()", number(empty.live_steps));
  EXPECT(empty.blocks_open == all, "%u blocks open of %u", empty.blocks_open, all);
}

void append_all(Stage& stage, Writer& writer, Feed& feed) {
  std::uint32_t done = 0;
  std::uint64_t waiting_since = 0;
  for (Rows rest = feed.rest(0); rest.n > 0; rest = feed.rest(done)) {
    const std::uint32_t n = writer.append(rest);
    if (rest.whole && rest.n <= 2 * stage.shape.rows_per_block) EXPECT(n == 0 || n == rest.n, "%u of %u rows that go in together", n, rest.n);
    stage.rows += n;
    stage.steps += feed.steps(done, done + n);
    done += n;
    if (n > 0) {
      waiting_since = 0;
      continue;
    }
    if (waiting_since == 0) waiting_since = now_ns();
    const SpaceHolders& h = writer.holders();
    EXPECT(now_ns() - waiting_since < kPatienceNs, "no space: %u blocks pinned, %u read, %u written", h.pinned, h.read, h.written);
    writer.wait_space(1'000'000);
  }
}

void write_rows(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t rows, std::uint32_t chains, std::uint64_t seed) {
  Random random(seed);
  Feed feed(stage.shape.kind, chains, seed);
  Writer writer(std::move(table), chains);
  for (std::uint32_t left = rows; left > 0;) {
    const std::uint32_t n = std::min(left, random.below(3) == 0 ? 1 + random.below(2 * stage.shape.rows_per_block) : 1);
    feed.fill(n);
    append_all(stage, writer, feed);
    left -= n;
  }
  cut(feed.writer()).store(true);
  writer.close();
  --stage.writing;
}

namespace {

struct Batch {
  std::vector<std::uint64_t> keys;
  std::vector<Stamp> stamps;
};

Batch taken(const Plan& plan, std::uint32_t n, const std::byte* bytes) {
  const std::vector<std::uint64_t> offsets = plan.offsets(n);
  Batch batch{std::vector<std::uint64_t>(n), std::vector<Stamp>(n)};
  memcpy(batch.keys.data(), bytes + offsets[plan.outputs.size()], n * sizeof(std::uint64_t));
  memcpy(batch.stamps.data(), bytes + offsets[0], n * sizeof(Stamp));
  return batch;
}

void update(Stage& stage, TableCore& table, const Batch& batch, Random& random) {
  if (!stage.shape.prioritized) return;
  const std::size_t n = batch.keys.size();
  std::vector<float> priorities(n);
  for (float& p : priorities) p = random.below(10) == 0 ? 0.0f : static_cast<float>(random.unit() * 10);
  const UpdateCount count = table.update(0, batch.keys.data(), priorities.data(), n);
  EXPECT(count.applied + count.stale == n, "%llu applied and %llu stale of %zu", static_cast<unsigned long long>(count.applied), static_cast<unsigned long long>(count.stale), n);
  stage.applied += count.applied;
  stage.stale += count.stale;
}

// A key names one row for ever: read again, it is the same row or it is stale.
void read_again(Stage& stage, Sampler& sampler, const Batch& batch, Target& target) {
  const auto n = static_cast<std::uint32_t>(batch.keys.size());
  std::uint64_t stale_at = 0;
  if (!sampler.read(batch.keys.data(), n, &target, &stale_at)) {
    EXPECT(stale_at < n, "stale key %llu of %u", static_cast<unsigned long long>(stale_at), n);
    return;
  }
  check_batch(stage.shape, sampler.plan(), n, target.staging->data(), false);
  EXPECT(memcmp(target.staging->data(), batch.stamps.data(), n * sizeof(Stamp)) == 0, "a key gave another row than before");
  ++stage.reads;
}

}  // namespace

void sample_batches(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t batches, std::uint32_t stream, bool update_some) {
  Random random(stage.seed * 1000 + stream);
  Sampler sampler(table, plan_of(stage.shape));
  Target target, again;
  std::deque<Batch> old;
  for (std::uint32_t done = 0; done < batches && !stage.over.load();) {
    const std::uint32_t n = 1 + random.below(48);
    SampleState state;
    Reservation held;
    if (sampler.sample(n, &target, stream, done, &state, &held) != SampleStatus::ok) {
      if (stage.writing.load() == 0) break;
      sampler.wait(sampler.begin_wait(), 2'000'000, state.status);
      continue;
    }
    check_batch(stage.shape, sampler.plan(), n, target.staging->data(), true);
    ++done;
    ++stage.batches;
    stage.drawn += n;
    old.push_back(taken(sampler.plan(), n, target.staging->data()));
    if (random.below(4) == 0) read_again(stage, sampler, old.back(), again);
    if (update_some && random.below(2) == 0) update(stage, *table, old[random.below(static_cast<std::uint32_t>(old.size()))], random);
    if (old.size() > 24) old.pop_front();
  }
}

void hold_pins(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t turns, std::uint64_t seed) {
  Random random(seed);
  Process& process = table->process();
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    for (const std::uint32_t block : table->live_blocks()) {
      std::uint32_t first, last, entry;
      std::uint64_t generation;
      if (random.below(2) == 0) continue;
      try {
        entry = table->pin_block(block, &first, &last, &generation);
      } catch (const Error& error) {
        if (error.code != ErrorCode::stale) throw;
        continue;  // evicted since live_blocks()
      }
      for (int look = 0; look < 3; ++look) {
        check_block(stage.shape, *table, block, first, last);
        EXPECT(table->block(block).generation.load() == generation, "block %u was given away while pinned", block);
        nap_us(20);
      }
      process.unpin(entry, process.forks());
      ++stage.pins;
    }
    nap_us(100);
  }
}

void look_after(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t turns, std::uint64_t seed, bool clear) {
  Random random(seed);
  std::uint64_t opened = 0;
  for (std::uint32_t turn = 0; turn < turns; ++turn, ++stage.upkeeps) {
    switch (random.below(8)) {
      case 0: reconfigure(*table, 0.25 * (1 + random.below(4)), 0.4, random.below(2) == 0 ? 0.0 : 0.01); break;
      case 1: if (clear) table->clear(); break;
      case 2: EXPECT(table->steps() <= stage.shape.max_size, "more steps than max_size"); break;
      case 3: {
        const std::uint64_t key = random.bits();
        EXPECT(std::isnan(table->priorities(0, &key, 1)[0]), "a key out of thin air is live");
        break;
      }
      case 4: case 5: expect_consistent(*table, "while others work on it"); break;
      default: {
        const TableInfo info = table->info(0);
        EXPECT(info.blocks_open + info.blocks_free + info.blocks_retired == stage.shape.n_blocks, "%u + %u + %u blocks", info.blocks_open, info.blocks_free, info.blocks_retired);
        EXPECT(info.live_steps <= stage.shape.max_size, "%llu live steps", static_cast<unsigned long long>(info.live_steps));
        EXPECT(info.blocks_opened >= opened, "a counter went back");
        opened = info.blocks_opened;
      }
    }
    nap_us(200);
  }
}

namespace {

// The dead run nothing: their epochs are never left, not even by a destructor. Reachable for ever, hence no leak.
void bury(std::unique_ptr<ReaderEpoch> epoch) {
  static auto* graveyard = new std::vector<ReaderEpoch*>;
  static std::mutex mutex;
  std::lock_guard guard(mutex);
  graveyard->push_back(epoch.release());
}

}  // namespace

void leave_corpse(Stage& stage, std::uint64_t seed) {
  Random random(seed);
  const std::shared_ptr<Process> process = stage.world.attach();
  const std::shared_ptr<TableCore> table = stage.open(process);
  Writer writer(table, 1);
  Feed feed(stage.shape.kind, 1, seed);
  cut(feed.writer()).store(true);
  feed.fill(1 + random.below(30));
  append_all(stage, writer, feed);
  for (const std::uint32_t block : table->live_blocks()) {
    std::uint32_t first, last;
    std::uint64_t generation;
    try {
      table->pin_block(block, &first, &last, &generation);
      break;
    } catch (const Error& error) {
      if (error.code != ErrorCode::stale) throw;
    }
  }
  bury(process->enter());
  die(*process);
}

}  // namespace conduit::harness
