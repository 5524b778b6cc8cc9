// One table as seen from one process: the index (blocks, links, leaves) and the operations on it.
//
// Ground truth, from which `recover` rebuilds all else: each block's `pub`, `state`, `generation`, `birth`, `folded`,
// `evicted`; a half-done joint publication; each row's written flags, `prev`, step number, raw priorities and count of uses;
// settings; tallies; of a queue what queue.hpp says. Derived: `next`, readiness, leaves, sums, extremes (of each view, see
// view.hpp), counts of runs, active list, lists of blocks, victims, counts of steps. "Folding" takes published rows into the index; whoever draws next does it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block_lists.hpp"
#include "categories.hpp"
#include "disk_file.hpp"
#include "draws.hpp"
#include "layout.hpp"
#include "limiter.hpp"
#include "packed.hpp"
#include "part_file.hpp"
#include "process.hpp"
#include "ragged.hpp"
#include "spans.hpp"
#include "sync.hpp"
#include "tree.hpp"
#include "victims.hpp"
#include "view.hpp"

namespace conduit {

class Staging;
struct SavedBlock;
class QueueIndex;
struct SavedTable;

struct QueueSpec {
  std::uint32_t groups = 0;         // consumer groups; 0 = an ordinary table
  std::uint64_t lease_timeout_ns = 0;
  std::int64_t max_staleness = -1;  // -1: rows have no policy version
  std::uint32_t version_column = 0; // int64
};

struct ViewSpec {
  bool prioritized = false;
  std::uint32_t steps_before = 0, steps_after = 0, period = 1, rules = 0;  // see View
  ViewSettings chances;   // as the view begins
  SamplerKind sampler = kByMass;
  bool stratified = false;
  Schedule beta_schedule;
};

// A column of categories: how many values it may have, of how many bytes together, and those it begins with.
struct CategorySpec {
  std::uint32_t column;
  std::uint64_t max_values, max_bytes;
  std::vector<std::string> values;
};

struct TableSpec {
  std::string name, spec;
  std::vector<Column> columns;
  std::vector<CategorySpec> categories;
  std::uint64_t max_size = 0, block_bytes = 0, values_offset = 0, seed = 0;
  std::uint32_t n_blocks = 0, rows_per_block = 0;
  std::uint32_t n_frames = 0;  // blocks that host memory has room for; fewer than n_blocks: the others go to disk
  bool links = false;  // rows are chained into episodes: any view that is not of rows as stored needs it
  RemoverKind remover = kRemoveOldest;
  std::uint32_t remover_view = 0;
  std::vector<ViewSpec> views;  // one at least; none of a queue
  LimiterKind limiter = kMinSize;
  bool limits_inserts = false, counts_uses = false;
  Settings settings;  // as the table begins, but for those of the views
  QueueSpec queue;
};

struct ReaderInfo {
  std::uint32_t pid;
  std::uint64_t batches, rows, idle_ns;
};

struct WriterInfo {
  std::uint32_t pid, blocks;  // that it holds open
};

struct TableInfo {
  std::uint64_t live_steps, ready_rows, steps_folded, steps_evicted, evicted_early, sampled_rows, sampled_batches;
  std::uint64_t updated, stale_updates, discarded_batches, recoveries, blocks_opened;
  std::uint64_t draw_ns, gather_ns, sample_wait_ns, fold_ns, append_ns, append_wait_ns, append_calls, update_ns;
  std::uint32_t blocks_open, blocks_free, blocks_retired, blocks_pinned, open_writers;
  std::uint64_t used_up, limited_append_ns, limited_sample_ns;
  LimiterState limiter;
  double total;
  float max_priority;
  std::uint32_t epoch;  // of draws without replacement
  std::vector<ReaderInfo> readers;  // processes that live and have read
  std::vector<WriterInfo> writers;
};

struct TierInfo {
  std::uint32_t frames, frames_free, blocks_on_disk;
  std::uint64_t rows_from_disk, blocks_written, blocks_dropped, blocks_promoted, bytes_written, write_ns, failures, losses;
  std::uint32_t error;  // of the last failure, as errno; 0 if none since
};

enum class Scan : std::uint32_t { age = 0, priority = 1, column = 2, times = 3, key = 4 };  // age: rows appended since; times: drawn

struct UpdateCount {
  std::uint64_t applied, stale;
};

// What keeps retired blocks from being free: for messages.
struct SpaceHolders {
  std::uint32_t pinned = 0, read = 0, written = 0, saved = 0;  // blocks held by views, by readers, by writers that have not let go, by a checkpoint
  std::uint32_t in_memory = 0;                                 // blocks in host memory that have to go to disk first
  std::uint32_t process = 0;                        // pid of one holder
};

// Safe in any thread: it holds nothing that changes.
class TableCore {
 public:
  // Takes the store's directory lock; reserves with fallocate what the table needs in both segments (both offsets and
  // sizes must already have been checked against the memory limits). Throws memory, name_taken, config.
  static std::uint32_t create(Process& process, int control_fd, int data_fd, const TableSpec& spec);
  static std::uint64_t control_bytes(const TableSpec& spec, std::uint32_t max_processes);
  // Gives back the memory that a creator killed before it published its table has left reserved. One try of a lock when
  // there is none; does not wait for a creator at work.
  static void tidy(Process& process, int control_fd, int data_fd);

