// Creating a table, attaching to one, and the operations on its index that are neither folding, eviction nor drawing.
#include "table.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "error.hpp"
#include "failpoints.hpp"
#include "queue.hpp"
#include "tier.hpp"

namespace conduit {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kPage = 4096;

std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit * unit; }

// Lays the parts of a table out after `at` in the control heap, page-aligned as a whole; fills the offsets of `t`.
void lay_out_heap(const TableSpec& spec, std::uint32_t max_processes, std::uint64_t at, Table& t) {
  const auto take = [&](std::uint64_t bytes) {
    const std::uint64_t offset = round_up(at, kAlign);
    at = offset + bytes;
    return offset;
  };
  const std::uint64_t slots = std::uint64_t{spec.n_blocks} * spec.rows_per_block;
  t.spec_bytes = spec.spec.size();
  t.spec_offset = take(spec.spec.size());
  t.n_columns = static_cast<std::uint32_t>(spec.columns.size());
  t.columns_offset = take(spec.columns.size() * sizeof(Column));
  t.blocks_offset = take(spec.n_blocks * sizeof(Block));
  t.n_ragged = static_cast<std::uint32_t>(std::count_if(spec.columns.begin(), spec.columns.end(), [](const Column& c) { return c.element_bytes > 0; }));
  t.spans_offset = t.n_ragged > 0 ? take(spec.n_blocks * sizeof(std::uint32_t)) : 0;
  t.starts_offset = t.n_ragged > 0 ? take(std::uint64_t{spec.n_blocks} * t.n_ragged * sizeof(std::uint64_t)) : 0;
  t.values_offset = spec.values_offset;
  std::uint64_t category_bytes = 0;
  for (const CategorySpec& of : spec.categories) category_bytes += Categories::bytes(of.max_values, of.max_bytes);
  t.categories_offset = category_bytes > 0 ? take(category_bytes) : 0;
  t.flags_offset = take(slots);
  t.prev_offset = spec.links ? take(slots * sizeof(std::uint32_t)) : 0;
  t.next_offset = spec.links ? take(slots * sizeof(std::uint32_t)) : 0;
  const bool periods = std::any_of(spec.views.begin(), spec.views.end(), [](const ViewSpec& view) { return view.period > 1; });
  t.steps_offset = periods ? take(slots * sizeof(std::uint32_t)) : 0;
  const bool long_windows = std::any_of(spec.views.begin(), spec.views.end(), [](const ViewSpec& view) {
    return view.steps_after >= kLongWindow || (view.steps_before >= kLongWindow && view.steps_before != kWholePast);
  });
  t.runs_offset = spec.links && long_windows ? take(slots) : 0;
  t.levels = SumTree::plan(slots, t.level_size);  // of each view: a queue has none
  t.extreme_levels = ExtremeTree::plan(slots, t.extreme_size);
  for (std::size_t v = 0; v < spec.views.size(); ++v) {
    View& view = t.views[v];
    const bool prioritized = spec.views[v].prioritized;
    view.raw_offset = prioritized ? take(slots * sizeof(float)) : 0;
    view.drawn_offset = spec.views[v].sampler == kWithoutReplacement ? take(slots * sizeof(std::uint32_t)) : 0;
    for (std::uint32_t k = 0; k < t.levels; ++k) view.level_offset[k] = take(t.level_size[k] * sizeof(double));
    for (std::uint32_t k = 0; prioritized && k < t.extreme_levels; ++k) view.extreme_offset[k] = take(t.extreme_size[k] * sizeof(Extremes));
  }
  t.active_offset = take(spec.n_blocks * sizeof(std::uint32_t));
  t.links_offset = take(spec.n_blocks * sizeof(BlockLink));
  t.victim_levels = spec.remover == kRemoveLeast ? VictimTree::plan(slots, t.victim_size) : 0;
  for (std::uint32_t k = 0; k < t.victim_levels; ++k) t.victim_offset[k] = take(t.victim_size[k] * sizeof(Victim));
  t.order_offset = spec.queue.groups > 0 ? take(spec.n_blocks * sizeof(std::uint32_t)) : 0;
  t.uses_offset = spec.counts_uses ? take(slots * sizeof(std::uint32_t)) : 0;
  t.readings_offset = take(max_processes * sizeof(Readings));
  t.tallies_offset = spec.limiter == kSampleToInsert ? take(max_processes * sizeof(Tally)) : 0;
  const bool prioritized_any = std::any_of(spec.views.begin(), spec.views.end(), [](const ViewSpec& view) { return view.prioritized; });
  t.undos = prioritized_any ? static_cast<std::uint32_t>(std::clamp<std::uint64_t>(slots / 64, 1'024, 262'144)) : 0;
  t.undo_offset = prioritized_any ? take(t.undos * sizeof(Undo)) : 0;
  t.queue_offset = spec.queue.groups > 0 ? take(QueueIndex::bytes(spec.queue.groups, spec.n_blocks, slots)) : 0;
  t.n_frames = spec.n_frames;
  const bool tiered = spec.n_frames < spec.n_blocks;
  t.places_offset = tiered ? take(spec.n_blocks * sizeof(std::uint32_t)) : 0;
  t.frames_offset = tiered ? take(spec.n_frames * sizeof(Frame)) : 0;
  t.heat_offset = tiered ? take(spec.n_blocks * sizeof(std::uint32_t)) : 0;
  t.end_offset = round_up(at, kPage);
}

