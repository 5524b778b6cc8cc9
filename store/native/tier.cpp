// Blocks of tables that may outgrow memory: which lie in host memory and which on disk, and how they move.
//
// A block goes to disk when frames run short: it is pinned, written and synced, without the lock; only then its place changes
// and its frame comes free. So memory keeps what the disk has not confirmed. A block comes back when its rows are read much
// more often than those of a block in memory; its bytes stay on disk, and to let go of it again costs nothing.
#include "tier.hpp"

#include <string.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "cut.hpp"
#include "disk_file.hpp"
#include "error.hpp"
#include "failpoints.hpp"
#include "queue.hpp"
#include "staging.hpp"
#include "table.hpp"

namespace conduit {
namespace {

constexpr std::size_t kMovesAtOnce = 8;             // blocks that are written before one sync
constexpr std::uint32_t kMostFree = 64;             // frames kept free for writers
#ifdef CONDUIT_FAILPOINTS
constexpr std::uint64_t kLookEvery = 256;
#else
constexpr std::uint64_t kLookEvery = 8192;          // rows read from disk between two looks at heat
#endif
constexpr std::uint64_t kHotter = 32;               // rows by which chance alone may make a block look hot
constexpr std::uint32_t kWishes = 4;

bool hot(std::uint64_t heat, std::uint64_t mean) { return heat > 2 * mean + kHotter; }

}  // namespace

void fill_frames(const Segments& segments, Table& t) {
  std::fill_n(segments.control_at<std::uint32_t>(t.places_offset), t.n_blocks, kNowhere);
  auto* frames = segments.control_at<Frame>(t.frames_offset);
  for (std::uint32_t f = 0; f < t.n_frames; ++f) frames[f] = {kFrameFree, kNoRow, 0, 0, 0, f + 1 < t.n_frames ? f + 1 : kNoRow, 0, 0};
  t.tier.free = 0;
  t.tier.free_count = t.n_frames;
  t.tier.leaving = kNoRow;
  t.tier.least_free = std::clamp<std::uint32_t>(t.n_frames / 16, 2, kMostFree);
}

std::byte* TableCore::placed(std::uint32_t block) const {
  // acquire: what was written to the place comes before its name
  const std::uint32_t place = std::atomic_ref(places_[block]).load(std::memory_order_acquire);
  if (place < t_.n_frames) return data_ + place * t_.block_bytes;
  if (place == kPacked) return Unpacked::address(*this, block);
  // Nowhere: only seen by a reader that was expelled, whose batch is thrown away.
  return const_cast<std::byte*>(disk_->body(block));
}

void TableCore::free_frame(std::uint32_t f) {
  frames_[f] = {kFrameFree, kNoRow, 0, 0, 0, t_.tier.free, 0, 0};
  t_.tier.free = f;
  ++t_.tier.free_count;
}

// Gives a block that is being opened a frame. False: there is none.
bool TableCore::take_frame(std::uint32_t block) {
  const std::uint32_t f = t_.tier.free;
  if (f == kNoRow) return false;
  t_.tier.free = frames_[f].next;
  --t_.tier.free_count;
  frames_[f] = {kFrameUsed, block, 0, 0, 0, kNoRow, 0, 0};
  std::atomic_ref(heat_[block]).store(0, std::memory_order_relaxed);
  std::atomic_ref(places_[block]).store(f, std::memory_order_release);
  FAILPOINT(tier_given);
  return true;
}

// Of a block that is being opened, and has its span.
void TableCore::give_place(std::uint32_t block) {
  if (!born_on_disk(block)) {
    take_frame(block);
    return;
  }
  std::atomic_ref(heat_[block]).store(0, std::memory_order_relaxed);
  std::atomic_ref(places_[block]).store(kOnDisk, std::memory_order_release);
}

// Of a block that comes free: nobody reads it any more.
void TableCore::free_place(std::uint32_t block) {
  const std::uint32_t place = places_[block];
  std::atomic_ref(places_[block]).store(kNowhere, std::memory_order_release);
  if (place < t_.n_frames) free_frame(place);
}

// Of a block that now lies on disk: readers that entered until now may still be copying from the frame.
void TableCore::leave_frame(std::uint32_t f) {
  const std::uint64_t epoch = process_->segments().header().epoch.fetch_add(1, std::memory_order_acq_rel) & kEpochMask;
  frames_[f] = {kFrameLeaving, kNoRow, 0, 0, epoch, t_.tier.leaving, 0, 0};
  t_.tier.leaving = f;
  ++t_.tier.leaving_count;
}

bool TableCore::reclaim_frames(std::uint64_t oldest) {
  const std::uint32_t before = t_.tier.free_count;
  std::uint32_t* link = &t_.tier.leaving;
  while (*link != kNoRow) {
    const std::uint32_t f = *link;
    if (frames_[f].epoch >= oldest) {
      link = &frames_[f].next;
      continue;
    }
    *link = frames_[f].next;
    --t_.tier.leaving_count;
    free_frame(f);
  }
  for (std::uint32_t f = 0; f < t_.n_frames && t_.tier.free_count == 0; ++f) {
    if (frames_[f].state == kFrameTaken && !process_->alive(frames_[f].process, frames_[f].claim)) free_frame(f);
  }
  return t_.tier.free_count > before;
}

// The last holder of the lock died: places of blocks that are not free are the truth.
void TableCore::recover_frames() {
  std::vector<std::uint32_t> owner(t_.n_frames, kNoRow);
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    const std::uint32_t place = places_[b];
    if (blocks_[b].state.load(std::memory_order_relaxed) == kFree) std::atomic_ref(places_[b]).store(kNowhere, std::memory_order_release);
    else if (place < t_.n_frames) owner[place] = b;
  }
  t_.tier.free = t_.tier.leaving = kNoRow;
  t_.tier.free_count = t_.tier.leaving_count = 0;
  for (std::uint32_t f = 0; f < t_.n_frames; ++f) {
    Frame& frame = frames_[f];
    if (owner[f] != kNoRow) {
      // Whether its bytes are on disk too is not known of one that was just given: then they are written again.
      if (frame.state != kFrameUsed || frame.block != owner[f]) frame.copied = 0;
      frame.state = kFrameUsed;
      frame.block = owner[f];
    } else if (frame.state != kFrameTaken) {
      leave_frame(f);  // it may have been left, or been free: either way nobody reads it after this epoch
    }
  }
}