  TableCore(std::shared_ptr<Process> process, std::uint32_t index);
  ~TableCore();

  Table& shared() const { return t_; }
  void span(Stage stage, std::uint64_t rows, std::uint64_t began_ns, std::uint64_t ended_ns) const {
    leave_span(*process_, stage, index_, rows, began_ns, ended_ns);
  }
  Process& process() const { return *process_; }
  std::shared_ptr<Process> process_handle() const { return process_; }
  std::uint32_t index() const { return index_; }
  QueueIndex* queue() const { return queue_.get(); }  // null when the table is no queue
  const Column* columns() const { return columns_; }
  // Inside a reader epoch, under a pin, or of a block of our own: see Tier.
  std::byte* block_data(std::uint32_t block) const {
    return places_ == nullptr ? data_ + block * t_.block_bytes : placed(block);
  }
  // --- tables that may outgrow memory, see tier.cpp
  bool tiered() const { return places_ != nullptr; }
  bool on_disk(std::uint32_t block) const {
    const std::uint32_t place = std::atomic_ref(places_[block]).load(std::memory_order_acquire);
    return place == kOnDisk || place == kPacked;
  }
  // Blocks that go to disk are compressed there; this one is. See packed.hpp, also for the next two: 0 or errno.
  bool packs() const { return disk_ != nullptr && disk_->packing() != nullptr; }
  bool packed(std::uint32_t block) const { return packs() && std::atomic_ref(places_[block]).load(std::memory_order_acquire) == kPacked; }
  int unpack(std::uint32_t block, std::byte* to) const;
  BlockCache& block_cache() const;
  // Before anything else is done with a table that is tiered.
  void use_disk(std::shared_ptr<DiskFile> disk) { disk_ = std::move(disk); }
  const std::shared_ptr<DiskFile>& disk() const { return disk_; }
  // Waits up to `timeout_ns` for blocks that should move between memory and disk, and moves some. Throws closed. For one thread
  // of each process that writes. `idle`: nothing to do.
  enum class Moves { idle, moved, failed };
  Moves move_blocks(std::uint64_t timeout_ns);
  void wake_movers();
  TierInfo tier_info();
  // Runs f, which reads or writes rows wherever they lie; see DiskFile::guarded. Throws disk where that cannot be.
  template <class F>
  void reach_disk(F&& f) const {
    if (!tiered()) f();
    else if (!disk_->guarded(f)) fail_disk();
  }
  [[noreturn]] void fail_disk() const;
  // Of a block that could not be read, with the reason; EBADMSG where it is damaged.
  [[noreturn]] void fail_block(std::uint32_t block, int error) const;
  // Throws disk, once in each process for each time that numbers which had been rewritten on disk may not have reached it. By whoever reads or
  // rewrites rows.
  void tell_losses() const;
  // A copy of a block that somebody keeps in place, wherever it lies.
  std::shared_ptr<Staging> copy_block(std::uint32_t block) const;
  // Of a table that is being restored: gives the blocks places, the newest ones in memory; where in which file bytes of its rows
  // go, `to` as if all blocks lay side by side; has what went to disk written there.
  void lay_out(const std::vector<SavedBlock>& blocks);
  Extent extent(std::uint64_t offset, std::uint64_t bytes, std::uint64_t to, int data_fd) const;
  void laid_out(const std::vector<SavedBlock>& blocks);
  // A run of blocks, for a row that is larger than a block, is not moved: it lies on disk from the beginning, and holds that row
  // alone. Its writer reserves room there before it writes it, through the mapping, and confirms it before it publishes it. Both throw disk.
  bool born_on_disk(std::uint32_t block) const { return tiered() && ragged_.span(block) > 1; }
  void reserve_run(std::uint32_t block) const;
  void confirm_run(std::uint32_t block, std::uint32_t rows) const;
  // Waits for pages that are about to be read; see gather_disk.cpp.
  bool bring(ReaderEpoch& epoch, const std::vector<Piece>& pieces, bool* cold) const;
  // Counts rows that are about to be read.
  void warm(const std::uint32_t* slots, std::uint32_t n) const;
  // Keeps a block where it is until the pin is given back; of blocks that are not reused meanwhile.
  std::uint32_t keep_in_place(std::uint32_t block);