void punch(int fd, std::uint64_t from, std::uint64_t to) {
  if (from < to) fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from), static_cast<off_t>(to - from));
}

void reserve(int fd, std::uint64_t offset, std::uint64_t bytes, const char* what) {
  if (bytes == 0) return;
  for (;;) {
    FAILPOINT(create_reserving);
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return;
    if (errno == EINTR) continue;
    const int reason = errno;
    punch(fd, offset, offset + bytes);
    fail(ErrorCode::memory, "%llu bytes of %s cannot be reserved: %s", static_cast<unsigned long long>(bytes), what, strerror(reason));
  }
}

// Where the published tables end in the two segments.
struct Ends {
  std::uint64_t control, data;
};

Ends ends_of(const Segments& segments) {
  const Header& h = segments.header();
  Ends ends{control_fixed_bytes(h.max_processes, h.max_tables), 0};
  for (std::uint32_t i = 0; i < h.tables.load(std::memory_order_acquire); ++i) {
    const Table& t = segments.table(i);
    ends.control = std::max(ends.control, t.end_offset);
    ends.data = std::max(ends.data, t.data_offset + t.data_bytes);
  }
  return ends;
}

VictimTree victims_of(const Segments& segments, const Table& t) {
  if (t.victim_levels == 0) return {};
  Victim* levels[kTreeLevels];
  for (std::uint32_t k = 0; k < t.victim_levels; ++k) levels[k] = segments.control_at<Victim>(t.victim_offset[k]);
  return {segments.control_at<Block>(t.blocks_offset), segments.control_at<float>(t.views[t.remover_view].raw_offset), t.n_blocks, levels, t.victim_size,
          t.victim_levels};
}

