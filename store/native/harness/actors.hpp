// The roles that threads play on one table. Each loop is bounded in operations and checks all that it sees.
#pragma once

#include <memory>
#include <string>

#include "../disk_file.hpp"
#include "rows.hpp"

namespace conduit::harness {

// A file for the blocks of a table that has fewer frames than blocks; null of another.
// `packs`: blocks are compressed there, where this machine can.
std::shared_ptr<DiskFile> disk_of(const TableSpec& spec, bool packs);

// One table, who works on it, and what they have done.
struct Stage {
  Stage(const TableShape& table_shape, std::uint64_t run_seed);
  std::shared_ptr<TableCore> open() const { return open(world.attach()); }  // by a new process
  std::shared_ptr<TableCore> open(std::shared_ptr<Process> process) const {
    auto table = std::make_shared<TableCore>(std::move(process), index);
    if (disk) table->use_disk(disk);
    return table;
  }
  std::string counts() const;
  // After all are done: everything agrees, nothing is held, and clear() gives all blocks back.
  void finish(bool deaths);

  TableShape shape;
  std::uint64_t seed;
  World world;
  std::shared_ptr<DiskFile> disk;  // where memory does not hold all blocks
  std::shared_ptr<TableCore> creator;
  std::uint32_t index;
  std::atomic<std::uint32_t> writing{0};  // writers that have not finished
  std::atomic<bool> over{false};          // ends the loops of those without a bound of their own
  std::atomic<std::uint64_t> rows{0}, steps{0}, batches{0}, drawn{0}, reads{0}, applied{0}, stale{0}, pins{0}, upkeeps{0};
};

// Appends the feed's filled rows, waiting for space as long as it takes.
void append_all(Stage& stage, Writer& writer, Feed& feed);
void write_rows(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t rows, std::uint32_t chains, std::uint64_t seed);
// Draws `batches` batches, fewer when it is over or nobody writes and nothing can be drawn; updates priorities of some, of
// fresh and of old keys; reads some again by key.
void sample_batches(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t batches, std::uint32_t stream, bool update);
void hold_pins(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t turns, std::uint64_t seed);
// info, verify, configure, steps, priorities; clear() now and then.
void look_after(Stage& stage, std::shared_ptr<TableCore> table, std::uint32_t turns, std::uint64_t seed, bool clear);

// A process that attaches, works, and dies with a block open, a view pinned and an epoch entered.
void leave_corpse(Stage& stage, std::uint64_t seed);

}  // namespace conduit::harness