  // --- under the index lock (see IndexLock) ---
  void fold();
  void recover();
  std::uint64_t key_of(std::uint32_t slot) const {
    return make_key(blocks_[block_of(slot)].generation.load(std::memory_order_relaxed), slot);
  }
  bool live(std::uint64_t key, std::uint32_t* slot) const;
  // Rows for a batch, as the view's sampler draws them; see draws.hpp.
  DrawStatus draw(ViewIndex& view, const DrawRequest& request, std::uint32_t* slots, double* probabilities, Drawn* drawn);
  // Takes back what a draw has changed for good: its batch was never delivered.
  void undo_draw(ViewIndex& view, const std::uint64_t* keys, std::uint32_t n, const Drawn& drawn);
  const Settings& settings() const { return t_.settings[t_.settings_now]; }
  LimiterState limiter_state() const;
  bool sample_possible(std::uint64_t rows) const;
  bool return_reserved_by_dead();
  void take_samples(std::uint64_t rows);
  bool counts_uses() const { return uses_ != nullptr; }
  bool draw_counted(const ViewIndex& view, std::uint32_t stream, std::uint64_t batch, std::uint32_t n, std::uint32_t* slots, double* probabilities,
                    std::vector<std::uint32_t>* spent);
  void use_up(const std::vector<std::uint32_t>& slots);
  void count_uses(std::uint32_t n, const std::uint32_t* slots, std::vector<std::uint32_t>* spent);