void fill(const TableSpec& spec, const Segments& segments, Table& t) {
  snprintf(t.name, sizeof t.name, "%s", spec.name.c_str());
  memcpy(segments.control_at<char>(t.spec_offset), spec.spec.data(), spec.spec.size());
  std::copy(spec.columns.begin(), spec.columns.end(), segments.control_at<Column>(t.columns_offset));
  std::uint64_t at = t.categories_offset;
  for (const CategorySpec& of : spec.categories) {
    segments.control_at<Column>(t.columns_offset)[of.column].categories = at;
    const Categories categories(segments.control_at<std::byte>(at));
    categories.create(of.max_values, of.max_bytes);
    categories.add(0, of.values);
    at += Categories::bytes(of.max_values, of.max_bytes);
  }
  t.block_bytes = spec.block_bytes;
  t.max_size = spec.max_size;
  t.n_blocks = spec.n_blocks;
  t.rows_per_block = spec.rows_per_block;
  t.links = spec.links;
  t.seed = spec.seed;
  t.limiter = spec.limiter;
  t.limits_inserts = spec.limits_inserts;
  t.settings[0] = spec.settings;
  t.remover = spec.remover;
  t.remover_view = spec.remover_view;
  t.open = t.retired = t.free = {kNoRow, kNoRow, 0};
  const BlockLinks links(segments.control_at<BlockLink>(t.links_offset));
  for (std::uint32_t b = 0; b < t.n_blocks; ++b) links.push(t.free, b);
  t.n_views = static_cast<std::uint32_t>(spec.views.size());
  for (std::uint32_t v = 0; v < t.n_views; ++v) {
    const ViewSpec& from = spec.views[v];
    View& view = t.views[v];
    // The views' draws are independent: the same stream and batch number mean other rows in each.
    view.seed = spec.seed + v * 0x9e3779b97f4a7c15ull;
    view.steps_before = from.steps_before;
    view.steps_after = from.steps_after;
    view.period = from.period;
    view.rules = from.rules;
    view.prioritized = from.prioritized;
    t.settings[0].views[v] = from.chances;
    view.sampler = from.sampler;
    view.stratified = from.stratified;
    view.beta_schedule = from.beta_schedule;
    view.epoch = 1;
    for (std::uint32_t k = 0; from.prioritized && k < t.extreme_levels; ++k) {
      std::fill_n(segments.control_at<Extremes>(view.extreme_offset[k]), t.extreme_size[k], Extremes{});
    }
  }
  if (t.places_offset != 0) fill_frames(segments, t);
  if (t.victim_levels > 0) victims_of(segments, t).refresh_all();
  if (t.queue_offset != 0) QueueIndex::fill(spec.queue, spec.n_blocks, spec.rows_per_block, t.queue_offset, segments);
  mutex_init(t.index);
}

// A creator that died in the lock published nothing: its half-written entry lies above `tables` and is written anew, and
// what it had reserved is given back.
void forget_unpublished(SharedMutex& mutex, const Segments& segments, int control_fd, int data_fd) {
  const Ends ends = ends_of(segments);
  punch(control_fd, ends.control, segments.header().control_bytes);
  punch(data_fd, ends.data, segments.header().data_bytes);
  mutex_repaired(mutex);
}

