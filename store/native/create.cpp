// Creating a table: where its parts lie in the segments, their memory, and what they begin with.
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
#include "table.hpp"
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
  t.sums_offset = tiered ? take(spec.n_blocks * sizeof(std::uint32_t)) : 0;
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

}  // namespace conduit