  // --- take the lock themselves ---
  // A free block given to a writer of this process, or kNoRow when none can be had now (then `holders` says why).
  // `blocks`: more than one for a row that no single block could hold; the first of that many adjacent ones is returned.
  std::uint32_t open_block(std::uint64_t writer, std::uint32_t blocks, SpaceHolders* holders, std::vector<std::uint64_t>* stalled);
  // The writer has gone, and holds no block: its open episodes end where they are.
  void finish_writer(std::uint64_t writer);
  // Priorities must be finite and not negative (checked by the caller, whole batch). The last of equal keys wins.
  UpdateCount update(std::uint32_t view, const std::uint64_t* keys, const float* priorities, std::uint64_t n);
  // Rewrites numbers of live rows, of columns that say so: `values` has n for each of `columns`. Keys of rows that are gone are
  // counted. The last of equal keys wins. Crash: of some of the rows, or of their columns, and each number whole.
  UpdateCount rewrite(const std::uint64_t* keys, std::uint64_t n, const std::vector<std::uint32_t>& columns, const std::vector<const std::byte*>& values);
  // Publishes rows that the caller, the blocks' owner, has written: in every block, or (false) in none, because one of them
  // has been sealed.
  bool publish_together(const Publication* publications, std::uint32_t n);
  void clear();
  // Blocks that a restored table was left with, all of one writer that is gone, become this process's: the first to append
  // to, the others empty. `writer`: that writer's number. None: `blocks` stays empty.
  void take_over(std::uint64_t* writer, std::vector<std::uint32_t>* blocks);
  // Puts back what a checkpoint says of an empty table whose blocks hold the rows already. Throws config where that cannot be.
  void restore(const SavedTable& saved);
  // The same where a limiter says how many go in: see Insert. `state` is filled in unless there are only final observations.
  Insert publish_limited(const Publication* publications, std::uint32_t n, std::uint32_t rows, const std::uint8_t* flags, bool whole, LimiterState* state);
  std::uint64_t insert_room(std::uint64_t steps, LimiterState* state);  // how many of so many steps the limiter lets in now
  bool can_sample(std::uint32_t view, std::uint64_t rows);
  bool can_insert(std::uint64_t steps);
  // Puts in force what of `wanted` may change. False: somebody else has changed something since `wanted` was read; nothing is
  // changed then.
  bool reconfigure(const Settings& wanted);
  Settings settings_now();
  std::uint64_t steps();  // live steps, exact
  // Of `n` marks at one moment, what has been published until now included.
  void drift(std::uint32_t view, const DrawMark* marks, std::uint32_t n, DriftSince* since);
  DrawMark mark_now(std::uint32_t view);
  TableInfo info(std::uint32_t view);
  void count_reading(std::uint64_t rows) const;
  std::vector<std::string> verify();
  // Pins a block with rows; fills the rows that are live in it. Returns the ledger entry. Throws stale.
  std::uint32_t pin_block(std::uint32_t block, std::uint32_t* first, std::uint32_t* last, std::uint64_t* generation);
  std::vector<std::uint32_t> live_blocks();
  // One number of each live row, in eviction order: a priority as float32, a count or a key as uint64, a column as it is stored.
  std::vector<std::byte> scan(std::uint32_t view, Scan what, std::uint32_t column);
  std::vector<float> priorities(std::uint32_t view, const std::uint64_t* keys, std::uint64_t n);  // NaN where stale
  // Which rows are live, their flags, and the keys of the rows that follow them in their episodes; 0 and kNoKey where there is none.
  // `steps`: their numbers in their episodes; empty where the table does not keep them.
  void links(const std::uint64_t* keys, std::uint64_t n, std::vector<std::uint8_t>* live, std::vector<std::uint8_t>* flags, std::vector<std::uint64_t>* next, std::vector<std::uint32_t>* steps);

  // --- no lock ---
  // Batches of a random stream, see StreamCount: where it goes on, that one more was delivered.
  std::uint64_t stream_first(std::uint32_t view, std::uint32_t stream) const;
  void delivered(std::uint32_t view, std::uint32_t stream, std::uint64_t next) const;
  // Blocks are single rows that leave in any order, see remove.cpp.
  bool slots() const { return t_.remover != kRemoveOldest; }
  Block& block(std::uint32_t b) const { return blocks_[b]; }
  // Of a column that has some.
  Categories categories(std::uint32_t column) const { return Categories(process_->segments().control_at<std::byte>(columns_[column].categories)); }
  const RaggedBlocks& ragged() const { return ragged_; }
  Tally& tally(std::uint32_t process) const { return tallies_[process]; }
  std::uint8_t flag(std::uint32_t slot) const { return std::atomic_ref(flags_[slot]).load(std::memory_order_relaxed); }
  std::uint32_t prev(std::uint32_t slot) const { return std::atomic_ref(prev_[slot]).load(std::memory_order_relaxed); }
  std::uint32_t step(std::uint32_t slot) const { return std::atomic_ref(steps_[slot]).load(std::memory_order_relaxed); }
  std::uint32_t next(std::uint32_t slot) const { return std::atomic_ref(next_[slot]).load(std::memory_order_relaxed); }
  std::uint8_t run(std::uint32_t slot) const { return std::atomic_ref(runs_[slot]).load(std::memory_order_relaxed); }
  ViewIndex& view(std::uint32_t v) { return views_[v]; }
  std::uint32_t n_views() const { return static_cast<std::uint32_t>(views_.size()); }
  std::uint32_t block_of(std::uint32_t slot) const {  // slot / rows_per_block, without the division
    return static_cast<std::uint32_t>(slot * reciprocal_ >> shift_);
  }

  std::uint8_t* flags_;
  std::uint32_t* prev_;
  std::uint32_t* next_;
  std::uint32_t* steps_;
  std::uint8_t* runs_;  // null where the table counts none
  std::uint32_t* uses_;