class DirectoryLock {
 public:
  DirectoryLock(Process& process, int control_fd, int data_fd) : mutex_(process.segments().header().directory) {
    const Segments& segments = process.segments();
    if (mutex_lock(mutex_, segments, process.slot(), lock_timeout_ns(), "table directory lock of store", segments.header().name)) {
      forget_unpublished(mutex_, segments, control_fd, data_fd);
    }
  }
  ~DirectoryLock() { mutex_unlock(mutex_); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace

std::uint64_t TableCore::control_bytes(const TableSpec& spec, std::uint32_t max_processes) {
  Table scratch{};
  lay_out_heap(spec, max_processes, 0, scratch);
  return scratch.end_offset + kPage;
}

void TableCore::tidy(Process& process, int control_fd, int data_fd) {
  process.check();
  SharedMutex& mutex = process.segments().header().directory;
  bool orphaned = false;
  if (!mutex_try(mutex, process.slot(), &orphaned)) return;
  if (orphaned) forget_unpublished(mutex, process.segments(), control_fd, data_fd);
  mutex_unlock(mutex);
}

std::uint32_t TableCore::create(Process& process, int control_fd, int data_fd, const TableSpec& spec) {
  process.check();
  Segments& segments = process.segments();
  Header& h = segments.header();
  DirectoryLock lock(process, control_fd, data_fd);
  const std::uint32_t index = h.tables.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < index; ++i) {
    const Table& other = segments.table(i);
    if (spec.name == other.name) fail(ErrorCode::name_taken, "table '%s' exists in store '%.63s': use store.table('%s')", other.name, h.name, other.name);
  }
  const auto [control_at, data_at] = ends_of(segments);
  if (index == h.max_tables) fail(ErrorCode::config, "store '%.63s' has its largest number of tables, %u", h.name, h.max_tables);
  Table& t = segments.table(index);
  memset(static_cast<void*>(&t), 0, sizeof t);
  lay_out_heap(spec, h.max_processes, control_at, t);
  t.data_offset = round_up(data_at, kPage);
  t.data_bytes = round_up(spec.block_bytes * spec.n_frames, kPage);
  if (t.end_offset > h.control_bytes || t.data_offset + t.data_bytes > h.data_bytes) {
    fail(ErrorCode::memory, "table '%s' needs %llu bytes of rows and %llu of index; store '%.63s' has %llu and %llu left. Raise host_memory or lower max_size",
         spec.name.c_str(), static_cast<unsigned long long>(t.data_bytes), static_cast<unsigned long long>(t.end_offset - control_at), h.name,
         static_cast<unsigned long long>(h.data_bytes - data_at), static_cast<unsigned long long>(h.control_bytes - control_at));
  }
  punch(control_fd, control_at, t.end_offset);  // whatever is there: the index starts from zeros, and fallocate keeps bytes
  reserve(control_fd, control_at, t.end_offset - control_at, "index");
  try {
    reserve(data_fd, t.data_offset, t.data_bytes, "rows");
  } catch (const Error&) {
    punch(control_fd, control_at, t.end_offset);
    throw;
  }
  FAILPOINT(create_reserved);
  fill(spec, segments, t);
  FAILPOINT(create_formatted);
  h.tables.store(index + 1, std::memory_order_release);
  FAILPOINT(create_published);
  return index;
}

TableCore::TableCore(std::shared_ptr<Process> process, std::uint32_t index)
    : process_(std::move(process)), index_(index), t_(process_->segments().table(index)) {
  const Segments& s = process_->segments();
  columns_ = s.control_at<Column>(t_.columns_offset);
  blocks_ = s.control_at<Block>(t_.blocks_offset);
  flags_ = s.control_at<std::uint8_t>(t_.flags_offset);
  prev_ = t_.links != 0 ? s.control_at<std::uint32_t>(t_.prev_offset) : nullptr;
  next_ = t_.links != 0 ? s.control_at<std::uint32_t>(t_.next_offset) : nullptr;
  steps_ = t_.steps_offset != 0 ? s.control_at<std::uint32_t>(t_.steps_offset) : nullptr;
  runs_ = t_.runs_offset != 0 ? s.control_at<std::uint8_t>(t_.runs_offset) : nullptr;
  uses_ = t_.uses_offset != 0 ? s.control_at<std::uint32_t>(t_.uses_offset) : nullptr;
  readings_ = s.control_at<Readings>(t_.readings_offset);
  tallies_ = t_.tallies_offset != 0 ? s.control_at<Tally>(t_.tallies_offset) : nullptr;
  active_ = s.control_at<std::uint32_t>(t_.active_offset);
  links_ = BlockLinks(s.control_at<BlockLink>(t_.links_offset));
  victims_ = victims_of(s, t_);
  order_ = t_.order_offset != 0 ? s.control_at<std::uint32_t>(t_.order_offset) : nullptr;
  data_ = s.data() + t_.data_offset;
  places_ = t_.places_offset != 0 ? s.control_at<std::uint32_t>(t_.places_offset) : nullptr;
  frames_ = s.control_at<Frame>(t_.frames_offset);
  heat_ = s.control_at<std::uint32_t>(t_.heat_offset);
  ragged_ = RaggedBlocks(s, t_, columns_);
  shift_ = kSlotBits + static_cast<unsigned>(std::bit_width(t_.rows_per_block - 1u));
  reciprocal_ = ((std::uint64_t{1} << shift_) + t_.rows_per_block - 1) / t_.rows_per_block;
  for (std::uint32_t v = 0; v < t_.n_views; ++v) views_.emplace_back(s, t_, v);
  if (t_.queue_offset != 0) queue_ = std::make_unique<QueueIndex>(*this);
}

TableCore::~TableCore() { delete cache_.load(); }

bool TableCore::live(std::uint64_t key, std::uint32_t* slot) const {
  *slot = static_cast<std::uint32_t>(key & kSlotMask);
  const std::uint32_t b = *slot / t_.rows_per_block, row = *slot % t_.rows_per_block;
  if (b >= t_.n_blocks) return false;
  const Block& block = blocks_[b];
  return block.generation.load(std::memory_order_relaxed) == key >> kSlotBits && block.state.load(std::memory_order_relaxed) == kOpen &&
         row >= block.evicted.load(std::memory_order_relaxed) && row < block.folded.load(std::memory_order_relaxed) && !used_up(*slot);
}

bool TableCore::folded_row(std::uint32_t slot) const {
  const Block& block = blocks_[block_of(slot)];
  const std::uint32_t row = slot % t_.rows_per_block;
  return block.state.load(std::memory_order_relaxed) == kOpen && row >= block.evicted.load(std::memory_order_relaxed) &&
         row < block.folded.load(std::memory_order_relaxed);
}

UpdateCount TableCore::update(std::uint32_t v, const std::uint64_t* keys, const float* priorities, std::uint64_t n) {
  process_->check();
  const std::uint64_t began = now_ns();
  ViewIndex& view = views_[v];
  UpdateCount count{0, 0};
  std::vector<LineRange> lines(std::min<std::uint64_t>(n, kJournalEntries));
  std::vector<std::uint32_t> slots(lines.size());
  std::vector<double> leaf(lines.size());
  {
    IndexLock lock(*this);
    FAILPOINT(update_locked);
    fold();  // rows that appends have pushed out are gone, whether or not anybody has drawn since
    for (std::uint64_t start = 0; start < n; start += kJournalEntries) {
      const std::uint64_t end = std::min<std::uint64_t>(n, start + kJournalEntries);
      std::uint32_t used = 0;
      for (std::uint64_t i = start; i < end; ++i) {
        std::uint32_t slot;
        const bool hit = live(keys[i], &slot);
        slots[i - start] = hit ? slot : kNoRow;
        if (hit) lines[used++] = {slot / kFanOut, slot / kFanOut};
      }
      count.applied += used;
      count.stale += end - start - used;
      view.masses(priorities + start, leaf.data(), static_cast<std::uint32_t>(end - start));
      journal(lines.data(), used);
      double* leaves = view.leaves();
      double change = 0.0;
      for (std::uint64_t i = start; i < end; ++i) {
        const std::uint32_t slot = slots[i - start];
        if (slot == kNoRow) continue;
        const float before = view.ready(slot) ? view.raw(slot) : -1.0f;
        view.change_raw(slot, priorities[i]);
        FAILPOINT(tree_raw_written);
        if (!view.ready(slot)) continue;  // its leaf waits for its successor
        const double mass = view.drawn(slot) ? 0.0 : leaf[i - start];
        change += std::abs(mass - leaves[slot]);
        leaves[slot] = mass;
        view.extreme_changed(slot, before);
        if (victims_.used() && v == t_.remover_view) victims_.changed(slot);
      }
      FAILPOINT(tree_leaves_written);
      view.refresh_sums(lines.data(), used);
      view.moved(change, end - start);
      journal_done();
    }
    FAILPOINT(update_done);
  }
  announce(t_.rows_waiting, t_.rows_signal);  // a table whose priorities were all zero can be drawn from now
  t_.counters.updated.fetch_add(count.applied, std::memory_order_relaxed);
  t_.counters.stale_updates.fetch_add(count.stale, std::memory_order_relaxed);
  const std::uint64_t ended = now_ns();
  t_.counters.update_ns.fetch_add(ended - began, std::memory_order_relaxed);
  span(Stage::update, n, began, ended);
  return count;
}

void TableCore::touch_all() const {
  for (const ViewIndex& view : views_) view.touched();
}

bool TableCore::drawable() const {
  return std::any_of(views_.begin(), views_.end(), [&](const ViewIndex& view) {
    return view.total() > 0.0 || (view.marked() && t_.live_steps > 0);  // the next epoch has rows
  });
}

std::uint64_t TableCore::steps() {
  process_->check();
  IndexLock lock(*this);
  fold();
  return t_.live_steps;
}

void TableCore::count_reading(std::uint64_t rows) const {
  Readings& mine = readings_[process_->slot()];
  if (const std::uint32_t claim = process_->claim(); mine.claim.load(std::memory_order_relaxed) != claim) {
    mine.batches.store(0, std::memory_order_relaxed);
    mine.rows.store(0, std::memory_order_relaxed);
    mine.claim.store(claim, std::memory_order_relaxed);
  }
  mine.batches.fetch_add(1, std::memory_order_relaxed);
  mine.rows.fetch_add(rows, std::memory_order_relaxed);
  mine.last_ns.store(now_ns(), std::memory_order_relaxed);
}

TableInfo TableCore::info(std::uint32_t v) {
  process_->check();
  const Counters& c = t_.counters;
  TableInfo info{};
  info.max_priority = 1.0f;
  {
    IndexLock lock(*this);
    seal_dead();
    fold();
    info.live_steps = t_.live_steps;
    if (v < n_views()) {
      info.total = views_[v].total();
      info.max_priority = views_[v].prioritized() ? views_[v].extremes().largest : 1.0f;
      info.epoch = views_[v].marked() ? views_[v].shared().epoch : 0;
    }
    if (t_.limiter == kSampleToInsert) return_reserved_by_dead();
    info.limiter = limiter_state();
    for (std::uint32_t i = 0; i < (slots() ? t_.active_count : t_.n_blocks); ++i) {
      const Block& block = blocks_[slots() ? active_[i] : i];
      if (block.state.load(std::memory_order_relaxed) != kOpen || (block.pub.load() & (kSealed | kReleased)) != 0) continue;
      ++info.open_writers;
      const std::uint32_t owner = process_->segments().process(block.owner).pid.load();
      const auto same = std::find_if(info.writers.begin(), info.writers.end(), [&](const WriterInfo& w) { return w.pid == owner; });
      if (same == info.writers.end()) info.writers.push_back({owner, 1});
      else ++same->blocks;
    }
  }
  // The rest is read without the lock: numbers for people, each right at some moment of the call.
  info.steps_folded = c.steps_folded.load();
  info.steps_evicted = c.steps_evicted.load();
  info.evicted_early = c.evicted_early.load();
  info.sampled_rows = c.sampled_rows.load();
  info.sampled_batches = c.sampled_batches.load();
  info.updated = c.updated.load();
  info.stale_updates = c.stale_updates.load();
  info.discarded_batches = c.discarded_batches.load();
  info.recoveries = c.recoveries.load();
  info.blocks_opened = c.blocks_opened.load();
  info.draw_ns = c.draw_ns.load();
  info.gather_ns = c.gather_ns.load();
  info.sample_wait_ns = c.sample_wait_ns.load();
  info.fold_ns = c.fold_ns.load();
  info.append_ns = c.append_ns.load();
  info.append_wait_ns = c.append_wait_ns.load();
  info.append_calls = c.append_calls.load();
  info.update_ns = c.update_ns.load();
  info.used_up = c.used_up.load();
  info.limited_append_ns = c.limited_append_ns.load();
  info.limited_sample_ns = c.limited_sample_ns.load();
  for (std::uint32_t b = 0; b < t_.n_blocks; ++b) {
    const std::uint32_t state = blocks_[b].state.load();
    std::uint32_t pid;
    info.blocks_open += state == kOpen || state == kAnnexed;
    info.blocks_free += state == kFree;
    info.blocks_retired += state == kRetired;
    info.blocks_pinned += !slots() && pinned(b, &pid);
  }
  const std::uint64_t now = now_ns();
  const Header& header = process_->segments().header();
  for (std::uint32_t i = 0; i < header.processes_used.load(std::memory_order_acquire); ++i) {
    const Readings& r = readings_[i];
    const std::uint32_t claim = r.claim.load(), pid = process_->segments().process(i).pid.load();
    if (r.batches.load() == 0 || !process_->alive(i, claim)) continue;
    info.readers.push_back({pid, r.batches.load(), r.rows.load(), now - std::min(now, r.last_ns.load())});
  }
  for (std::uint32_t slot = 0; slot < t_.n_blocks * t_.rows_per_block; ++slot) info.ready_rows += v < n_views() && views_[v].ready(slot);
  return info;
}

std::uint32_t TableCore::pin_block(std::uint32_t b, std::uint32_t* first, std::uint32_t* last, std::uint64_t* generation) {
  process_->check();
  if (slots()) fail(ErrorCode::config, "table '%s' keeps rows one by one: it has no blocks to look into without a copy. Use table.rows(keys)", t_.name);
  IndexLock lock(*this);
  FAILPOINT(pin_locked);
  fold();
  const bool open = b < t_.n_blocks && blocks_[b].state.load() == kOpen;
  *first = open ? blocks_[b].evicted.load() : 0;
  *last = open ? blocks_[b].folded.load() : 0;
  if (*first >= *last) fail(ErrorCode::stale, "block %u of table '%s' holds no live row: table.blocks() lists those that do", b, t_.name);
  *generation = blocks_[b].generation.load();
  const std::uint32_t entry = process_->pin(index_, b);
  FAILPOINT(pin_written);
  return entry;
}

std::vector<std::uint32_t> TableCore::live_blocks() {
  process_->check();
  IndexLock lock(*this);
  fold();
  std::vector<std::uint32_t> live;
  each_open_block(false, [&](std::uint32_t b) {
    if (blocks_[b].evicted.load() < blocks_[b].folded.load()) live.push_back(b);
    return true;
  });
  return live;
}

std::vector<float> TableCore::priorities(std::uint32_t v, const std::uint64_t* keys, std::uint64_t n) {
  process_->check();
  std::vector<float> found(n, std::numeric_limits<float>::quiet_NaN());
  IndexLock lock(*this);
  fold();
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint32_t slot;
    if (live(keys[i], &slot)) found[i] = views_[v].prioritized() ? views_[v].raw(slot) : 1.0f;
  }
  return found;
}

void TableCore::links(const std::uint64_t* keys, std::uint64_t n, std::vector<std::uint8_t>* live, std::vector<std::uint8_t>* flags, std::vector<std::uint64_t>* next,
                      std::vector<std::uint32_t>* steps) {
  process_->check();
  live->assign(n, 0);
  flags->assign(n, 0);
  next->assign(n, kNoKey);
  steps->assign(steps_ != nullptr ? n : 0, 0);
  IndexLock lock(*this);
  fold();
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint32_t slot;
    if (!this->live(keys[i], &slot)) continue;
    (*live)[i] = 1;
    (*flags)[i] = flag(slot);
    if (steps_ != nullptr) (*steps)[i] = step(slot);
    const std::uint32_t after = t_.links != 0 ? this->next(slot) : kNoRow;
    if (after != kNoRow) (*next)[i] = key_of(after);
  }
}

}  // namespace conduit
