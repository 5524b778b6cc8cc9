// Moving blocks between memory and disk, by a thread of each process that writes: which ones, and how their places change.
//
// A block goes to disk when frames run short: it is pinned, written and synced, without the lock; only then its place changes
// and its frame comes free. So memory keeps what the disk has not confirmed. A block comes back when its rows are read much
// more often than those of a block in memory; its bytes stay on disk, and to let go of it again costs nothing.
#include <string.h>

#include <algorithm>
#include <optional>

#include "disk_file.hpp"
#include "error.hpp"
#include "failpoints.hpp"
#include "queue.hpp"
#include "table.hpp"
#include "tier.hpp"

namespace conduit {
namespace {

constexpr std::size_t kMovesAtOnce = 8;   // blocks that are written before one sync
constexpr std::uint64_t kHotter = 32;     // rows by which chance alone may make a block look hot
constexpr std::uint32_t kWishes = 4;
#ifdef CONDUIT_FAILPOINTS
constexpr std::uint64_t kConfirmNs = 0;
#else
constexpr std::uint64_t kConfirmNs = 5'000'000'000;  // between two syncs for numbers that are rewritten on disk
#endif

bool hot(std::uint64_t heat, std::uint64_t mean) { return heat > 2 * mean + kHotter; }

}  // namespace

std::uint64_t TableCore::mean_heat() const {
  std::uint64_t sum = 0, blocks = 0;
  for (std::uint32_t f = 0; f < t_.n_frames; ++f) {
    if (frames_[f].state != kFrameUsed) continue;
    sum += std::atomic_ref(heat_[frames_[f].block]).load(std::memory_order_relaxed);
    ++blocks;
  }
  return blocks == 0 ? 0 : sum / blocks;
}

// Blocks in memory that take no more rows, those first that should go first: oldest first, but hot ones last. Of a queue those that
// are delivered last.
std::vector<std::uint32_t> TableCore::demotable() const {
  struct Candidate {
    bool hot;
    std::uint64_t order;
    std::uint32_t block;
  };
  std::vector<Candidate> found;
  const std::uint64_t mean = mean_heat();
  for (std::uint32_t f = 0; f < t_.n_frames; ++f) {
    if (frames_[f].state != kFrameUsed) continue;
    const Block& block = blocks_[frames_[f].block];
    const std::uint64_t pub = block.pub.load(std::memory_order_acquire);
    if (block.state.load(std::memory_order_relaxed) != kOpen || (pub & (kSealed | kReleased)) != (kSealed | kReleased)) continue;
    found.push_back({hot(std::atomic_ref(heat_[frames_[f].block]).load(std::memory_order_relaxed), mean), queue_ ? ~queue_->distance(frames_[f].block) : block.birth, frames_[f].block});
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.hot != b.hot ? b.hot : a.order < b.order; });
  std::vector<std::uint32_t> blocks;
  for (const Candidate& c : found) blocks.push_back(c.block);
  return blocks;
}