 private:
  bool linked(std::uint32_t p, std::uint64_t birth) const;
  void fold_rows(std::uint32_t b, std::uint32_t from, std::uint32_t to);
  // eligible.cpp
  void link(std::uint32_t slot);
  bool in_run(std::uint32_t slot, std::uint32_t n) const;
  std::uint8_t run_to(std::uint32_t slot, std::uint32_t p) const;
  std::uint32_t before(std::uint32_t slot) const;
  std::uint32_t before(std::uint32_t slot, std::uint32_t n) const;
  bool begins(const View& view, std::uint32_t slot) const;
  void find_ready(const ViewIndex& index, std::uint32_t slot, std::vector<std::uint32_t>& found) const;
  void find_ended(const ViewIndex& index, std::uint32_t last, std::uint32_t near, std::uint32_t far, std::vector<std::uint32_t>& found) const;
  void find_bereft(const ViewIndex& index, std::uint32_t from, std::uint32_t to, std::vector<std::uint32_t>& found) const;
  const char* wrong_readiness(const ViewIndex& index, std::uint32_t slot) const;
  void finish_chains(std::uint32_t b);
  void finish_chains_of(std::uint64_t writer);

  void make_ready(ViewIndex& view, const std::vector<std::uint32_t>& slots);
  // Calls f(block) for the blocks that may hold live rows, in eviction order or the other way, until it returns false.
  template <class F>
  void each_open_block(bool newest_first, F f) const {
    std::uint32_t b = newest_first ? t_.open.last : t_.open.first;
    while (b != kNoRow && f(b)) b = newest_first ? links_.before(b) : links_.after(b);
  }
  bool draw_in_order(const ViewIndex& view, std::uint32_t n, std::uint32_t* slots, std::uint64_t* found) const;
  bool draw_without_replacement(ViewIndex& view, const DrawRequest& request, std::uint32_t* slots, double* probabilities, Drawn* drawn);
  void begin_epoch(ViewIndex& view, const std::uint32_t* without, std::uint32_t n);
  std::uint64_t count_ready(const ViewIndex& view) const;
  void journal(const LineRange* ranges, std::uint32_t n);
  void journal_done();
  void drop_rows(std::uint32_t b, std::uint32_t to);
  void evict_surplus();
  void clear_locked();
  bool evict_head(std::uint64_t surplus);
  void evict_block(std::uint32_t b);
  void retire(std::uint32_t b);
  std::uint32_t victim() const;
  bool remove_one();
  void make_room();
  bool eviction_frees(std::uint32_t blocks) const;
  std::uint32_t free_run(std::uint32_t blocks) const;
  void seal_dead(bool pressed = false);
  void check_saved(const SavedTable& saved) const;
  void put_rows(const SavedTable& saved);
  void restore_counts(const SavedTable& saved);
  bool reclaim(SpaceHolders* holders, std::vector<std::uint64_t>* stalled);
  void give(std::uint32_t b, std::uint32_t blocks, std::uint64_t writer);
  void take_back(std::uint32_t b);
  bool pinned(std::uint32_t b, std::uint32_t* pid) const;
  bool held_for_checkpoint() const;
  void break_stalled_hold();
  bool held_born(std::uint64_t birth) const { return birth >= t_.hold.low.load(std::memory_order_acquire) && birth <= t_.hold.high; }
  // Of a folded row that has not been evicted: whether it counts as live.
  bool is_step(std::uint32_t slot) const { return (flag(slot) & kFinal) == 0 && !used_up(slot); }
  std::uint32_t count_steps(std::uint32_t b, std::uint32_t from, std::uint32_t to) const;
  void note_publications(const Publication* publications, std::uint32_t n);
  void complete_publications();
  void recover_blocks();
  void touch_all() const;
  bool drawable() const;  // by any view
  void recover_leaves(ViewIndex& view, const std::vector<LineRange>& others);
  const char* wrong_in_view(const ViewIndex& view, std::uint32_t slot, bool live) const;
  void put_settings(const Settings& wanted);
  void restart_counts();
  bool insert_possible(std::uint64_t steps) const;
  bool return_reserved(Tally& tally);
  bool deliveries_left(const ViewIndex& view, std::uint64_t rows) const;
  void drop_used_up();
  std::vector<LineRange> use_up_full();
  void retire_empty(std::uint32_t b, bool pressed = false);
  void retire_all_empty();
  std::uint32_t uses(std::uint32_t slot) const { return std::atomic_ref(uses_[slot]).load(std::memory_order_relaxed) & ~kUsedUp; }
  bool used_up(std::uint32_t slot) const { return uses_ != nullptr && (std::atomic_ref(uses_[slot]).load(std::memory_order_relaxed) & kUsedUp) != 0; }
  bool folded_row(std::uint32_t slot) const;