// By a writer that waits for so many frames.
void TableCore::ask_movers(std::uint32_t frames, SpaceHolders* holders) {
  holders->in_memory = t_.n_frames;
  t_.tier.wanted.store(std::max(frames, t_.tier.wanted.load(std::memory_order_relaxed)), std::memory_order_seq_cst);
  wake_movers();
}

// After frames have been taken.
void TableCore::tell_movers() {
  if (tiered() && t_.tier.free_count + t_.tier.leaving_count < t_.tier.least_free) wake_movers();
}

void TableCore::wake_movers() { announce(t_.tier.work_waiting, t_.tier.work_signal); }

void TableCore::warm(const std::uint32_t* slots, std::uint32_t n) const {
  std::uint64_t cold = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t b = block_of(slots[i]);
    std::atomic_ref(heat_[b]).fetch_add(1, std::memory_order_relaxed);
    cold += on_disk(b);
  }
  if (cold == 0) return;
  const std::uint64_t before = t_.tier.rows_from_disk.fetch_add(cold, std::memory_order_relaxed);
  if (before / kLookEvery != (before + cold) / kLookEvery) announce(t_.tier.work_waiting, t_.tier.work_signal);
}

std::uint32_t TableCore::keep_in_place(std::uint32_t block) {
  IndexLock lock(*this);
  return process_->pin(index_, block);
}

void TableCore::fail_disk() const {
  fail(ErrorCode::disk, "rows of table '%s' cannot be reached on disk, file %s. What is in memory stays", t_.name, disk_->path().c_str());
}

std::shared_ptr<Staging> TableCore::copy_block(std::uint32_t block) const {
  Target target;
  std::byte* to = target.room(ragged_.span(block) * t_.block_bytes);
  if (!on_disk(block)) memcpy(to, block_data(block), t_.block_bytes);
  else if ((packed(block) ? unpack(block, to) : disk_->read(block, ragged_.span(block), to)) != 0) fail_disk();
  return target.staging;
}

// The Arrow message of a block with so many rows, which stays in place, and whose body has so many bytes, in these buffers if it is compressed.
std::vector<std::byte> TableCore::message_of(const BlockMessage& all, std::uint32_t block, std::uint32_t rows, std::uint64_t bytes, const std::vector<std::pair<std::uint64_t, std::uint64_t>>* buffers) const {
  std::vector<std::byte> text = all.text;
  std::vector<std::uint64_t> elements(ragged_.n());
  reach_disk([&] {
    for (std::uint32_t v = 0; v < ragged_.n(); ++v) elements[v] = static_cast<std::uint64_t>(RaggedBlocks::ends(block_data(block), ragged_.column(v))[rows]);
  });
  for (const BlockMessage::Number& number : all.numbers) {
    const std::uint64_t value = number.what == BlockMessage::rows    ? rows
                                : number.what == BlockMessage::bytes ? bytes
                                : number.what == BlockMessage::start ? ragged_.starts(block)[number.column]
                                : number.what == BlockMessage::offset ? (*buffers)[number.column].first
                                : number.what == BlockMessage::length ? (*buffers)[number.column].second
                                                                     : elements[number.column];
    const std::uint64_t put = value * number.factor;
    memcpy(text.data() + number.at, &put, sizeof put);
  }
  return text;
}