// None: this process has as many pins as it may.
std::optional<std::uint32_t> TableCore::try_pin(std::uint32_t block) {
  try {
    return process_->pin(index_, block);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Before numbers of the block are rewritten, under the lock: see Tier. Whether they are so on disk.
bool TableCore::note_rewritten(std::uint32_t block) {
  const std::uint32_t place = places_[block];
  if (place == kOnDisk) {
    t_.tier.rewritten.fetch_add(1, std::memory_order_seq_cst);
    return true;
  }
  frames_[place].copied = 0;
  frames_[place].rewritten = 1;
  return false;
}

// Whether it is time to sync what is rewritten on disk.
bool TableCore::unconfirmed() {
  const Tier& tier = t_.tier;
  if (tier.rewritten.load(std::memory_order_relaxed) == tier.confirmed.load(std::memory_order_relaxed)) return false;
  const std::uint64_t now = now_ns();
  if (now - confirmed_ns_ < kConfirmNs) return false;
  confirmed_ns_ = now;
  return true;
}

// All of the file. 0 or errno. Every sync goes through here, whatever it is for: see Tier.
int TableCore::sync_disk() const {
  Tier& tier = t_.tier;
  std::uint64_t until = tier.rewritten.load(std::memory_order_seq_cst);
  const int error = disk_->sync();
  if (error != 0) until = tier.rewritten.load(std::memory_order_seq_cst);  // also of what has changed since one cannot say
  std::uint64_t confirmed = tier.confirmed.load(std::memory_order_relaxed);
  while (confirmed < until && !tier.confirmed.compare_exchange_weak(confirmed, until, std::memory_order_acq_rel)) {
  }
  if (error != 0 && confirmed < until) {
    tier.loss.store(static_cast<std::uint32_t>(error), std::memory_order_relaxed);
    tier.losses.fetch_add(1, std::memory_order_release);
  }
  return error;
}

void TableCore::tell_losses() const {
  if (!tiered()) return;
  const std::uint64_t losses = t_.tier.losses.load(std::memory_order_acquire);
  if (losses == losses_told_.load(std::memory_order_relaxed) || losses_told_.exchange(losses, std::memory_order_relaxed) == losses) return;
  fail(ErrorCode::disk, "numbers of table '%s' that were rewritten may not have reached the disk, file %s: %s. Rows there may have their old numbers again; what is in memory "
       "stays. Update them once more", t_.name, disk_->path().c_str(), strerror(static_cast<int>(t_.tier.loss.load(std::memory_order_relaxed))));
}

// Every kLookEvery rows from disk: do some blocks there earn a frame?
void TableCore::look_at_heat() {
  const std::uint64_t read = t_.tier.rows_from_disk.load(std::memory_order_relaxed);
  if (read / kLookEvery == t_.tier.looked / kLookEvery) return;
  t_.tier.looked = read;
  const std::uint64_t mean = mean_heat();
  std::uint32_t wish = 0;
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    std::atomic_ref<std::uint32_t> heat(heat_[b]);
    const std::uint32_t now = heat.load(std::memory_order_relaxed);
    wish += on_disk(b) && !born_on_disk(b) && hot(now, mean);
    if (now > 1) heat.store(now - now / 4, std::memory_order_relaxed);
  }
  t_.tier.wish = std::min(wish, kWishes);
}

// What is to be moved now, pinned or with its frame taken. Blocks whose bytes are on disk already are let go of at once.
std::vector<TableCore::Move> TableCore::choose_moves() {
  std::vector<Move> moves;
  Tier& tier = t_.tier;
  IndexLock lock(*this);
  look_at_heat();
  SpaceHolders holders;
  std::vector<std::uint64_t> stalled;
  if (tier.leaving_count > 0) reclaim(&holders, &stalled);
  const std::uint32_t had = tier.free_count + tier.leaving_count;
  const std::uint32_t wanted = tier.wanted.exchange(0, std::memory_order_acq_rel);
  if (tier.error.load(std::memory_order_relaxed) != 0 && wanted == 0) return moves;  // the disk is tried again when a writer needs it
  const std::uint32_t aim = std::max(tier.least_free + tier.wish, wanted);
  std::uint32_t missing = had < aim ? aim - had : 0;
  if (missing > 0) {
    for (const std::uint32_t b : demotable()) {
      if (missing == 0 || moves.size() == kMovesAtOnce) break;
      std::uint32_t pid;
      if (pinned(b, &pid)) continue;
      const std::uint32_t f = places_[b];
      --missing;
      if (frames_[f].copied != 0) {
        std::atomic_ref(places_[b]).store(frames_[f].copied, std::memory_order_release);
        leave_frame(f);
        tier.blocks_dropped.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      const std::optional<std::uint32_t> pin = try_pin(b);
      if (!pin) break;
      frames_[f].rewritten = 0;
      moves.push_back({b, f, *pin, blocks_[b].generation.load(std::memory_order_relaxed), 0, true, packs() ? kPacked : kOnDisk});
      FAILPOINT(tier_chosen);
    }
  }
  while (tier.wish > 0 && tier.free_count > tier.least_free && moves.size() < kMovesAtOnce) {
    --tier.wish;
    std::uint32_t best = kNoRow, most = 0;
    for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
      const std::uint32_t heat = std::atomic_ref(heat_[b]).load(std::memory_order_relaxed);
      std::uint32_t pid;
      const bool moving = std::any_of(moves.begin(), moves.end(), [&](const Move& m) { return m.block == b; });
      if (on_disk(b) && !born_on_disk(b) && heat > most && !moving && blocks_[b].state.load(std::memory_order_relaxed) == kOpen && !pinned(b, &pid)) best = b, most = heat;
    }
    if (best == kNoRow) break;
    const std::optional<std::uint32_t> pin = try_pin(best);
    if (!pin) break;
    const std::uint32_t f = tier.free;
    tier.free = frames_[f].next;
    --tier.free_count;
    frames_[f] = {kFrameTaken, best, process_->slot(), process_->claim(), 0, kNoRow, 1, 0};
    FAILPOINT(tier_taken);
    moves.push_back({best, f, *pin, blocks_[best].generation.load(std::memory_order_relaxed), tier.rewritten.load(std::memory_order_relaxed), false, places_[best]});
  }
  return moves;
}

// 0 or errno. Blocks that are pinned keep their bytes. `confirms`: syncs in any case.
int TableCore::carry_out(std::vector<Move>& moves, bool confirms) {
  for (Move& move : moves) {
    std::byte* frame = data_ + move.frame * t_.block_bytes;
    const auto rows = static_cast<std::uint32_t>(blocks_[move.block].pub.load(std::memory_order_relaxed) & kCountMask);
    const bool packing = move.on_disk == kPacked;
    std::uint64_t bytes = t_.block_bytes;
    if (move.to_disk) {
      const int error = packing ? write_packed(move.block, rows, frame, &bytes) : disk_->write(move.block, plain_message(move.block, rows), frame);
      if (error != 0) return error;
      t_.tier.bytes_written.fetch_add(bytes, std::memory_order_relaxed);
      confirms = true;
    } else {
      move.failed = (packing ? unpack(move.block, frame) : disk_->read(move.block, 1, frame)) != 0;
    }
    FAILPOINT(tier_copied);
  }
  return confirms ? sync_disk() : 0;
}

void TableCore::settle(const std::vector<Move>& moves, int error, std::uint64_t took_ns) {
  Tier& tier = t_.tier;
  const std::uint32_t forks = process_->forks();
  try {
    IndexLock lock(*this);
    for (const Move& move : moves) {
      process_->unpin(move.pin, forks);
      const bool stays = blocks_[move.block].generation.load(std::memory_order_relaxed) == move.generation && blocks_[move.block].state.load(std::memory_order_relaxed) == kOpen;
      if (!move.to_disk) {
        if (error == 0 && !move.failed && stays && places_[move.block] == move.on_disk && tier.rewritten.load(std::memory_order_relaxed) == move.rewritten) {
          frames_[move.frame] = {kFrameUsed, move.block, 0, 0, 0, kNoRow, move.on_disk, 0};
          std::atomic_ref(places_[move.block]).store(move.frame, std::memory_order_release);
          tier.blocks_promoted.fetch_add(1, std::memory_order_relaxed);
        } else {
          free_frame(move.frame);
        }
      } else if (std::uint32_t pid; error == 0 && stays && places_[move.block] == move.frame && frames_[move.frame].rewritten == 0 && !pinned(move.block, &pid)) {
        // Not of a block that somebody else has pinned since it was chosen: who holds a view has the frame's address.
        std::atomic_ref(places_[move.block]).store(move.on_disk, std::memory_order_release);
        FAILPOINT(tier_placed);
        leave_frame(move.frame);
        tier.blocks_written.fetch_add(1, std::memory_order_relaxed);
      }
    }
    if (error != 0 || !moves.empty()) tier.error.store(static_cast<std::uint32_t>(error), std::memory_order_relaxed);
    if (error != 0) tier.failures.fetch_add(1, std::memory_order_release);
    tier.write_ns.fetch_add(took_ns, std::memory_order_relaxed);
  } catch (const Error&) {  // somebody is stopped with the lock: the blocks stay where they are
    for (const Move& move : moves) process_->unpin(move.pin, forks);
    throw;
  }
  announce(t_.space_waiting, t_.space_signal);
}

TableCore::Moves TableCore::move_blocks(std::uint64_t timeout_ns) {
  process_->check();
  Tier& tier = t_.tier;
  const std::uint32_t signal = tier.work_signal.load(std::memory_order_seq_cst);
  tier.work_waiting.store(1, std::memory_order_seq_cst);
  std::vector<Move> moves = choose_moves();
  const bool confirms = unconfirmed();
  if (moves.empty() && !confirms) {
    announce(t_.space_waiting, t_.space_signal);  // blocks may have been let go of
    futex_wait(&tier.work_signal, signal, timeout_ns);
    return Moves::idle;
  }
  const std::uint64_t began = now_ns();
  const int error = carry_out(moves, confirms);
  settle(moves, error, now_ns() - began);
  return error == 0 ? Moves::moved : Moves::failed;
}

}  // namespace conduit