  // tier.cpp, movers.cpp, disk_blocks.cpp, packed.cpp
  struct Move {
    std::uint32_t block, frame, pin;
    std::uint64_t generation, rewritten;
    bool to_disk;
    std::uint32_t on_disk;  // its place there: kOnDisk or kPacked
    bool failed = false;    // it could not be read: it stays there, and who reads its rows hears of it
  };
  std::byte* placed(std::uint32_t block) const;
  std::vector<std::byte> message_of(const BlockMessage& all, std::uint32_t block, std::uint32_t rows, std::uint64_t bytes, const std::vector<std::pair<std::uint64_t, std::uint64_t>>* buffers) const;
  std::vector<std::byte> plain_message(std::uint32_t block, std::uint32_t rows) const {
    return message_of(disk_->message(), block, rows, ragged_.span(block) * t_.block_bytes, nullptr);
  }
  template <class F>
  bool each_buffer(std::uint32_t block, std::uint32_t rows, const std::byte* base, F f) const;
  int write_packed(std::uint32_t block, std::uint32_t rows, const std::byte* base, std::uint64_t* written) const;
  void give_place(std::uint32_t block);
  bool take_frame(std::uint32_t block);
  void free_place(std::uint32_t block);
  void leave_frame(std::uint32_t frame);
  void free_frame(std::uint32_t frame);
  bool reclaim_frames(std::uint64_t oldest);
  void recover_frames();
  void ask_movers(std::uint32_t frames, SpaceHolders* holders);
  void tell_movers();
  bool lacks_frames(std::uint32_t n) const { return tiered() && t_.tier.free_count < n; }
  std::vector<Move> choose_moves();
  bool unconfirmed();
  int sync_disk() const;
  std::optional<std::uint32_t> try_pin(std::uint32_t block);
  bool note_rewritten(std::uint32_t block);
  void look_at_heat();
  std::uint64_t mean_heat() const;
  std::vector<std::uint32_t> demotable() const;
  int carry_out(std::vector<Move>& moves, bool confirms);
  void settle(const std::vector<Move>& moves, int error, std::uint64_t took_ns);
  void wrong_frames(const std::function<void(bool, const std::string&)>& expect) const;

  std::shared_ptr<Process> process_;
  std::uint32_t index_;
  Table& t_;
  const Column* columns_;
  Block* blocks_;
  Readings* readings_;
  Tally* tallies_;
  std::uint32_t* active_;
  BlockLinks links_;
  RaggedBlocks ragged_;
  std::uint32_t* order_;  // of a queue
  VictimTree victims_;
  std::byte* data_;
  std::uint32_t* places_;  // null where block b lies in frame b
  Frame* frames_;
  std::uint32_t* heat_;
  std::uint32_t* sums_;
  std::uint64_t confirmed_ns_ = 0;  // when this process's mover last confirmed what is rewritten
  mutable std::atomic<std::uint64_t> losses_told_{0};
  std::shared_ptr<DiskFile> disk_;
  mutable std::atomic<BlockCache*> cache_{nullptr};
  // reciprocal = ceil(2^shift / rows_per_block) with shift = 28 + ceil(log2(rows_per_block)): exact for 28-bit slots
  std::uint64_t reciprocal_;
  unsigned shift_;
  std::vector<ViewIndex> views_;
  std::unique_ptr<QueueIndex> queue_;
  friend class QueueIndex;
  friend class Cut;
};

// Holds the index lock; repairs the index first when the last holder died inside it.
class IndexLock {
 public:
  explicit IndexLock(TableCore& table, std::uint64_t timeout_ns = lock_timeout_ns());
  ~IndexLock();
  IndexLock(const IndexLock&) = delete;
  IndexLock& operator=(const IndexLock&) = delete;

 private:
  TableCore& table_;
};

}  // namespace conduit