void TableCore::reserve_run(std::uint32_t block) const {
  const int error = disk_->reserve(block, ragged_.span(block));
  if (error == 0) return;
  fail(ErrorCode::disk, "no room on disk for a row of table '%s' that is larger than a block and takes %u of them, file %s: %s. Nothing of it was appended; make room there "
       "and append again", t_.name, ragged_.span(block), disk_->path().c_str(), strerror(error));
}

void TableCore::confirm_run(std::uint32_t block, std::uint32_t rows) const {
  int error = disk_->write(block, plain_message(block, rows), nullptr);
  if (error == 0) error = disk_->sync();
  FAILPOINT(tier_confirmed);
  if (error != 0) fail(ErrorCode::disk, "a row of table '%s' cannot be written to disk, file %s: %s. It was not appended", t_.name, disk_->path().c_str(), strerror(error));
}

// --- restore

void TableCore::lay_out(const std::vector<SavedBlock>& blocks) {
  if (!tiered()) return;
  IndexLock lock(*this);
  std::uint32_t room = t_.n_frames > t_.tier.least_free ? t_.n_frames - t_.tier.least_free : 1;
  const auto place = [&](const SavedBlock& block, bool in_memory) {
    if (block.birth == 0 || block.block >= t_.n_blocks || places_[block.block] != kNowhere) return;
    if (in_memory) {
      if (!take_frame(block.block)) fail(ErrorCode::memory, "table '%s' has more half-filled blocks than memory has room for, %u", t_.name, t_.n_frames);
      room -= room > 0;
    } else {
      std::atomic_ref(places_[block.block]).store(kOnDisk, std::memory_order_release);
    }
  };
  for (const SavedBlock& block : blocks) {
    if (block.sealed == 0) place(block, true);  // new writers go on there
  }
  const auto where = [&](const SavedBlock& block) { place(block, room > 0 && block.block < t_.n_blocks && !born_on_disk(block.block)); };
  if (queue_) std::for_each(blocks.begin(), blocks.end(), where);  // what is delivered next
  else std::for_each(blocks.rbegin(), blocks.rend(), where);
}

Extent TableCore::extent(std::uint64_t offset, std::uint64_t bytes, std::uint64_t to, int data_fd) const {
  if (!tiered()) return {offset, bytes, t_.data_offset + to, data_fd};
  auto block = static_cast<std::uint32_t>(to / t_.block_bytes);
  if (bytes == 0 || block >= t_.n_blocks) return {offset, 0, 0, data_fd};
  while (block > 0 && places_[block] == kNowhere) --block;  // the first of a run, if it is one
  const std::uint64_t within = to - block * t_.block_bytes, room = ragged_.span(block) * t_.block_bytes;
  const std::uint32_t place = places_[block];
  if (place == kNowhere || within > room || bytes > room - within) fail(ErrorCode::damaged, "rows of table '%s' lie in no block of it", t_.name);
  if (place == kOnDisk) return {offset, bytes, disk_->body_at(block) + within, disk_->fd()};
  return {offset, bytes, t_.data_offset + place * t_.block_bytes + within, data_fd};
}

void TableCore::laid_out(const std::vector<SavedBlock>& blocks) {
  if (!tiered()) return;
  int error = 0;
  for (const SavedBlock& block : blocks) {
    if (error != 0 || block.birth == 0 || block.block >= t_.n_blocks || block.count > t_.rows_per_block || !on_disk(block.block)) continue;
    error = disk_->write(block.block, plain_message(block.block, block.count), nullptr);
  }
  if (error == 0) error = disk_->sync();
  if (error != 0) fail(ErrorCode::disk, "file %s cannot be written: %s", disk_->path().c_str(), strerror(error));
}

// --- movers

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

// Numbers of the block are rewritten, under the lock: see Tier.
void TableCore::note_rewritten(std::uint32_t block) {
  const std::uint32_t place = places_[block];
  if (place == kOnDisk) {
    ++t_.tier.rewritten;
  } else {
    frames_[place].copied = 0;
    frames_[place].rewritten = 1;
  }
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
    moves.push_back({best, f, *pin, blocks_[best].generation.load(std::memory_order_relaxed), tier.rewritten, false, places_[best]});
  }
  return moves;
}

