// Checkpoints: one moment of a store's tables, and what puts a table back.
//
// A cut is taken under the index locks of all tables, in their order: every row published until then is folded, and what may
// change afterwards is copied: blocks' counts, settings, marks, counts of uses, delivery words, mutable columns. What cannot change while a
// block is not reused (the rows' bytes, links, step numbers, stamps, flags) is read afterwards, without a lock: until it has
// been written a *hold* (see Hold in layout.hpp) keeps the blocks of the cut from being reused. Writers and readers go on;
// rows may be evicted meanwhile.
// Priorities are most of what can change, and are copied after the locks as well: whoever changes one until that is done
// first notes what it was (see UndoLog), and the copy is then taken back to what it should be. Where more change than are
// remembered, another cut is taken, with the copy under the locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "layout.hpp"
#include "table.hpp"

namespace conduit {

// One block of a cut: rows [first, count) are in, those before were evicted. birth 0: it holds no rows.
struct SavedBlock {
  std::uint32_t block, first, count, sealed;
  std::uint64_t generation, birth, writer;
};
static_assert(sizeof(SavedBlock) == 40);

struct SavedStream {
  std::uint32_t view, stream;
  std::uint64_t delivered;
};

struct SavedQueue {
  std::uint64_t now_ns = 0, stamp = 0, fences = 0;
  std::int64_t policy_version = 0;
  bool ended = false;
  std::uint32_t grouped[kGroups] = {};
  QueueCounters counters[kGroups] = {};
};

// Of a table everything but its rows' bytes. Rows of arrays are those of the blocks, one block after the other.
struct SavedTable {
  std::vector<SavedBlock> blocks;  // open ones in order of birth, then the others in the order in which they are given out
  Settings settings;
  std::uint32_t epochs[kMaxViews] = {};
  std::uint64_t batches[kMaxViews] = {};
  std::uint64_t births = 0, writers = 0;
  std::uint64_t samples = 0;  // delivered, as a limiter counts
  std::uint64_t steps_folded = 0, evicted_early = 0, sampled_rows = 0, sampled_batches = 0, updated = 0, stale_updates = 0;
  std::uint64_t discarded_batches = 0, blocks_opened = 0, used_up = 0;
  std::vector<SavedStream> streams;
  SavedQueue queue;

  // For `restore`; null where the table keeps none.
  std::uint64_t rows = 0;
  const std::uint8_t* flags = nullptr;
  const std::uint32_t* previous = nullptr;
  const std::uint32_t* steps = nullptr;
  const std::uint32_t* uses = nullptr;
  const float* raw[kMaxViews] = {};
  const std::uint32_t* marks[kMaxViews] = {};
  const std::uint32_t* words[kGroups] = {};
  const std::uint64_t* stamps = nullptr;
};

// What of each row is saved beside its bytes.
enum class RowPart : std::uint32_t { flags = 0, previous = 1, step = 2, raw = 3, mark = 4, uses = 5, word = 6, stamp = 7, number = 8 };
// `number`: of a column that is rewritten, as many bytes as that has.
inline std::uint32_t bytes_of(RowPart part) { return part == RowPart::flags ? 1 : part == RowPart::stamp ? 8 : 4; }

// One cut of a store. Not for several threads at a time, but for `written`.
class Cut {
 public:
  // `tables`: all of the store, in order. Throws checkpoint_busy where another checkpoint of the store is being taken.
  Cut(std::shared_ptr<Process> process, std::vector<std::shared_ptr<TableCore>> tables);
  ~Cut() { close(); }
  Cut(const Cut&) = delete;
  Cut& operator=(const Cut&) = delete;

  const SavedTable& saved(std::uint32_t table) const { return tables_[table].saved; }
  std::uint64_t rows(std::uint32_t table) const { return tables_[table].saved.rows; }
  TableCore& core(std::uint32_t table) const { return *tables_[table].core; }
  std::size_t size() const { return tables_.size(); }
  // One number of each row of blocks [from, to), as numbered in `saved`; `which`: of the view, consumer group or column. Before they are
  // let go.
  bool keeps(std::uint32_t table, RowPart part, std::uint32_t which) const;
  void fill(std::uint32_t table, RowPart part, std::uint32_t which, std::size_t from, std::size_t to, std::byte* out) const;
  std::uint64_t width(std::uint32_t table, RowPart part, std::uint32_t which) const;
  // One column of them.
  void gather(std::uint32_t table, std::uint32_t column, std::size_t from, std::size_t to, std::byte* out) const;
  // Every block born until then has been read: it may be reused. Throws checkpoint_lapsed where a writer has broken the hold: what was
  // read since the last call may be of other rows then.
  void written(std::uint32_t table, std::uint64_t birth);
  // The checkpoint goes on, if slowly: nobody breaks its holds yet. Throws as `written` does: what was read of blocks before this call was of theirs.
  void going_on();
  // Lets go of all. Idempotent.
  void close();
  // How long the locks of all tables were held.
  std::uint64_t locked_ns() const { return locked_ns_; }

 private:
  struct Copies {
    std::vector<float> raw[kMaxViews];
    std::vector<std::uint32_t> marks[kMaxViews], uses, words;
    std::vector<std::vector<std::byte>> numbers;  // of each column; empty but for those that are rewritten
  };
  struct OfTable {
    std::shared_ptr<TableCore> core;
    SavedTable saved;
    Copies copies;
  };
  void take_claim();
  void fold_all();
  void prepare(OfTable& table) const;
  void take(bool copy_all);
  void copy(OfTable& table, bool copy_all) const;
  void copy_priorities(OfTable& table) const;
  bool finish_priorities();

  std::shared_ptr<Process> process_;
  std::vector<OfTable> tables_;
  std::uint64_t claim_ = 0;  // of the header's word
  std::uint64_t locked_ns_ = 0;
  std::uint32_t forks_ = 0;
};

}  // namespace conduit
