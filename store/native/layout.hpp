// The shared layout: what lies where in the two segments of a store, who writes it, and what a crash leaves.
//
//   control segment                                              data segment
//   | Header | ProcessSlot x P | Table x T | SpanRing | heap |   | table 0: block 0, block 1, ... | table 1: ... |
//
// Offsets, never pointers: every process maps the segments somewhere else.
// Changing any struct below is a format change: bump kLayoutVersion (the fingerprint catches the forgotten bump).
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace conduit {

inline constexpr std::uint64_t kMagic = 0x3154494455444e43;  // "CNDUDIT1", little endian
inline constexpr std::uint32_t kLayoutVersion = 17;
inline constexpr std::uint32_t kReadersPerProcess = 16;  // threads of one process that may copy at the same time
inline constexpr std::uint32_t kPinsPerProcess = 2048;   // zero-copy views of blocks that one process may hold
inline constexpr std::uint32_t kNameBytes = 64;
inline constexpr std::uint32_t kTreeLevels = 10;         // 8^10 > 2^28 leaves
inline constexpr std::uint32_t kMaxViews = 4;            // windows that one table may be sampled with
inline constexpr std::uint32_t kJournalEntries = 4096;
inline constexpr std::uint32_t kLongWindow = 8;          // rows from which on it pays to count runs
inline constexpr std::uint32_t kPublications = 3;      // blocks that one append may publish into together
inline constexpr std::uint32_t kNoRow = 0xffffffffu;
inline constexpr std::uint64_t kNoKey = ~std::uint64_t{0};
inline constexpr std::uint32_t kSpans = 32'768;
inline constexpr std::uint32_t kGroups = 8;       // consumer groups of one queue
inline constexpr std::uint32_t kLeases = 4096;    // deliveries of one queue that are out at a time
inline constexpr std::uint32_t kStreams = 512;    // random streams of one table whose delivered batches are counted

// Row key: 36-bit generation of the block above a 28-bit slot. Slot = block * rows_per_block + row.
inline constexpr unsigned kSlotBits = 28;
inline constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
inline constexpr std::uint64_t make_key(std::uint64_t generation, std::uint32_t slot) {
  return generation << kSlotBits | slot;
}

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared atomics must be address-free");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "shared atomics must be address-free");

// A process-shared robust mutex and who holds it. `holder` is written by the owner after locking, for messages only.
struct alignas(64) SharedMutex {
  pthread_mutex_t mutex;
  std::atomic<std::uint32_t> holder;  // process slot + 1; 0 when free
};

// One reader thread inside one gather.
//   0 = idle; otherwise entry number << 40 | epoch, unique for each entry and each progress step.
// Reader: idle -> active by CAS, progress by CAS, active -> idle by CAS. Reclaimer: active -> kExpelled by CAS when the
// value has not moved for the stall limit; the reader's own CAS then fails, it discards its batch and goes to idle.
struct alignas(64) ReaderSlot {
  std::atomic<std::uint64_t> state;
};
inline constexpr std::uint64_t kExpelled = ~std::uint64_t{0};
inline constexpr unsigned kEpochBits = 40;
inline constexpr std::uint64_t kEpochMask = (std::uint64_t{1} << kEpochBits) - 1;

// One attached process. Alive <=> byte `slot` of the control memfd carries a write lock of another open file description.
// `claim` is bumped by whoever takes the slot, so that what the dead predecessor held is told from the new owner's.
struct alignas(64) ProcessSlot {
  std::atomic<std::uint32_t> claim;
  std::atomic<std::uint32_t> pid;           // as its own pid namespace sees it: for messages only
  std::atomic<std::uint32_t> readers_used;  // high-water mark of `readers`
  std::atomic<std::uint32_t> pins_used;     // high-water mark of `pins`
  std::atomic<std::uint32_t> attached;      // 0 after an orderly close
  ReaderSlot readers[kReadersPerProcess];
  std::atomic<std::uint64_t> pins[kPinsPerProcess];  // 0, or (table + 1) << 32 | block
};

struct alignas(64) Header {
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t max_processes;
  std::uint64_t fingerprint;
  std::uint64_t control_bytes;
  std::uint64_t data_bytes;
  std::uint32_t max_tables;
  std::atomic<std::uint32_t> processes_used;  // high-water mark of process slots
  std::atomic<std::uint32_t> tables;          // published tables; entries below it never change place
  std::atomic<std::uint32_t> ready;           // 1 once the creator has finished
  char name[kNameBytes];
  std::uint64_t created_ns;
  std::atomic<std::uint64_t> checkpoint;       // (process slot + 1) << 32 | claim of whoever takes one; void when that one is dead
  SharedMutex directory;                       // guards creation of tables
  alignas(64) std::atomic<std::uint64_t> epoch;  // starts at 1; bumped by each retirement
};

// One block = one future Arrow record batch. 64 bytes: no false sharing between a writer and its neighbours.
//
// `pub` is the writer's publication word: row count | flags. The owner publishes rows by CAS(count -> count + k, release);
// anybody may seal by fetch_or(kSealed), after which the owner's CAS fails and it moves to another block. So bytes and
// index entries of rows below the count never change until the block is FREE again.
// `state` and everything below it is changed only under the table's index lock:
//   FREE -> OPEN (given to a writer) -> RETIRED (sealed, every row folded and evicted) -> FREE
// RETIRED becomes FREE only when (1) the owner can no longer write: kReleased is set or the owner is dead,
// (2) no reader epoch <= retired_epoch is active, (3) no pin names the block, (4) no checkpoint holds it.
// An OPEN block that is kReleased and not kSealed was restored from a checkpoint that caught its writer at work: the next
// new writer takes it over, or, when room is short, it is sealed.
// A row that no single block could hold has a run of adjacent blocks: the first of them is the block, the others are ANNEXED,
// their bytes are the first one's, and they come free with it. Table::spans says how many blocks a run has.
// Owners publish into several blocks at once under the index lock, which whoever seals holds as well: all or nothing.
// Crash: an OPEN block whose owner is dead is sealed at its published count by whoever notices.
struct alignas(64) Block {
  std::atomic<std::uint64_t> pub;
  std::atomic<std::uint32_t> state;
  std::uint32_t owner;             // process slot
  std::uint32_t owner_claim;
  std::atomic<std::uint32_t> folded;   // rows whose links and leaves are in the index
  std::atomic<std::uint32_t> evicted;  // rows evicted, from the front
  std::uint32_t live;              // steps folded and neither evicted nor used up; derived
  std::atomic<std::uint64_t> generation;  // 36 bits, bumped at FREE -> OPEN
  std::uint64_t birth;             // order of opening within the table = eviction order
  std::uint64_t retired_epoch;
  std::uint64_t writer;            // number of the writer within the table
};
static_assert(sizeof(Block) == 64);

inline constexpr std::uint64_t kSealed = std::uint64_t{1} << 62;    // the count is final
inline constexpr std::uint64_t kReleased = std::uint64_t{1} << 61;  // the owner will not touch the block's bytes again
inline constexpr std::uint64_t kCut = std::uint64_t{1} << 60;       // the chains that end here go no further
inline constexpr std::uint64_t kCountMask = 0xffffffffu;
enum BlockState : std::uint32_t { kFree = 0, kOpen = 1, kRetired = 2, kAnnexed = 3 };

// Row flags, one byte a row. The low four bits are the writer's, set before publication and ground truth; the upper four,
// one a view, are the folder's.
inline constexpr std::uint8_t kTerminated = 1;
inline constexpr std::uint8_t kTruncated = 2;
inline constexpr std::uint8_t kEnd = kTerminated | kTruncated;
inline constexpr std::uint8_t kFinal = 4;  // holds only the last observation of an episode; never sampled
inline constexpr std::uint8_t kFirst = 8;  // the first row of an episode; not one whose predecessor is merely gone
inline constexpr std::uint8_t kWritten = kEnd | kFinal | kFirst;
// In view v the row has what the view's window needs: its leaf there is its priority.
inline constexpr std::uint8_t ready_flag(std::uint32_t v) { return static_cast<std::uint8_t>(16u << v); }
static_assert(ready_flag(kMaxViews - 1) == 128, "one flag a view, in one byte");

// Journal entry: a range of tree lines (8 leaves each) that the lock holder is about to change.
struct JournalEntry {
  std::uint32_t first, last;
};

// Rows that go in together, in several blocks: the row count that `block` is to have. Written by the lock holder when all
// rows are, before the first block's `pub` says so: from then on they are in, and recovery completes what is missing.
struct Publication {
  std::uint32_t block, count;
};

// A column of a block: `row_bytes` a row from `block_offset` on. Where rows vary in length (`element_bytes` is not 0) these are
// int64 ends: row r has the elements [ends[r], ends[r + 1]) of the column's part of the block's values, see ragged.hpp.
struct Column {
  std::uint64_t block_offset = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t element_bytes = 0;
  std::uint64_t mean_bytes = 0;  // of a row's elements, as the table was planned for
  std::uint64_t ragged = 0;      // number among the columns whose rows vary in length
  std::uint64_t changes = 0;     // 1: numbers of up to 8 bytes that are rewritten while others read them, see scalars.hpp
  std::uint64_t categories = 0;  // where in the control segment the values are that its numbers stand for, see categories.hpp; 0: none
};

// Which limiter a table has. See limiter.hpp.
inline constexpr double kMaxErrorBuffer = 1e15;
enum LimiterKind : std::uint32_t { kMinSize = 0, kSampleToInsert = 1, kQueueCapacity = 2 };

// What may change of a view: see View.
struct ViewSettings {
  double alpha = 1.0, eps = 0.0, beta = 0.0;
};

// What may change while a table lives. There are two records, of which `Table::settings_now` says which is in force: a change
// is written into the other, under the index lock, and comes into force by one store. Crash: all of it, or nothing.
struct Settings {
  std::uint64_t version = 0;         // of the record: bumped with each change
  ViewSettings views[kMaxViews];
  std::uint64_t min_size = 1;        // steps that a table must hold before it is sampled
  double ratio = 1.0;                // kSampleToInsert, as the next four: samples that each insert allows
  double error_buffer = 0.0;         // how far the cursor may be from ratio * min_size; infinity: inserts never wait
  double shift = 0.0;                // carries the cursor over a change of the ratio
  std::uint64_t inserts_before = 0;  // steps folded when counting began: 0, later at each clear
  std::uint64_t era = 0;             // of the counts: bumped by clear
  std::uint64_t capacity = 0;        // kQueueCapacity: steps at which appends wait
  std::uint32_t max_times = 0;       // deliveries after which a row leaves, where the table counts them

  // Where the cursor, inserts * ratio - samples + shift, may be. Without an error buffer samples may use up what is there.
  double low() const { return error_buffer <= kMaxErrorBuffer ? static_cast<double>(min_size) * ratio - error_buffer : 0.0; }
  double high() const { return static_cast<double>(min_size) * ratio + error_buffer; }
};

// What one process has drawn under a kSampleToInsert limiter. The table's samples are the sum over all processes of taken less
// returned; what a process has taken and neither delivered nor returned is reserved. Each word is era << 48 | count, and
// counts 0 in any other era than the settings'. `claim` and `taken` are written under the index lock, `delivered` and
// `returned` by their process without it, in the end by whoever finds it dead, under the lock.
// Crash: what is reserved goes back when the next process that has to wait looks who is alive.
struct alignas(64) Tally {
  std::atomic<std::uint32_t> claim;
  std::atomic<std::uint64_t> taken, delivered, returned;
};
inline constexpr unsigned kTallyBits = 48;
inline constexpr std::uint64_t kTallyMask = (std::uint64_t{1} << kTallyBits) - 1;

// What one process has read of a table: for messages. Written by that process after each batch, without a lock; `claim` says
// whose it is. Two of its threads that begin at the same moment may forget a batch.
struct alignas(64) Readings {
  std::atomic<std::uint32_t> claim;
  std::atomic<std::uint64_t> batches, rows, last_ns;  // CLOCK_MONOTONIC
};

// How often a row has been drawn, in tables that count it; kUsedUp: it has left for that. Written by its writer before
// publication (0), then under the index lock.
inline constexpr std::uint32_t kUsedUp = 1u << 31;

// Counters: monotonic, relaxed; each is written under the index lock unless it says otherwise.
struct alignas(64) Counters {
  std::atomic<std::uint64_t> steps_folded, steps_evicted, evicted_early, sampled_rows, sampled_batches;
  std::atomic<std::uint64_t> updated, stale_updates, discarded_batches, recoveries, blocks_opened;
  std::atomic<std::uint64_t> draw_ns, gather_ns, sample_wait_ns, fold_ns;      // by samplers, after the call
  std::atomic<std::uint64_t> append_ns, append_wait_ns, append_calls, update_ns;  // by writers and updaters, after the call
  std::atomic<std::uint64_t> used_up;                                   // part of steps_evicted: by max_times
  std::atomic<std::uint64_t> limited_append_ns, limited_sample_ns;      // waits for the limiter, by whoever waited
};

// How far the distribution of draws has moved: D = sum of |leaf changes|, never below the truth. Under the index lock.
// D is kept in two doubles and begins anew, in another era, when it has outgrown the tree's total so far that small changes
// would be lost. `changes` moves whenever a draw made now may differ from one made before.
// Crash: a holder may die between a leaf and D. Recovery opens another era, in which nothing before is known.
struct Drift {
  double sum, rest;
  std::uint64_t changes;
  std::uint64_t era;
};

inline constexpr std::uint32_t kWholePast = ~std::uint32_t{0};
inline constexpr std::uint32_t kStrict = 1;    // no window that is shorter, at either end of its episode
inline constexpr std::uint32_t kWhole = 2;     // not before the episode has ended
inline constexpr std::uint32_t kLastStep = 4;  // no observation need follow the last step

// How a view's rows are drawn; see draws.cpp.
enum SamplerKind : std::uint32_t { kByMass = 0, kOldestFirst = 1, kNewestFirst = 2, kWithoutReplacement = 3 };

// A number that follows a view's count of batches, see schedule.hpp. kConstant: it does not.
enum ScheduleKind : std::uint32_t { kConstant = 0, kLinear = 1, kExponential = 2 };
struct Schedule {
  std::uint32_t kind = kConstant;
  double start = 0.0, end = 0.0;
  std::uint64_t batches = 1;
};

// A view: one window by which a table is sampled, with its own index over the rows: which of them the window fits (one of
// the row flags), how likely each is drawn (leaves), and how far that has moved (drift). Immutable after creation but for
// `epoch`, `batches`, the last two and its Settings::views, which are changed under the table's index lock.
// Ground truth: raw priorities, and without replacement `epoch` and each row's mark, the epoch in which it was drawn last.
// Crash: leaves, sums and extremes are recomputed from flags, raw priorities and marks, see recover.cpp.
struct View {
  std::uint64_t raw_offset;                      // float32[slots]: priority as given; NaN = "the largest of the live rows"
  std::uint64_t level_offset[kTreeLevels];       // double[level_size]: level 0 = leaves, padded to lines of 8
  std::uint64_t extreme_offset[kTreeLevels];     // Extremes of the raw priorities of ready rows, fan-out 64, above `raw`
  std::uint64_t seed;                            // of this view's draws
  std::uint32_t steps_before;  // rows needed before the drawn one, if its episode has them; kWholePast = all
  std::uint32_t steps_after;   // rows needed after it (n of an n-step window); 0 = rows as stored
  std::uint32_t period;        // drawn are the steps of an episode whose number it divides
  std::uint32_t rules;         // kStrict | kWhole | kLastStep, see eligible.cpp
  std::uint32_t prioritized;
  std::uint32_t sampler;      // SamplerKind
  std::uint32_t stratified;   // kByMass: one draw from each of n equal slices of the mass
  std::uint64_t drawn_offset; // uint32[slots]: marks; 0 but for kWithoutReplacement
  Schedule beta_schedule;
  std::uint32_t epoch;        // kWithoutReplacement: from 1; a row whose mark is `epoch` is not drawn again in it
  std::uint64_t batches;      // drawn so far; those that were thrown away at once and drawn again count once
  std::uint32_t rebuild;      // 1 while every leaf is being recomputed: recovery then does all of them
  Drift drift;
};

// Which row leaves a full table; see evict.cpp, and remove.cpp for those that take rows out one by one.
enum RemoverKind : std::uint32_t { kRemoveOldest = 0, kRemoveNewest = 1, kRemoveLeast = 2 };

// A chain of blocks, see block_lists.hpp; kNoRow at its ends.
struct BlockLink {
  std::uint32_t before, after;
};
struct BlockList {
  std::uint32_t first, last, count;
};

// The row that leaves before all others below a node, see victims.hpp.
struct Victim {
  std::uint64_t birth;
  float raw;
  std::uint32_t slot;
};

// Blocks that a checkpoint has cut and not written yet: those born within [low, high] are not reclaimed while that process
// lives. low > high: none. `process`, `claim` and `high` are changed under the index lock, while there is none.
// Invariant: a block is reused only after `low` has passed it. The holder moves `low` up by CAS, after its last read of the
// blocks before; anybody else only to kHoldBroken, which makes the holder's next CAS fail. So what is read of a block that has been
// reused is thrown away before it counts: that checkpoint fails.
// A hold is broken by a writer that has to wait for it, under the lock, when it has not moved for long (kHoldNs in evict.cpp).
// `since`: when such a writer first saw it, CLOCK_MONOTONIC; 0: the holder has gone on since, or nobody waits.
// Crash of the holder: void.
struct Hold {
  std::uint32_t process, claim;
  std::atomic<std::uint64_t> low;
  std::uint64_t high;
  std::atomic<std::uint64_t> since;
};
inline constexpr std::uint64_t kNoHold = ~std::uint64_t{0};
inline constexpr std::uint64_t kHoldBroken = kNoHold - 1;

// What a raw priority was before it was changed; see cut.hpp. Both under the index lock: `on` while a checkpoint copies
// priorities, `used` changes since then, of which Table::undos are kept. Crash of the checkpoint's process: `on` stays, which
// costs the others a store for each of the first changes; the next checkpoint begins anew.
struct Undo {
  std::uint32_t view, slot;
  float raw;
};
struct UndoLog {
  std::uint32_t on, used;
};

// How many batches of one random stream and view have been delivered, for checkpoints; `first` is where a restored stream goes
// on. An entry is taken once, by CAS on `name`, and never given back. Crash: a batch that was delivered is not counted.
struct StreamCount {
  std::atomic<std::uint64_t> name;  // (view + 1) << 32 | stream; 0 = free
  std::atomic<std::uint64_t> first, delivered;
};

// Tables that may outgrow memory: a block has a *place*, a frame of host memory or its slot in the table's file on disk.
// `places`: the frame's number, kOnDisk (kPacked: there, compressed), or kNowhere while the block is FREE; of an OPEN block that still takes rows always a
// frame. Changed under the index lock; read without it inside a reader epoch, or by whoever has pinned the block.
// A frame is USED by exactly the block whose place it is. Where a block has gone to disk its frame is LEAVING until no reader
// epoch <= `epoch` is active. TAKEN: a process reads a block into it. `copied`: the block's bytes are on disk too,
// by the name of that place; else 0.
// What is on disk of a block does not change while it has a place, as the rows of a sealed block do not, but for columns that
// are rewritten: those change wherever the block's place is, and whoever moves it sees that and begins anew.
// Crash: places are the truth, frames follow from them; a frame TAKEN by a dead process is free.
inline constexpr std::uint32_t kNowhere = 0xffffffffu;
inline constexpr std::uint32_t kOnDisk = 0xfffffffeu;
inline constexpr std::uint32_t kPacked = 0xfffffffdu;  // never of columns that are rewritten
enum FrameState : std::uint32_t { kFrameFree = 0, kFrameUsed = 1, kFrameLeaving = 2, kFrameTaken = 3 };
struct Frame {
  std::uint32_t state, block;
  std::uint32_t process, claim;  // of who has taken it
  std::uint64_t epoch;
  std::uint32_t next;            // of the free, or of the leaving ones; derived
  std::uint32_t copied;
  std::uint32_t rewritten;       // 1: numbers of the block were, since it was last chosen to go to disk
};

struct Tier {
  // under the index lock
  std::uint32_t free, free_count, leaving, leaving_count;  // lists of frames; derived
  std::uint32_t least_free;   // frames that movers keep free for writers
  std::uint32_t wish;         // blocks on disk that are read so often that they should come back
  std::uint64_t looked;       // rows_from_disk when heat was looked at last
  // A writer that finds too few frames says in `wanted` how many it needs, and whoever moves blocks for it counts in `failures` if it cannot, with
  // the reason in `error`. Crash of a mover: the writer's own process has one, which looks again.
  std::atomic<std::uint32_t> wanted, error;
  std::atomic<std::uint64_t> failures;
  // Numbers of blocks on disk are rewritten through the file's mapping, and the kernel writes them back when it likes. `rewritten` moves before
  // numbers there change, under the index lock, and once more after an update's last; `confirmed` is what it was when a sync that has succeeded
  // began, or one that has failed ended: then `losses` moves too, with the reason in `loss`. The kernel tells a failed write-back once to each
  // open file, so all syncs are counted (movers.cpp). Crash of who syncs: nothing is confirmed, and the next one, through its own file, hears of it.
  std::atomic<std::uint64_t> rewritten, confirmed, losses;
  std::atomic<std::uint32_t> loss;
  alignas(64) std::atomic<std::uint32_t> work_waiting, work_signal;  // movers, for work
  std::atomic<std::uint64_t> rows_from_disk, blocks_written, blocks_dropped, blocks_promoted, bytes_written, write_ns;  // counters
};

// A table. Immutable after creation unless marked; offsets are from the control segment's start.
struct alignas(64) Table {
  char name[kNameBytes];
  std::uint64_t spec_offset, spec_bytes;
  std::uint64_t columns_offset;   // Column[n_columns]
  std::uint64_t spans_offset;     // uint32[n_blocks]: blocks of the run that begins here; 0 where no column's rows vary in length
  std::uint64_t starts_offset;    // uint64[n_blocks][n_ragged]: where in the block each part of its values begins
  std::uint64_t values_offset;    // where in a block its values begin
  std::uint64_t categories_offset;  // of each column of categories, one after the other, see Column::categories
  std::uint64_t blocks_offset;    // Block[n_blocks]
  std::uint64_t flags_offset;     // uint8[slots]
  std::uint64_t prev_offset;      // uint32[slots], 0 when the table keeps no links
  std::uint64_t next_offset;      // uint32[slots]
  std::uint64_t steps_offset;     // uint32[slots]: the row's number in its episode, from 0; 0 where no view has a period
  std::uint64_t runs_offset;      // uint8[slots], by the folder: how many of the rows right before it in its block precede it in
                                  // its episode, one after the other, 255 at most; 0 where no view has long windows
  std::uint64_t level_size[kTreeLevels];    // of the sum tree of each view
  std::uint64_t extreme_size[kTreeLevels];  // of the tree of extremes of each prioritized view
  std::uint64_t active_offset;    // uint32[n_blocks]: blocks that may still have rows to fold
  std::uint64_t links_offset;     // BlockLink[n_blocks]: chains `open`, `retired` and `free`
  std::uint64_t victim_offset[kTreeLevels];  // Victim[victim_size], fan-out 8 above the rows; kRemoveLeast only
  std::uint64_t victim_size[kTreeLevels];
  std::uint64_t order_offset;     // of a queue, uint32[n_blocks]: OPEN blocks in order of birth, a ring
  std::uint64_t uses_offset;      // uint32[slots], 0 when deliveries are not counted
  std::uint64_t readings_offset;  // Readings[max_processes]
  std::uint64_t tallies_offset;   // Tally[max_processes], 0 without kSampleToInsert
  std::uint64_t undo_offset;      // Undo[undos], 0 when no view is prioritized
  std::uint64_t queue_offset;     // QueueState; 0 when the table is no queue
  std::uint64_t places_offset;    // uint32[n_blocks]: see Tier; 0 where block b lies in frame b
  std::uint64_t frames_offset;    // Frame[n_frames]
  std::uint64_t heat_offset;      // uint32[n_blocks]: rows read of late, halved now and then
  std::uint64_t sums_offset;      // uint32[n_blocks]: CRC-32C of what lies on disk of a block whose place is kPacked, or is about to be
  std::uint64_t end_offset;       // first byte of the control heap after this table
  std::uint64_t data_offset, data_bytes;  // in the data segment
  std::uint64_t block_bytes;
  std::uint64_t max_size;         // steps
  std::uint32_t n_columns, n_blocks, rows_per_block, levels, extreme_levels;
  std::uint32_t n_frames;         // blocks that host memory has room for; n_blocks without a disk
  std::uint32_t links;            // 1: rows are chained into episodes
  std::uint32_t n_views;
  std::uint32_t n_ragged;         // columns whose rows vary in length
  std::uint32_t remover;          // RemoverKind; but for kRemoveOldest a block is one row, and there are no links
  std::uint32_t remover_view;     // whose raw priorities kRemoveLeast looks at
  std::uint32_t victim_levels;
  std::uint32_t undos;            // grows with the table, as the time does that a copy of its priorities takes
  std::uint32_t limiter;          // LimiterKind
  std::uint32_t limits_inserts;   // 1: rows are published under the index lock, as far as the limiter lets them in
  std::uint64_t seed;
  View views[kMaxViews];

  alignas(64) SharedMutex index;  // guards all that follows but the atomics, and Block from `state` on
  Settings settings[2];
  std::uint32_t settings_now;     // the record in force
  std::uint32_t active_count;
  BlockList open, retired, free;  // every block is in one
  std::uint64_t order_head, order_tail;  // of a queue's ring, in which a block is found by its birth
  std::uint64_t births;
  std::uint64_t live_steps;       // folded, and neither evicted nor used up
  Hold hold;
  UndoLog undo;
  std::atomic<std::uint32_t> publications_used;  // entries valid; 0 when no append is half published
  Publication publications[kPublications];
  alignas(64) std::atomic<std::uint32_t> journal_used;  // entries valid; 0 when the tree is consistent
  JournalEntry journal[kJournalEntries];

  // Waits. A waiter stores 1 into the flag, re-checks, then waits on the counter; whoever makes progress and finds the
  // flag set clears it, bumps the counter and wakes. A dead waiter costs one needless wake.
  alignas(64) std::atomic<std::uint32_t> rows_waiting, rows_signal;    // samplers, for rows
  alignas(64) std::atomic<std::uint32_t> space_waiting, space_signal;  // writers, for a free block
  alignas(64) std::atomic<std::uint32_t> inserts_waiting, inserts_signal;  // writers, for the limiter
  std::atomic<std::uint64_t> streams;                                  // random streams handed out
  std::atomic<std::uint64_t> writers;                                  // writers numbered so far
  std::atomic<std::uint32_t> left_open;                                // a hint: 0 when no block waits for another writer
  StreamCount stream_counts[kStreams];
  Counters counters;
  Tier tier;
};

// Queues: tables whose rows are each delivered to every consumer group until acknowledged, and then never again. They have
// no leaves (levels = 0) and no links. A row's delivery word, one for each group, says what has become of it there:
//   kWaiting | kAgain -> lease + 1 -> kAcked, or back to kAgain when the lease ends without an acknowledgement.
// All of it is changed only under the index lock. Rows are published under it too, so that their number is exact.
// A row is done when every group has acknowledged it; a block is retired when it takes no more rows and all are done,
// whichever of its neighbours are not.
// Ground truth: delivery words, stamps, `fence` of each lease and what goes with it, `fences`, the version, `ended`,
// publications and marks in progress. Derived, and recounted by recovery: everything that says so below.
inline constexpr std::uint32_t kWaiting = 0;            // never delivered to this group
inline constexpr std::uint32_t kAgain = 0x7ffffffeu;    // was delivered, and came back
inline constexpr std::uint32_t kAcked = 0xffffffffu;
// Rows that are acknowledged together are marked first. Crash: recovery acknowledges what is marked if `acking` says that
// all of them were, else it takes the marks off: all or none.
inline constexpr std::uint32_t kMarked = 0x80000000u;

// One delivery that is out. Crash of its holder: whoever notices ends it, and its rows wait again.
struct alignas(64) Lease {
  std::uint64_t fence;        // number of the delivery, never used twice; 0 = free. Written last, cleared last.
  std::uint64_t deadline_ns;  // CLOCK_MONOTONIC
  std::uint64_t began_ns;
  std::uint64_t first_birth, last_birth;  // of the blocks that hold its rows
  std::uint32_t process, claim;
  std::uint32_t group;
  std::uint32_t rows;         // derived: words that name it
};
static_assert(sizeof(Lease) == 64);

struct QueueCounters {
  std::uint64_t delivered, acknowledged, redelivered, stale_rows, dropped_rows;
};

struct alignas(64) QueueState {
  // fixed at creation
  std::uint64_t words_offset;         // uint32[groups][slots]
  std::uint64_t stamps_offset;        // uint64[slots]: when the row was published, strictly later than the rows before it
  std::uint64_t hints_offset;         // uint32[groups][n_blocks], derived: no row of the block before it waits
  std::uint64_t done_offset;          // uint32[n_blocks], derived: rows that every group has acknowledged
  std::uint64_t publications_offset;  // Publication[n_blocks]: as of a table's, for an append of any size
  std::uint64_t lease_timeout_ns;
  std::int64_t max_staleness;         // -1: rows have no policy version
  std::uint32_t groups;
  std::uint32_t version_column;

  // under the index lock
  alignas(64) std::uint64_t fences;   // deliveries so far
  std::uint64_t stamp;                // of the newest row
  std::atomic<std::uint32_t> publications_used;
  std::atomic<std::uint32_t> acking;  // 1 while marked rows are to be acknowledged
  std::uint64_t waiting[kGroups], leased[kGroups];  // derived: rows
  std::uint64_t cursor[kGroups];      // derived: no row in blocks of an earlier birth waits or will
  std::uint64_t returns[kGroups];     // moves whenever rows have come back
  std::int64_t purged[kGroups];       // derived: no waiting row is too stale for this policy version of the learner's
  std::uint32_t grouped[kGroups];     // 1 once rows were asked for by the value of a column: too-stale ones then go by whole groups
  std::uint64_t next_deadline_ns;     // derived: no lease ends before
  std::uint32_t lease_cursor, leases_used, leases_active;  // derived
  std::uint64_t expired_leases, released_leases, orphaned_leases;  // counters: ended by time, by hand, by a death
  QueueCounters counters[kGroups];

  // read by anybody
  alignas(64) std::atomic<std::int64_t> policy_version;  // the learner's; only grows
  std::atomic<std::uint32_t> ended;                      // 1: no more rows will come
  alignas(64) std::atomic<std::uint64_t> rows_progress;  // moves when rows may have come to wait, or the queue has ended
  alignas(64) std::atomic<std::uint64_t> room_progress;  // moves when rows are done, or versions change
  Lease leases[kLeases];
};

// What took how long, newest kSpans of the store; see spans.hpp. Written by anybody, without a lock. Crash: an entry that is
// not whole, and is skipped.
struct SpanEntry {
  std::atomic<std::uint64_t> word[4];
};
struct alignas(64) SpanRing {
  std::atomic<std::uint64_t> head;  // spans left so far
  alignas(64) SpanEntry entries[kSpans];
};

// What two builds must agree on before they share a segment.
inline std::uint64_t fingerprint() {
  std::uint64_t h = 1469598103934665603ull;
  for (std::uint64_t v : {std::uint64_t{kLayoutVersion}, std::uint64_t{sizeof(Header)}, std::uint64_t{sizeof(ProcessSlot)},
                          std::uint64_t{sizeof(Table)}, std::uint64_t{sizeof(View)}, std::uint64_t{sizeof(Column)}, std::uint64_t{sizeof(Block)}, std::uint64_t{sizeof(pthread_mutex_t)},
                          std::uint64_t{sizeof(Settings)}, std::uint64_t{sizeof(Tally)},
                          std::uint64_t{offsetof(Table, index)}, std::uint64_t{offsetof(Table, journal)},
                          std::uint64_t{offsetof(Table, counters)}, std::uint64_t{kJournalEntries},
                          std::uint64_t{kPublications}, std::uint64_t{sizeof(SpanRing)}, std::uint64_t{sizeof(QueueState)}, std::uint64_t{sizeof(Tier)}}) {
    h = (h ^ v) * 1099511628211ull;
  }
  return h >> 1;  // fits a signed 64-bit integer of other languages
}

}  // namespace conduit