// 0 or errno. Blocks that are pinned keep their bytes.
int TableCore::carry_out(const std::vector<Move>& moves) {
  bool wrote = false;
  for (const Move& move : moves) {
    std::byte* frame = data_ + move.frame * t_.block_bytes;
    const auto rows = static_cast<std::uint32_t>(blocks_[move.block].pub.load(std::memory_order_relaxed) & kCountMask);
    const bool packing = move.on_disk == kPacked;
    std::uint64_t bytes = t_.block_bytes;
    const int error = !move.to_disk ? (packing ? unpack(move.block, frame) : disk_->read(move.block, 1, frame))
                      : packing     ? write_packed(move.block, rows, frame, &bytes)
                                    : disk_->write(move.block, plain_message(move.block, rows), frame);
    if (error != 0) return error;
    if (move.to_disk) t_.tier.bytes_written.fetch_add(bytes, std::memory_order_relaxed);
    wrote |= move.to_disk;
    FAILPOINT(tier_copied);
  }
  return wrote ? disk_->sync() : 0;
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
        if (error == 0 && stays && places_[move.block] == move.on_disk && tier.rewritten == move.rewritten) {
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
    tier.error.store(static_cast<std::uint32_t>(error), std::memory_order_relaxed);
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
  const std::vector<Move> moves = choose_moves();
  if (moves.empty()) {
    announce(t_.space_waiting, t_.space_signal);  // blocks may have been let go of
    futex_wait(&tier.work_signal, signal, timeout_ns);
    return Moves::idle;
  }
  const std::uint64_t began = now_ns();
  const int error = carry_out(moves);
  settle(moves, error, now_ns() - began);
  return error == 0 ? Moves::moved : Moves::failed;
}

TierInfo TableCore::tier_info() {
  const Tier& tier = t_.tier;
  TierInfo info{};
  info.frames = t_.n_frames;
  {
    IndexLock lock(*this);
    info.frames_free = tier.free_count + tier.leaving_count;
  }
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) info.blocks_on_disk += on_disk(b);
  info.rows_from_disk = tier.rows_from_disk.load();
  info.blocks_written = tier.blocks_written.load();
  info.blocks_dropped = tier.blocks_dropped.load();
  info.blocks_promoted = tier.blocks_promoted.load();
  info.bytes_written = tier.bytes_written.load();
  info.write_ns = tier.write_ns.load();
  info.failures = tier.failures.load();
  info.error = tier.error.load();
  return info;
}

void TableCore::wrong_frames(const std::function<void(bool, const std::string&)>& expect) const {
  std::vector<std::uint32_t> owners(t_.n_frames, 0);
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    const std::uint32_t state = blocks_[b].state.load(), place = places_[b];
    const std::string name = "block " + std::to_string(b);
    const bool used = state == kOpen || state == kRetired;
    expect(used != (place == kNowhere), name + (used ? " is in use and nowhere" : " has no bytes of its own and has a place"));
    const std::uint64_t pub = blocks_[b].pub.load();
    expect(!on_disk(b) || !used || born_on_disk(b) || (pub & kSealed) != 0, name + " takes rows and is on disk");
    expect(!used || place == kOnDisk || !born_on_disk(b), name + " begins a run and is in memory");
    if (place >= t_.n_frames) continue;
    ++owners[place];
    expect(frames_[place].state == kFrameUsed && frames_[place].block == b, name + " lies in frame " + std::to_string(place) + ", which says otherwise");
  }
  std::uint32_t free = 0, leaving = 0, used = 0, taken = 0;
  for (std::uint32_t f = 0; f < t_.n_frames; ++f) {
    expect(owners[f] == (frames_[f].state == kFrameUsed ? 1u : 0u), "frame " + std::to_string(f) + " holds " + std::to_string(owners[f]) + " blocks");
    used += frames_[f].state == kFrameUsed;
    taken += frames_[f].state == kFrameTaken;
  }
  for (std::uint32_t f = t_.tier.free; f != kNoRow && free <= t_.n_frames; f = frames_[f].next) ++free;
  for (std::uint32_t f = t_.tier.leaving; f != kNoRow && leaving <= t_.n_frames; f = frames_[f].next) ++leaving;
  expect(free == t_.tier.free_count && leaving == t_.tier.leaving_count, "lists of frames are counted wrong");
  expect(free + leaving + used + taken == t_.n_frames, "a frame is in no list");
}

}  // namespace conduit
