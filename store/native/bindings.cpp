// The only file that knows Python. Arguments arrive checked for dtype and shape by conduit_store; sizes are checked again
// here, because a wrong one would corrupt shared memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "scalars.hpp"
#include "disk_writer.hpp"
#include "dlpack.hpp"
#include "error.hpp"
#include "failpoints.hpp"
#include "loader.hpp"
#include "pages.hpp"
#include "row_reader.hpp"
#include "sampler.hpp"
#include "staging.hpp"
#include "writer.hpp"

#ifndef CONDUIT_MODULE_NAME
#define CONDUIT_MODULE_NAME _native
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace conduit {
namespace {

// Waits come back this often: to let Ctrl-C through, and because a writer killed between publishing and waking wakes nobody.
constexpr std::uint64_t kSliceNs = 50'000'000;

class Deadline {
 public:
  explicit Deadline(std::optional<double> seconds)
      : at_(seconds ? now_ns() + static_cast<std::uint64_t>(std::min(std::max(*seconds, 0.0), 1e9) * 1e9) : ~std::uint64_t{0}) {}
  std::uint64_t left() const {
    const std::uint64_t now = now_ns();
    return at_ > now ? at_ - now : 0;
  }
  // Time of the next wait; 0 when the deadline has passed. Raises what a signal handler raised (Ctrl-C).
  std::uint64_t slice() const {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return std::min(left(), kSliceNs);
  }

 private:
  std::uint64_t at_;
};

// A contiguous buffer of exactly `bytes` bytes, held for the duration of a call.
class Bytes {
 public:
  Bytes(nb::handle object, std::uint64_t bytes, const char* what) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    if (static_cast<std::uint64_t>(view_.len) != bytes) {
      const auto got = static_cast<long long>(view_.len);
      PyBuffer_Release(&view_);
      fail(ErrorCode::config, "%s has %lld bytes, %llu are needed", what, got, static_cast<unsigned long long>(bytes));
    }
  }
  // Of any size.
  Bytes(nb::handle object, const char*) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  std::uint64_t size() const { return static_cast<std::uint64_t>(view_.len); }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

// n rows that vary in length: (buffer of all elements, int64 offsets (n + 1)), or a list of n buffers.
std::vector<Cell> read_cells(nb::handle given, std::uint32_t n, std::uint64_t element_bytes, std::vector<std::unique_ptr<Bytes>>& held) {
  std::vector<Cell> cells(n);
  if (nb::isinstance<nb::tuple>(given)) {
    const Bytes& elements = *held.emplace_back(std::make_unique<Bytes>(given[0], "elements"));
    const auto* offsets = held.emplace_back(std::make_unique<Bytes>(given[1], (std::uint64_t{n} + 1) * sizeof(std::int64_t), "offsets"))->as<std::int64_t>();
    const auto all = static_cast<std::int64_t>(elements.size() / element_bytes);
    for (std::uint32_t i = 0; i < n; ++i) {
      if (offsets[i] < 0 || offsets[i] > offsets[i + 1] || offsets[i + 1] > all) {
        fail(ErrorCode::config, "offsets [%lld, %lld) of row %u are none of %lld elements", static_cast<long long>(offsets[i]), static_cast<long long>(offsets[i + 1]), i, static_cast<long long>(all));
      }
      cells[i] = {elements.as<std::byte>() + static_cast<std::uint64_t>(offsets[i]) * element_bytes, static_cast<std::uint64_t>(offsets[i + 1] - offsets[i])};
    }
    return cells;
  }
  if (nb::len(given) != n) fail(ErrorCode::config, "%zu rows in a list, %u are needed", nb::len(given), n);
  for (std::uint32_t i = 0; i < n; ++i) {
    const Bytes& row = *held.emplace_back(std::make_unique<Bytes>(given[i], "row"));
    if (row.size() % element_bytes != 0) fail(ErrorCode::config, "row %u has %llu bytes, its elements %llu each", i, static_cast<unsigned long long>(row.size()), static_cast<unsigned long long>(element_bytes));
    cells[i] = {row.as<std::byte>(), row.size() / element_bytes};
  }
  return cells;
}

// A zero-copy view's hold on its block; also keeps the segments mapped.
class Pin {
 public:
  // `disk`: of a table that has one, whose mapping the view may be of.
  Pin(std::shared_ptr<Process> process, std::shared_ptr<DiskFile> disk, std::uint32_t entry) : process_(std::move(process)), disk_(std::move(disk)), entry_(entry), forks_(process_->forks()) {}
  // Of a block that lies compressed.
  void unpack_from(std::shared_ptr<TableCore> core, std::uint32_t block) {
    core_ = std::move(core);
    block_ = block;
  }
  // A copy of it. Throws disk.
  std::shared_ptr<Staging> unpacked() const {
    if (core_ == nullptr) fail(ErrorCode::config, "this block has an address");
    return core_->copy_block(block_);
  }
  ~Pin() { process_->unpin(entry_, forks_); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  std::shared_ptr<Process> process_;
  std::shared_ptr<DiskFile> disk_;
  std::shared_ptr<TableCore> core_;
  std::uint32_t entry_, forks_, block_ = kNoRow;
};

// Handles let go of the process slot when the store is closed; a call in flight keeps its own reference until it returns.
// `get` runs with the interpreter's lock held, which is what guards `held`.
template <class T>
class Handle {
 public:
  Handle(std::shared_ptr<T> object, std::string store) : held_(std::move(object)), store_(std::move(store)) {}
  std::shared_ptr<T> get() const {
    if (held_ == nullptr) fail(ErrorCode::closed, "store '%s' is closed in this process: attach again", store_.c_str());
    return held_;
  }
  bool closed() const { return held_ == nullptr; }
  void release() { held_.reset(); }
  const std::string& store() const { return store_; }
  // Calls f(object) without the interpreter's lock.
  template <class F>
  auto unlocked(F f) const {
    const std::shared_ptr<T> object = get();
    nb::gil_scoped_release free;
    return f(*object);
  }

 private:
  std::shared_ptr<T> held_;
  std::string store_;
};

std::string store_name(const Process& process) { return process.segments().header().name; }

class PyAttachment : public Handle<Process> {
 public:
  PyAttachment(int control_fd, int data_fd, bool writable)
      : PyAttachment(std::make_shared<Process>(Segments::map(control_fd, data_fd, writable), control_fd)) {}

  void close() {
    if (closed()) return;
    get()->close();  // calls that are waiting return
    release();
  }
  std::vector<std::string> tables() const {
    const auto process = get();
    process->check();
    std::vector<std::string> names;
    const std::uint32_t n = process->segments().header().tables.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < n; ++i) names.emplace_back(process->segments().table(i).name);
    return names;
  }
  std::vector<std::tuple<std::uint32_t, std::uint32_t, bool>> processes() const {
    const auto process = get();
    std::vector<std::tuple<std::uint32_t, std::uint32_t, bool>> result;
    const Segments& s = process->segments();
    for (std::uint32_t i = 0; i < s.header().processes_used.load(); ++i) {
      const ProcessSlot& p = s.process(i);
      result.emplace_back(i, p.pid.load(), p.attached.load() != 0 && process->alive(i, p.claim.load()));
    }
    return result;
  }

 private:
  explicit PyAttachment(std::shared_ptr<Process> process) : Handle(process, store_name(*process)) {}
};

TableSpec make_spec(const std::string& name, nb::bytes spec, const std::vector<std::uint64_t>& offsets,
                    const std::vector<std::uint64_t>& row_bytes, const std::vector<std::uint64_t>& element_bytes, const std::vector<std::uint64_t>& mean_bytes,
                    std::uint64_t values_offset, std::uint64_t max_size, std::uint32_t rows_per_block, std::uint32_t n_blocks, std::uint32_t n_frames,
                    std::uint64_t block_bytes, const std::vector<ViewSpec>& views, const Settings& settings, std::uint32_t limiter,
                    bool limits_inserts, bool counts_uses, std::uint64_t seed, std::uint32_t remover, std::uint32_t remover_view) {
  TableSpec s;
  s.name = name;
  s.spec.assign(spec.c_str(), spec.size());
  if (name.size() >= kNameBytes) fail(ErrorCode::config, "table name of %zu bytes is longer than %u", name.size(), kNameBytes - 1);
  if (std::uint64_t{rows_per_block} * n_blocks >= kSlotMask) fail(ErrorCode::config, "table '%s' needs %llu row slots, the limit is %llu", name.c_str(),
      static_cast<unsigned long long>(std::uint64_t{rows_per_block} * n_blocks), static_cast<unsigned long long>(kSlotMask));
  std::uint64_t ragged = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    s.columns.push_back({offsets[i], row_bytes[i], element_bytes[i], mean_bytes[i], element_bytes[i] > 0 ? ragged++ : 0});
  }
  s.values_offset = values_offset;
  s.max_size = max_size;
  s.rows_per_block = rows_per_block;
  s.n_blocks = n_blocks;
  if (n_frames < 1 || n_frames > n_blocks) fail(ErrorCode::config, "table '%s' of %u blocks has memory for %u", name.c_str(), n_blocks, n_frames);
  s.n_frames = n_frames;
  s.block_bytes = block_bytes;
  if (views.empty() || views.size() > kMaxViews) fail(ErrorCode::config, "table '%s' has %zu windows: 1 to %u", name.c_str(), views.size(), kMaxViews);
  s.views = views;
  s.links = std::any_of(views.begin(), views.end(), [](const ViewSpec& view) { return view.steps_after > 0 || view.steps_before > 0 || view.period > 1 || view.rules != 0; });
  s.settings = settings;
  if (limiter > kQueueCapacity) fail(ErrorCode::config, "unknown limiter %u", limiter);
  s.limiter = static_cast<LimiterKind>(limiter);
  s.limits_inserts = limits_inserts;
  s.counts_uses = counts_uses;
  s.seed = seed;
  if (remover > kRemoveLeast) fail(ErrorCode::config, "unknown remover %u", remover);
  s.remover = static_cast<RemoverKind>(remover);
  s.remover_view = remover_view;
  if (ragged > 0 && remover != kRemoveOldest) fail(ErrorCode::config, "table '%s' has columns whose rows vary in length: they go by blocks", name.c_str());
  if (n_frames < n_blocks && remover != kRemoveOldest) fail(ErrorCode::config, "table '%s' goes by blocks where some of them lie on disk", name.c_str());
  if (remover != kRemoveOldest && (rows_per_block != 1 || s.links)) fail(ErrorCode::config, "table '%s' removes rows one by one: its blocks have one row, without episodes", name.c_str());
  if (remover == kRemoveLeast && (remover_view >= views.size() || !views[remover_view].prioritized)) fail(ErrorCode::config, "table '%s' removes by priorities that it does not keep", name.c_str());
  return s;
}

class PyTable : public Handle<TableCore> {
 public:
  PyTable(const PyAttachment& attachment, std::uint32_t index) : Handle(make(attachment, index), attachment.store()) {}

 private:
  static std::shared_ptr<TableCore> make(const PyAttachment& attachment, std::uint32_t index) {
    const auto process = attachment.get();
    process->check();
    if (index >= process->segments().header().tables.load(std::memory_order_acquire)) fail(ErrorCode::config, "no table %u", index);
    return std::make_shared<TableCore>(process, index);
  }
};

std::uint32_t checked_view(const TableCore& core, std::uint32_t view) {
  if (view >= core.n_views()) fail(ErrorCode::config, "no window %u of %u", view, core.n_views());
  return view;
}

nb::dict info_dict(const TableInfo& i) {
  nb::dict d;
#define FIELD(name) d[#name] = i.name
  FIELD(live_steps); FIELD(ready_rows); FIELD(steps_folded); FIELD(steps_evicted); FIELD(evicted_early); FIELD(sampled_rows);
  FIELD(sampled_batches); FIELD(updated); FIELD(stale_updates); FIELD(discarded_batches); FIELD(recoveries); FIELD(blocks_opened);
  FIELD(draw_ns); FIELD(gather_ns); FIELD(sample_wait_ns); FIELD(fold_ns); FIELD(append_ns); FIELD(append_wait_ns); FIELD(append_calls);
  FIELD(update_ns); FIELD(blocks_open); FIELD(blocks_free); FIELD(blocks_retired); FIELD(blocks_pinned); FIELD(open_writers);
  FIELD(total); FIELD(max_priority); FIELD(epoch); FIELD(used_up); FIELD(limited_append_ns); FIELD(limited_sample_ns); FIELD(limiter);
#undef FIELD
  nb::list readers, writers;
  for (const ReaderInfo& r : i.readers) readers.append(nb::make_tuple(r.pid, r.batches, r.rows, static_cast<double>(r.idle_ns) * 1e-9));
  for (const WriterInfo& w : i.writers) writers.append(nb::make_tuple(w.pid, w.blocks));
  d["readers"] = readers;
  d["writers"] = writers;
  return d;
}

// Position of the first of n that is not finite or is negative; n if there is none.
std::uint64_t first_bad_priority(const float* p, std::uint64_t n) {
  bool good = true;
  for (std::uint64_t i = 0; i < n; ++i) good &= p[i] >= 0.0f && p[i] <= std::numeric_limits<float>::max();
  std::uint64_t at = good ? n : 0;
  while (at < n && p[at] >= 0.0f && p[at] <= std::numeric_limits<float>::max()) ++at;
  return at;
}

class PyWriter : public Handle<Writer> {
 public:
  PyWriter(const PyTable& table, std::uint32_t chains, std::vector<RowColumn> columns, int terminated, int truncated)
      : Handle(make(table, chains), table.store()), reader(std::move(columns), terminated, truncated) {}

  static std::shared_ptr<Writer> make(const PyTable& table, std::uint32_t chains) {
    const auto core = table.get();
    core->process().check();
    if (!core->process().segments().writable()) fail(ErrorCode::read_only, "store '%s' is attached read-only: attach with read_only=False to write", table.store().c_str());
    return std::make_shared<Writer>(core, chains);
  }
  // While another thread appends, that thread closes as soon as it is out of the core.
  void close() {
    closing = true;
    if (busy || closed()) return;
    get()->close();
    release();
  }
  std::shared_ptr<Writer> checked() const {
    if (closed()) fail(ErrorCode::closed, "this writer to store '%s' is closed: call table.writer() for a new one", store().c_str());
    const auto writer = get();
    writer->check();
    // before anything is read into what the other call uses
    if (busy) fail(ErrorCode::config, "writer of table '%s' is in use by another thread: give each thread its own writer", writer->table().shared().name);
    return writer;
  }

  std::uint32_t push(Writer& writer, const Rows& rows, std::optional<double> timeout) {
    struct Busy {
      PyWriter& self;
      explicit Busy(PyWriter& s) : self(s) { self.busy = true; }
      ~Busy() {
        self.busy = false;
        if (self.closing) self.close();
      }
    } guard(*this);
    std::uint32_t done = 0;
    Rows rest = rows;
    writer.begin_keys();
    std::vector<const std::byte*> columns;  // of what is left after the first try
    std::vector<const Cell*> cells;
    std::optional<Deadline> deadline;
    std::uint32_t signal = 0;  // of the limiter, as it was before the last look
    bool announced = false;
    for (;;) {
      std::uint32_t n;
      try {
        if (writer.takes_long(rest)) {
          nb::gil_scoped_release release;
          n = writer.append(rest);
        } else {
          n = writer.append(rest);
        }
      } catch (const Error& e) {
        if (done == 0) throw;
        throw Error(e.code, std::string(e.what()) + ". " + std::to_string(done) + " of " + std::to_string(rows.n) + " rows are in");
      }
      done += n;
      if (done == rows.n) return done;
      if (closing) fail(ErrorCode::closed, "this writer of table '%s' was closed by another thread; %u of %u rows are in", writer.table().shared().name, done, rows.n);
      if (n == 0) {
        if (writer.stopped() == Writer::Stopped::never) return done;
        if (!deadline) deadline.emplace(timeout);
        const std::uint64_t slice = deadline->slice();
        if (slice == 0) return done;
        if (writer.stopped() == Writer::Stopped::limiter) {  // announce the wait, look once more, sleep
          if (announced) {
            nb::gil_scoped_release release;
            writer.wait_limiter(signal, slice);
          }
          signal = writer.begin_wait();
          announced = true;
        } else {
          announced = false;
          nb::gil_scoped_release release;
          writer.wait_space(slice);
        }
      }
      columns.resize(writer.table().shared().n_columns);
      cells.resize(columns.size());
      for (std::size_t c = 0; c < columns.size(); ++c) {
        columns[c] = rows.columns[c] == nullptr ? nullptr : rows.columns[c] + done * writer.table().columns()[c].row_bytes;
        cells[c] = rows.cells == nullptr || rows.cells[c] == nullptr ? nullptr : rows.cells[c] + done;
      }
      rest = {rows.n - done, columns.data(), rows.cells == nullptr ? nullptr : cells.data(), rows.flags ? rows.flags + done : nullptr, rows.priorities ? rows.priorities + done : nullptr,
              rows.chains ? rows.chains + done : nullptr, rows.whole};
    }
  }

  // Appends one row given as keyword columns. 1 = done, 0 = timed out, -1 = some value needs the careful path in Python,
  // -2 = the previous step ended its episode and end() has not been called.
  int append_row(nb::dict row, std::optional<float> priority, std::optional<double> timeout) {
    const auto writer = checked();
    if (ended) return -2;
    RowReader::Held held(reader);
    if (!held.read(row)) return -1;
    const std::uint8_t flags = held.flags();
    const Rows rows{1, held.columns(), held.cells(), &flags, priority ? &*priority : nullptr, nullptr, false};
    writer->check_lengths(rows);
    if (push(*writer, rows, timeout) != 1) return 0;
    ended = (flags & kEnd) != 0;
    return 1;
  }

  // Whole columns that fit just as they are, of a table without episodes: (how many rows went in, of how many), or None where
  // something needs the careful path in Python, and none did. Fewer than all: the timeout.
  std::optional<std::tuple<std::uint32_t, std::uint32_t>> append_columns(nb::dict columns, nb::object priorities, std::optional<double> timeout) {
    const auto writer = checked();
    const std::uint64_t most = std::min<std::uint64_t>(writer->table().shared().max_size, std::numeric_limits<std::int32_t>::max());
    RowReader::Held held(reader);
    std::uint32_t n = 0;
    if (!held.read_columns(columns, static_cast<std::uint32_t>(most), &n)) return std::nullopt;
    const float* given = nullptr;
    if (!priorities.is_none()) {
      given = held.read_priorities(priorities.ptr(), n);
      if (given == nullptr || first_bad_priority(given, n) < n) return std::nullopt;
    }
    const Rows rows{n, held.columns(), held.cells(), nullptr, given, nullptr, false};
    writer->check_lengths(rows);
    return std::tuple{push(*writer, rows, timeout), n};
  }

  // Rows given as one contiguous buffer (or None) a column. Returns how many were appended before the timeout.
  std::uint32_t append_rows(std::uint32_t n, nb::list columns, nb::object flags, nb::object priorities, nb::object chains, std::optional<double> timeout, bool whole) {
    const auto held_writer = checked();
    Writer& writer = *held_writer;
    const Table& t = writer.table().shared();
    if (nb::len(columns) != t.n_columns) fail(ErrorCode::config, "%zu columns given, table '%s' has %u", nb::len(columns), t.name, t.n_columns);
    std::vector<std::unique_ptr<Bytes>> held;
    std::vector<const std::byte*> at;
    std::vector<std::vector<Cell>> varying(t.n_columns);
    std::vector<const Cell*> cells(t.n_columns);
    for (std::uint32_t c = 0; c < t.n_columns; ++c) {
      const std::uint64_t element_bytes = writer.table().columns()[c].element_bytes;
      if (columns[c].is_none() || element_bytes > 0) {
        at.push_back(nullptr);
        if (columns[c].is_none()) continue;
        varying[c] = read_cells(columns[c], n, element_bytes, held);
        cells[c] = varying[c].data();
        continue;
      }
      held.push_back(std::make_unique<Bytes>(columns[c], n * writer.table().columns()[c].row_bytes, "column"));
      at.push_back(held.back()->as<std::byte>());
    }
    const auto optional = [&](nb::object& object, std::uint64_t bytes, const char* what) -> const void* {
      if (object.is_none()) return nullptr;
      held.push_back(std::make_unique<Bytes>(object, bytes, what));
      return held.back()->as<void>();
    };
    Rows rows{n, at.data(), cells.data(), static_cast<const std::uint8_t*>(optional(flags, n, "flags")),
              static_cast<const float*>(optional(priorities, n * sizeof(float), "priorities")),
              static_cast<const std::int32_t*>(optional(chains, n * sizeof(std::int32_t), "chains")), whole};
    for (std::uint32_t i = 0; rows.chains != nullptr && i < n; ++i) {
      if (rows.chains[i] < 0 || static_cast<std::size_t>(rows.chains[i]) >= writer.chains()) fail(ErrorCode::config, "chain %d of %zu", rows.chains[i], writer.chains());
    }
    if (n == 0) return 0;
    writer.check_lengths(rows);
    return push(writer, rows, timeout);
  }

  std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t> holders() const {
    const SpaceHolders h = get()->holders();
    return {h.pinned, h.read, h.written, h.saved, h.in_memory, h.process};
  }

  RowReader reader;
  bool ended = false;
  bool busy = false;
  bool closing = false;
};

struct CheckedPlan {
  // The plan, if it is one of this table: a wrong one would read outside of it.
  static Plan of(const TableCore& core, Plan plan) {
    if (core.queue() != nullptr) fail(ErrorCode::config, "table '%.63s' is a queue: its rows are delivered, not drawn", core.shared().name);
    for (Output& output : plan.outputs) {
      const std::uint64_t count = plan.count(output.source);
      if (of_columns(output.source) && (output.column >= core.shared().n_columns || core.columns()[output.column].row_bytes * count != output.row_bytes)) {
        fail(ErrorCode::config, "output of %llu bytes a row does not fit column %u", static_cast<unsigned long long>(output.row_bytes), output.column);
      }
      output.element_bytes = of_columns(output.source) ? core.columns()[output.column].element_bytes : 0;
      const bool fixed = output.source == Source::n_step_sum || output.source == Source::goal || output.source == Source::next_goal;
      if (output.element_bytes > 0 && fixed) fail(ErrorCode::config, "rows of column %u vary in length: they are neither summed nor goals", output.column);
      if (output.source == Source::mask && output.row_bytes != count) fail(ErrorCode::config, "a mask of %llu bytes for %llu rows", static_cast<unsigned long long>(output.row_bytes), static_cast<unsigned long long>(count));
      const bool goal = output.source == Source::goal || output.source == Source::next_goal || output.source == Source::relabelled;
      if (goal && plan.hindsight == Hindsight::none) fail(ErrorCode::config, "goals without a strategy");
      if (goal && output.source != Source::relabelled && (plan.achieved >= core.shared().n_columns || core.columns()[plan.achieved].row_bytes != output.row_bytes)) {
        fail(ErrorCode::config, "goals of %llu bytes do not fit column %u", static_cast<unsigned long long>(output.row_bytes), plan.achieved);
      }
      const bool plain = output.source == Source::row;
      if (plan.steps == 0 && !plain) fail(ErrorCode::config, "an output of windows in a plan of rows");
    }
    const View& view = core.shared().views[checked_view(core, plan.view)];
    const std::uint32_t steps = plan.steps - (plan.last_step && plan.steps > 0);
    const std::uint32_t before = std::max(plan.before, plan.stack - 1);
    if (plan.stack == 0 || steps > view.steps_after || before > view.steps_before || (plan.hindsight == Hindsight::episode && view.steps_before != kWholePast)) {
      fail(ErrorCode::config, "a window of %u rows, then %u, on a table that was declared with %u and %u", before, steps, view.steps_before, view.steps_after);
    }
    return plan;
  }
};

// Calls that hold the interpreter's lock come in; waits and draws let go of it.
class PyLoader : public Handle<Loader> {
 public:
  PyLoader(const PyTable& table, const Plan& plan, const LoaderSettings& settings, std::shared_ptr<StagingPool> pool)
      : Handle(std::make_shared<Loader>(table.get(), CheckedPlan::of(*table.get(), plan), settings, pool ? std::move(pool) : staging_pool()), table.store()) {}

  // (buffer, token, tokens discarded, number of the next batch, None), or after the timeout
  // (None, 0, tokens discarded, 0, what a draw lacked or None where none has failed)
  std::tuple<std::shared_ptr<Staging>, std::uint64_t, std::vector<std::uint64_t>, std::uint64_t, std::optional<SampleState>> next(std::optional<double> timeout) {
    const auto loader = get();
    const std::uint64_t began = now_ns();
    const Deadline deadline(timeout);
    Prepared batch;
    std::vector<std::uint64_t> discarded;
    for (bool first = true;; first = false) {
      std::uint64_t slice;
      try {
        slice = deadline.slice();
      } catch (...) {
        loader->gave_up(began);
        throw;
      }
      if (slice == 0 && !first) break;
      nb::gil_scoped_release release;
      if (loader->next(began, slice, &batch, &discarded)) {
        loader->table().delivered(loader->plan().view, loader->settings().stream, batch.number + 1);
        nb::gil_scoped_acquire acquire;
        return {std::move(batch.staging), batch.token, std::move(discarded), batch.number + 1, std::nullopt};
      }
      if (loader->state().status == SampleStatus::never) break;
    }
    loader->gave_up(began);
    const SampleState state = loader->state();
    return {nullptr, 0, std::move(discarded), 0, state.status == SampleStatus::ok ? std::nullopt : std::optional(state)};
  }

  std::shared_ptr<Loader> get() const {
    if (closed()) fail(ErrorCode::closed, "this loader of store '%s' is closed: call table.loader() for a new one", store().c_str());
    return Handle::get();
  }

  // For a producer in Python. (status, batch): 0 = there is one, 1 = not yet, 2 = stop.
  std::tuple<int, std::shared_ptr<Prepared>> prepare(double seconds) {
    const auto loader = get();
    auto batch = std::make_shared<Prepared>();
    nb::gil_scoped_release release;
    const PrepareStatus status = loader->prepare(static_cast<std::uint64_t>(seconds * 1e9), batch.get());
    return {static_cast<int>(status), status == PrepareStatus::ready ? std::move(batch) : nullptr};
  }

  void close() {
    if (closed()) return;
    unlocked([](Loader& l) { l.close(); });
    if (closed()) return;  // another thread was here meanwhile
    release();
  }
};

// Pinned staging memory: `pin(address, bytes)` for each new buffer, `unpin(address, bytes)` before it is freed.
std::shared_ptr<StagingPool> pinned_pool(nb::object pin, nb::object unpin) {
  const auto hook = [](nb::object call, bool quiet) -> StagingPool::Hook {
    // Shared, and freed under the interpreter's lock, whichever thread is the last.
    std::shared_ptr<nb::object> held(new nb::object(std::move(call)), [](nb::object* object) {
      nb::gil_scoped_acquire acquire;
      delete object;
    });
    return [held, quiet](std::byte* at, std::size_t bytes) {
      nb::gil_scoped_acquire acquire;
      try {
        (*held)(reinterpret_cast<std::uint64_t>(at), bytes);
      } catch (nb::python_error& error) {
        if (!quiet) throw;
        error.discard_as_unraisable("unpinning a staging buffer");
      }
    };
  };
  return std::make_shared<StagingPool>(hook(std::move(pin), false), hook(std::move(unpin), true));
}

// Test hook: the sum tree on memory of its own.
class PySumTree {
 public:
  explicit PySumTree(std::uint64_t leaves) : n_(leaves) {
    std::uint64_t sizes[kTreeLevels];
    const std::uint32_t levels = SumTree::plan(leaves, sizes);
    double* at[kTreeLevels];
    for (std::uint32_t k = 0; k < levels; ++k) {
      memory_.emplace_back(sizes[k], 0.0);
      at[k] = memory_.back().data();
    }
    tree = SumTree(at, sizes, levels);
  }
  void update(const std::vector<std::uint32_t>& at, const std::vector<double>& values) {
    std::vector<LineRange> lines;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (at[i] >= n_) fail(ErrorCode::config, "leaf %u of %llu", at[i], static_cast<unsigned long long>(n_));
      tree.leaves()[at[i]] = values[i];
      lines.push_back({at[i] / kFanOut, at[i] / kFanOut});
    }
    if (!lines.empty()) tree.refresh(lines.data(), static_cast<std::uint32_t>(lines.size()));
  }
  // `equal`: all leaves are 0 or 1.
  std::vector<std::uint32_t> find(const std::vector<double>& masses, bool equal) const {
    std::vector<std::uint32_t> leaves(masses.size());
    const auto n = static_cast<std::uint32_t>(masses.size());
    if (equal) tree.find_equal(masses.data(), n, leaves.data());
    else tree.find(masses.data(), n, leaves.data());
    return leaves;
  }
  SumTree tree;

 private:
  std::uint64_t n_;
  std::vector<std::vector<double>> memory_;
};

void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const Error& e) {
    static constexpr const char* kClasses[] = {"StoreClosed", "ForkedHandle", "LayoutMismatch", "OutOfHostMemory", "LockTimeout", "ConfigError",
                                               "ReadOnlyStore", "StaleKey", "NameTaken", "CapacityError", "UnsupportedPlatform", "LeaseExpired", "QueueEnded",
                                               "StalePolicy", "CheckpointBusy", "CheckpointDamaged", "CheckpointLapsed",
                                               "DiskError"};
    nb::object type = nb::module_::import_("conduit_store.errors").attr(kClasses[static_cast<int>(e.code)]);
    // A message may quote what somebody else has written.
    const nb::object text = nb::steal(PyUnicode_DecodeUTF8(e.what(), static_cast<Py_ssize_t>(strlen(e.what())), "replace"));
    if (text.is_valid()) PyErr_SetObject(type.ptr(), text.ptr());
  } catch (const WriteError& e) {
    errno = e.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, e.file.c_str());
  }
}

int staging_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* staging = nb::inst_ptr<Staging>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, staging->data(), static_cast<Py_ssize_t>(staging->bytes()), 0, flags);
}

PyType_Slot staging_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(staging_buffer)}, {0, nullptr}};

}  // namespace
}  // namespace conduit

#include "reader_bindings.hpp"
#include "queue_bindings.hpp"
#include "checkpoint_bindings.hpp"
#include "category_bindings.hpp"
#include "disk_bindings.hpp"

namespace conduit {

NB_MODULE(CONDUIT_MODULE_NAME, m) {
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);

  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("FINGERPRINT") = fingerprint();
  m.attr("MAX_TABLE_SLOTS") = kSlotMask;
  m.def("has_codec", [](const std::string& name) { return codec_of(name.c_str()) != nullptr; }, "name"_a);
  m.attr("MAX_CONSUMERS") = kGroups;
  m.def("fixed_control_bytes", &control_fixed_bytes, "max_processes"_a, "max_tables"_a);
  m.def("format_control", &format_control, "control_fd"_a, "control_bytes"_a, "data_bytes"_a, "max_processes"_a, "max_tables"_a, "name"_a);
  m.def("now_ns", &now_ns);
  // `n` numbers of a column that is rewritten, in a block that the caller holds
  m.def("copy_scalars", [](std::uintptr_t address, std::uint64_t n, std::uint64_t bytes) {
    std::vector<std::byte> copied(n * bytes);
    copy_scalars(reinterpret_cast<const std::byte*>(address), n, bytes, copied.data());
    return nb::bytes(reinterpret_cast<const char*>(copied.data()), copied.size());
  }, "address"_a, "n"_a, "bytes"_a);
  m.def("first_bad_priority", [](nb::object priorities, std::uint64_t n) {
    const Bytes held(priorities, n * sizeof(float), "priorities");
    return first_bad_priority(held.as<float>(), n);
  }, "priorities"_a, "n"_a);
  // Whether each of a list is a contiguous array (length, *shape) of this dtype.str, without its byte order.
  m.def("rows_fit", [](nb::list rows, const std::string& dtype, const std::vector<std::int64_t>& shape) {
    return RowReader::fits(rows, RowColumn::make({{"", dtype, shape}}, nb::dict()).front());
  }, "rows"_a, "dtype"_a, "shape"_a);
  // A buffer of a batch's own with a copy of `data`.
  m.def("staging", [](nb::object data) {
    const Bytes held(data, "data");
    auto staging = std::make_shared<Staging>(staging_class(held.size()));
    if (held.size() > 0) memcpy(staging->data(), held.as<void>(), held.size());
    return staging;
  }, "data"_a);
  m.def("staging_kept_bytes", [] { return staging_pool()->kept(); });

  // What may change while a table lives; `table.reconfigure` takes a changed one back.
  nb::class_<ViewSettings>(m, "ViewSettings")
      .def_rw("alpha", &ViewSettings::alpha)
      .def_rw("beta", &ViewSettings::beta)
      .def_rw("eps", &ViewSettings::eps);
  nb::class_<Settings>(m, "Settings")
      .def("__init__", [](Settings* self) { new (self) Settings{}; })
      .def("view", [](Settings& s, std::uint32_t number) -> ViewSettings& {
        if (number >= kMaxViews) fail(ErrorCode::config, "view %u of %u", number, kMaxViews);
        return s.views[number];
      }, "number"_a, nb::rv_policy::reference_internal)
      .def_ro("version", &Settings::version)
#define FIELD(name) .def_rw(#name, &Settings::name)
      FIELD(min_size) FIELD(ratio) FIELD(error_buffer) FIELD(capacity) FIELD(max_times)
#undef FIELD
      .def_prop_ro("low", &Settings::low)
      .def_prop_ro("high", &Settings::high);
  nb::class_<LimiterState>(m, "LimiterState")
#define FIELD(name) .def_ro(#name, &LimiterState::name)
      FIELD(settings) FIELD(live_steps) FIELD(inserts) FIELD(samples) FIELD(reserved) FIELD(cursor);
#undef FIELD
  // `status`: sampler.hpp's.
  nb::class_<SampleState>(m, "SampleState")
      .def_prop_ro("status", [](const SampleState& s) { return static_cast<int>(s.status); })
      .def_ro("limiter", &SampleState::limiter)
      .def_prop_ro("found", [](const SampleState& s) { return s.drawn.found; })
      .def_ro("total", &SampleState::total);

  // `sampler`: a SamplerKind; `beta_schedule`: (ScheduleKind, start, end, batches).
  nb::class_<ViewSpec>(m, "ViewSpec")
      .def("__init__", [](ViewSpec* self, std::uint32_t steps_before, std::uint32_t steps_after, std::uint32_t period, bool strict, bool whole, bool last_step, bool prioritized, double alpha, double beta, double eps,
                          std::uint32_t sampler, bool stratified, const std::tuple<std::uint32_t, double, double, std::uint64_t>& beta_schedule) {
        if (period == 0) fail(ErrorCode::config, "a period of 0");
        if (sampler > kWithoutReplacement) fail(ErrorCode::config, "unknown sampler %u", sampler);
        const auto& [kind, start, end, batches] = beta_schedule;
        if (kind > kExponential) fail(ErrorCode::config, "unknown schedule %u", kind);
        const std::uint32_t rules = (strict ? kStrict : 0) | (whole ? kWhole : 0) | (last_step ? kLastStep : 0);
        new (self) ViewSpec{prioritized, steps_before, steps_after, period, rules, {alpha, eps, beta}, static_cast<SamplerKind>(sampler), stratified, {kind, start, end, batches}};
      }, "steps_before"_a, "steps_after"_a, "period"_a, "strict"_a, "whole"_a, "last_step"_a, "prioritized"_a, "alpha"_a, "beta"_a, "eps"_a, "sampler"_a, "stratified"_a, "beta_schedule"_a);
  nb::class_<TableSpec>(m, "TableSpec")
      .def("__init__", [](TableSpec* self, const std::string& name, nb::bytes spec, const std::vector<std::uint64_t>& offsets, const std::vector<std::uint64_t>& row_bytes,
                          const std::vector<std::uint64_t>& element_bytes, const std::vector<std::uint64_t>& mean_bytes, std::uint64_t values_offset, std::uint64_t max_size, std::uint32_t rows_per_block, std::uint32_t n_blocks, std::uint32_t n_frames, std::uint64_t block_bytes, const std::vector<ViewSpec>& views,
                          const Settings& settings, std::uint32_t limiter, bool limits_inserts, bool counts_uses, std::uint64_t seed, std::uint32_t remover, std::uint32_t remover_view) {
             new (self) TableSpec(make_spec(name, spec, offsets, row_bytes, element_bytes, mean_bytes, values_offset, max_size, rows_per_block, n_blocks, n_frames, block_bytes, views, settings, limiter, limits_inserts, counts_uses, seed, remover, remover_view));
           },
           "name"_a, "spec"_a, "offsets"_a, "row_bytes"_a, "element_bytes"_a, "mean_bytes"_a, "values_offset"_a, "max_size"_a, "rows_per_block"_a, "n_blocks"_a, "n_frames"_a, "block_bytes"_a, "views"_a, "settings"_a,
           "limiter"_a, "limits_inserts"_a, "counts_uses"_a, "seed"_a, "remover"_a, "remover_view"_a)
      .def("rewritable", [](TableSpec& s, const std::vector<std::uint32_t>& columns) {
        for (const std::uint32_t c : columns) {
          if (c >= s.columns.size() || s.columns[c].element_bytes > 0 || !std::has_single_bit(s.columns[c].row_bytes) || s.columns[c].row_bytes > kMaxScalar) fail(ErrorCode::config, "column %u cannot be rewritten", c);
          s.columns[c].changes = 1;
        }
      }, "columns"_a)
      // (column, most values, most bytes of them, values that it begins with)
      .def("categorical", [](TableSpec& s, const std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::vector<nb::bytes>>>& columns) {
        for (const auto& [column, max_values, max_bytes, values] : columns) {
          if (column >= s.columns.size() || s.columns[column].element_bytes > 0) fail(ErrorCode::config, "column %u has no categories", column);
          std::vector<std::string> texts;
          for (const nb::bytes& value : values) texts.emplace_back(value.c_str(), value.size());
          s.categories.push_back({column, max_values, max_bytes, std::move(texts)});
        }
      }, "columns"_a)
      .def("as_queue", [](TableSpec& s, std::uint32_t groups, double lease_timeout, std::optional<std::int64_t> max_staleness, std::uint32_t version_column) {
        if (groups < 1 || groups > kGroups || s.links || s.limits_inserts || s.counts_uses) fail(ErrorCode::config, "a queue of %u consumer groups, or with episodes or a limiter", groups);
        if (max_staleness && (version_column >= s.columns.size() || s.columns[version_column].row_bytes != 8)) fail(ErrorCode::config, "no version in column %u", version_column);
        s.views.clear();
        s.queue = {groups, static_cast<std::uint64_t>(lease_timeout * 1e9), max_staleness.value_or(-1), version_column};
      }, "groups"_a, "lease_timeout"_a, "max_staleness"_a.none(), "version_column"_a);

  nb::class_<Staging>(m, "Staging", nb::type_slots(staging_slots)).def_prop_ro("bytes", &Staging::bytes);
  // What makes tensors of some library, see dlpack.hpp.
  nb::class_<TensorMaker>(m, "TensorMaker").def(nb::init<nb::object, nb::object>(), "api"_a.none(), "from_dlpack"_a);
  // Arrays of n rows within a buffer: (name, byte offset, dtype.str without byte order, shape of a row) each.
  nb::class_<NamedFields>(m, "Fields")
      .def("__init__", [](NamedFields* self, std::int64_t n, const std::vector<std::tuple<nb::object, std::uint64_t, std::string, std::vector<std::int64_t>>>& given) {
        Fields fields;
        std::vector<nb::object> names;
        for (const auto& [name, offset, dtype, shape] : given) {
          fields.push_back(make_field(n, offset, dlpack_type(dtype[0], std::stoul(dtype.substr(1))), shape));
          names.push_back(name);
        }
        new (self) NamedFields{std::make_shared<const Fields>(std::move(fields)), std::move(names)};
      }, "n"_a, "fields"_a)
      // Tensors over the batch's buffer by name, but those `without`; they share its memory.
      .def("tensors", [](const NamedFields& f, nb::handle batch, const TensorMaker& maker, nb::object without) {
        return maker.make(BatchObject::staging_in(batch), f.fields, f.names, without);
      }, "batch"_a, "maker"_a, "without"_a);
  nb::class_<Pin>(m, "Pin", nb::is_weak_referenceable())
      // (address, what it is of) of a copy of a block that lies compressed
      .def("unpacked", [](const Pin& pin) {
        std::shared_ptr<Staging> copy;
        {
          nb::gil_scoped_release release;
          copy = pin.unpacked();
        }
        return nb::make_tuple(reinterpret_cast<std::uint64_t>(copy->data()), copy);
      });

  nb::class_<PyAttachment>(m, "Attachment")
      .def(nb::init<int, int, bool>(), "control_fd"_a, "data_fd"_a, "writable"_a)
      .def("shutdown", [](PyAttachment& a) { if (!a.closed()) a.get()->close(); })  // calls that are waiting raise
      .def("close", &PyAttachment::close)
      .def("check", [](PyAttachment& a) { a.get()->check(); })
      .def_prop_ro("closed", [](PyAttachment& a) { return a.closed(); })
      .def_prop_ro("slot", [](PyAttachment& a) { return a.get()->slot(); })
      .def_prop_ro("forks", [](PyAttachment& a) { return a.get()->forks(); })
      .def_prop_ro("writable", [](PyAttachment& a) { return a.get()->segments().writable(); })
      .def_prop_ro("name", [](PyAttachment& a) { return a.store(); })
      .def_prop_ro("created_ns", [](PyAttachment& a) { return a.get()->segments().header().created_ns; })
      .def("tables", &PyAttachment::tables)
      .def("processes", &PyAttachment::processes)
      // (began ns, duration ns, stage, behind, process slot, thread, table, rows), oldest first
      .def("spans", [](PyAttachment& a, std::uint64_t since_ns) {
        std::vector<std::tuple<std::uint64_t, std::uint64_t, int, bool, int, std::uint32_t, int, std::uint32_t>> result;
        for (const Span& s : read_spans(a.get()->segments().spans(), since_ns)) {
          result.emplace_back(s.began_ns, s.duration_ns, static_cast<int>(s.stage), s.behind, s.process, s.thread, s.table, s.rows);
        }
        return result;
      }, "since_ns"_a)
      // Test hook: nanoseconds that leaving a span takes, the mean of `n`.
      .def("time_spans", [](PyAttachment& a, std::uint64_t n) {
        const auto process = a.get();
        const std::uint64_t began = now_ns();
        for (std::uint64_t i = 0; i < n; ++i) leave_span(*process, Stage::extend, 0, i, began, began + i);
        return static_cast<double>(now_ns() - began) / static_cast<double>(n);
      }, "n"_a)
      .def("populate", [](PyAttachment& a, std::uint64_t offset, std::uint64_t bytes, bool join) {
        a.unlocked([&](Process& p) {
          p.check();  // who closes the store waits for this to stop
          p.segments().populate(offset, bytes, join);
        });
      }, "offset"_a, "bytes"_a, "join"_a)
      .def("tidy", [](PyAttachment& a, int control_fd, int data_fd) {
        a.unlocked([&](Process& p) { TableCore::tidy(p, control_fd, data_fd); });
      }, "control_fd"_a, "data_fd"_a)
      .def("table_bytes", [](PyAttachment& a, const TableSpec& s) {
        return std::make_tuple(TableCore::control_bytes(s, a.get()->segments().header().max_processes), s.block_bytes * s.n_frames);
      }, "spec"_a)
      .def("create_table", [](PyAttachment& a, int control_fd, int data_fd, const TableSpec& spec) {
        return a.unlocked([&](Process& p) { return TableCore::create(p, control_fd, data_fd, spec); });
      }, "control_fd"_a, "data_fd"_a, "spec"_a);

  nb::class_<PyTable> table_class(m, "Table");
  bind_queue_table(table_class);
  bind_queues(m);
  bind_saved_table(table_class);
  bind_categories(table_class);
  bind_disk(table_class);
  bind_checkpoints(m);
  table_class
      .def(nb::init<const PyAttachment&, std::uint32_t>(), "attachment"_a, "index"_a)
      .def("close", &PyTable::release)
      .def_prop_ro("name", [](PyTable& t) { return std::string(t.get()->shared().name); })
      .def_prop_ro("spec", [](PyTable& t) {
        const auto core = t.get();
        const Table& s = core->shared();
        return nb::bytes(core->process().segments().control_at<char>(s.spec_offset), s.spec_bytes);
      })
      .def_prop_ro("seed", [](PyTable& t) { return t.get()->shared().seed; })
      .def_prop_ro("data_offset", [](PyTable& t) { return t.get()->shared().data_offset; })
      .def_prop_ro("data_bytes", [](PyTable& t) { return t.get()->shared().data_bytes; })
      // Puts some of the table's index into huge pages, see pages.hpp.
      .def("join_index", [](PyTable& t, std::uint64_t first, std::uint64_t bytes) {
        t.unlocked([&](TableCore& c) {
          const Table& s = c.shared();
          c.process().check();
          const std::uint64_t from = std::min(s.end_offset, s.spec_offset + first);
          join_pages(c.process().segments().control_at<std::byte>(0), from, std::min(bytes, s.end_offset - from));
        });
      }, "first"_a, "bytes"_a)
      .def_prop_ro("control_bytes", [](PyTable& t) { return t.get()->shared().end_offset - t.get()->shared().spec_offset; })
      .def("steps", [](PyTable& t) { return t.unlocked([](TableCore& c) { return c.steps(); }); })
      .def("clear", [](PyTable& t) { t.unlocked([](TableCore& c) { c.clear(); }); })
      .def("mark", [](PyTable& t, std::uint32_t view) {
        return t.unlocked([&](TableCore& c) { return c.mark_now(checked_view(c, view)); });
      }, "view"_a)
      // (bound of the total variation distance for each draw, whether a draw may give something else)
      .def("drift", [](PyTable& t, std::uint32_t view, const DrawMark& mark) {
        const DriftSince since = t.unlocked([&](TableCore& c) {
          DriftSince found;
          c.drift(checked_view(c, view), &mark, 1, &found);
          return found;
        });
        return std::make_tuple(since.bound, since.changed);
      }, "view"_a, "mark"_a)
      .def("verify", [](PyTable& t) { return t.unlocked([](TableCore& c) { return c.verify(); }); })
      // `what`: a Scan. One number of each live row as it is stored.
      .def("scan", [](PyTable& t, std::uint32_t view, std::uint32_t what, std::uint32_t column) {
        if (what > static_cast<std::uint32_t>(Scan::key)) fail(ErrorCode::config, "no such number of a row: %u", what);
        const std::vector<std::byte> values = t.unlocked([&](TableCore& c) {
          if (column >= c.shared().n_columns) fail(ErrorCode::config, "column %u of %u", column, c.shared().n_columns);
          if (static_cast<Scan>(what) == Scan::priority && !c.view(checked_view(c, view)).prioritized()) fail(ErrorCode::config, "window %u has no priorities", view);
          if (static_cast<Scan>(what) == Scan::times && !c.counts_uses()) fail(ErrorCode::config, "table '%s' does not count how often a row is sampled", c.shared().name);
          return c.scan(view, static_cast<Scan>(what), column);
        });
        return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size());
      }, "view"_a, "what"_a, "column"_a)
      .def("live_blocks", [](PyTable& t) { return t.unlocked([](TableCore& c) { return c.live_blocks(); }); })
      .def("settings", [](PyTable& t) { return t.unlocked([](TableCore& c) { return c.settings_now(); }); })
      // False: somebody else has changed the settings since they were read.
      .def("reconfigure", [](PyTable& t, const Settings& settings) {
        return t.unlocked([&](TableCore& c) { return c.reconfigure(settings); });
      }, "settings"_a)
      .def("can_sample", [](PyTable& t, std::uint32_t view, std::uint64_t n) {
        return t.unlocked([&](TableCore& c) { return c.can_sample(checked_view(c, view), n); });
      }, "view"_a, "n"_a)
      .def("can_insert", [](PyTable& t, std::uint64_t n) { return t.unlocked([&](TableCore& c) { return c.can_insert(n); }); }, "n"_a)
      .def("info", [](PyTable& t, std::uint32_t view) {
        return info_dict(t.unlocked([&](TableCore& c) { return c.info(c.queue() != nullptr ? 0 : checked_view(c, view)); }));
      }, "view"_a)
      .def("update", [](PyTable& t, std::uint32_t view, nb::object keys, nb::object priorities, std::uint64_t n) {
        const Bytes k(keys, n * sizeof(std::uint64_t), "keys"), p(priorities, n * sizeof(float), "priorities");
        const UpdateCount count = t.unlocked([&](TableCore& c) { return c.update(checked_view(c, view), k.as<std::uint64_t>(), p.as<float>(), n); });
        return std::make_tuple(count.applied, count.stale);
      }, "view"_a, "keys"_a, "priorities"_a, "n"_a)
      // `values`: of each of `columns`, n contiguous numbers
      .def("rewrite", [](PyTable& t, nb::object keys, std::uint64_t n, const std::vector<std::uint32_t>& columns, nb::list values) {
        const Bytes k(keys, n * sizeof(std::uint64_t), "keys");
        if (columns.size() != nb::len(values)) fail(ErrorCode::config, "%zu columns, %zu arrays", columns.size(), nb::len(values));
        std::vector<std::unique_ptr<Bytes>> held;
        std::vector<const std::byte*> at;
        const auto core = t.get();
        core->process().check();
        if (!core->process().segments().writable()) fail(ErrorCode::read_only, "store '%s' is attached read-only: attach with read_only=False to write", t.store().c_str());
        for (std::size_t i = 0; i < columns.size(); ++i) {
          if (columns[i] >= core->shared().n_columns || core->columns()[columns[i]].changes == 0) fail(ErrorCode::config, "column %u cannot be rewritten", columns[i]);
          held.push_back(std::make_unique<Bytes>(values[i], n * core->columns()[columns[i]].row_bytes, "column"));
          at.push_back(held.back()->as<std::byte>());
        }
        const UpdateCount count = t.unlocked([&](TableCore& c) { return c.rewrite(k.as<std::uint64_t>(), n, columns, at); });
        return std::make_tuple(count.applied, count.stale);
      }, "keys"_a, "n"_a, "columns"_a, "values"_a)
      .def("priorities", [](PyTable& t, std::uint32_t view, nb::object keys, std::uint64_t n) {
        const Bytes k(keys, n * sizeof(std::uint64_t), "keys");
        return t.unlocked([&](TableCore& c) { return c.priorities(checked_view(c, view), k.as<std::uint64_t>(), n); });
      }, "view"_a, "keys"_a, "n"_a)
      // (1 where the row is live, flags, keys of the rows that follow; the largest uint64 where there is none)
      .def("links", [](PyTable& t, nb::object keys, std::uint64_t n) {
        const Bytes k(keys, n * sizeof(std::uint64_t), "keys");
        std::vector<std::uint8_t> live, flags;
        std::vector<std::uint64_t> next;
        t.unlocked([&](TableCore& c) { c.links(k.as<std::uint64_t>(), n, &live, &flags, &next); });
        return std::make_tuple(nb::bytes(reinterpret_cast<const char*>(live.data()), n), nb::bytes(reinterpret_cast<const char*>(flags.data()), n), nb::bytes(reinterpret_cast<const char*>(next.data()), n * sizeof(std::uint64_t)));
      }, "keys"_a, "n"_a)
      // (pin, first live row, end of live rows, generation, address of the block's bytes or 0 if they lie compressed, where the parts of its values begin)
      .def("pin_block", [](PyTable& t, std::uint32_t block) {
        std::uint32_t first, last;
        std::uint64_t generation;
        const auto core = t.get();
        const std::uint32_t entry = t.unlocked([&](TableCore& c) { return c.pin_block(block, &first, &last, &generation); });
        const std::uint64_t* starts = core->ragged().starts(block);
        const auto pin = std::make_shared<Pin>(core->process_handle(), core->disk(), entry);
        const bool packed = core->packed(block);
        if (packed) pin->unpack_from(core, block);
        const std::byte* at = packed ? nullptr : core->block_data(block);
        return std::make_tuple(pin, first, last, generation, reinterpret_cast<std::uint64_t>(at),
                               std::vector<std::uint64_t>(starts, starts + core->ragged().n()));
      }, "block"_a);

  nb::class_<PyWriter>(m, "Writer")
      .def("__init__", [](PyWriter* self, const PyTable& table, std::uint32_t chains, const std::vector<RowColumn::Given>& columns, nb::dict numbers, int terminated, int truncated) {
             new (self) PyWriter(table, chains, RowColumn::make(columns, numbers), terminated, truncated);
           }, "table"_a, "chains"_a, "columns"_a, "numbers"_a, "terminated"_a, "truncated"_a)
      .def("append_row", &PyWriter::append_row, "row"_a, "priority"_a.none(), "timeout"_a.none())
      .def("append_columns", &PyWriter::append_columns, "columns"_a, "priorities"_a.none(), "timeout"_a.none())
      .def("append_rows", &PyWriter::append_rows, "n"_a, "columns"_a, "flags"_a.none(), "priorities"_a.none(), "chains"_a.none(), "timeout"_a.none(), "whole"_a)
      .def_rw("ended", &PyWriter::ended)
      .def("chain_open", [](PyWriter& w, std::uint32_t chain) { return w.checked()->chain_open(chain); }, "chain"_a)
      // The chain's next row begins an episode: the one before ends where it is, as if the writer had closed.
      .def("cut", [](PyWriter& w, std::uint32_t chain) { w.checked()->cut(chain); }, "chain"_a)
      .def_prop_ro("holders", &PyWriter::holders)
      .def_prop_ro("keys", [](const PyWriter& w) {  // of the rows of the last call
        const std::vector<std::uint64_t> keys = w.checked()->keys();
        return nb::bytes(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(std::uint64_t));
      })
      // What the last append was stopped by (Writer::Stopped), and what the limiter then looked like.
      .def_prop_ro("stopped", [](PyWriter& w) { return static_cast<int>(w.get()->stopped()); })
      .def_prop_ro("limiter", [](PyWriter& w) { return w.get()->limiter(); })
      // Of queues: whether the last append found room for its rows, but no block.
      .def_prop_ro("blocked", [](PyWriter& w) { return w.get()->refused() == Admission::blocked; })
      .def_prop_ro("closed", [](PyWriter& w) { return w.closed(); })
      .def("check", [](PyWriter& w) { w.checked(); })
      .def("close", &PyWriter::close);

  // What batches of one window are made of; outputs as (source, column, bytes a row).
  nb::class_<Plan>(m, "Plan")
      .def("__init__", [](Plan* self, const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>& outputs, std::uint32_t view, std::uint32_t before, std::uint32_t steps, std::uint32_t stack,
                          bool last_step, bool pad_zeros, double gamma, bool double_reward, bool table_weights, std::uint32_t hindsight, double ratio, std::uint32_t achieved) {
        if (hindsight > static_cast<std::uint32_t>(Hindsight::episode)) fail(ErrorCode::config, "unknown strategy %u", hindsight);
        Plan plan;
        for (const auto& [source, column, row_bytes] : outputs) {
          if (source >= kSources) fail(ErrorCode::config, "unknown source %u", source);
          plan.outputs.push_back({static_cast<Source>(source), column, row_bytes});
        }
        plan.view = view;
        plan.before = before;
        plan.steps = steps;
        plan.stack = stack;
        plan.last_step = last_step;
        plan.pad_zeros = pad_zeros;
        plan.hindsight = static_cast<Hindsight>(hindsight);
        plan.ratio = ratio;
        plan.achieved = achieved;
        plan.gamma = gamma;
        plan.double_reward = double_reward;
        plan.table_weights = table_weights;
        new (self) Plan(std::move(plan));
      }, "outputs"_a, "view"_a, "before"_a, "steps"_a, "stack"_a, "last_step"_a, "pad_zeros"_a, "gamma"_a, "double_reward"_a, "table_weights"_a, "hindsight"_a, "ratio"_a, "achieved"_a);
  bind_reader(m);

  nb::class_<DrawMark>(m, "DrawMark").def_prop_ro("total", [](const DrawMark& mark) { return mark.total; });
  nb::class_<StagingPool>(m, "StagingPool")
      .def_prop_ro("kept", &StagingPool::kept);
  m.def("pinned_pool", &pinned_pool, "pin"_a, "unpin"_a);
  nb::class_<Prepared>(m, "Prepared")
      .def_prop_ro("staging", [](const Prepared& p) { return p.staging; })
      .def_prop_ro("token", [](const Prepared& p) { return p.token; })
      .def("discard", [](Prepared& p) { p.held = {}; });  // it counts as no sample from here on
  nb::class_<LoaderSettings>(m, "LoaderSettings")
      .def("__init__", [](LoaderSettings* self, std::uint32_t n, std::uint32_t stream, std::uint64_t first, std::uint32_t depth, std::uint32_t most, std::optional<double> max_drift, bool measured, bool own_thread, std::uint64_t most_bytes) {
        new (self) LoaderSettings{n, stream, first, depth, most, max_drift, measured, own_thread, most_bytes};
      }, "n"_a, "stream"_a, "first"_a, "depth"_a, "most"_a, "max_drift"_a.none(), "measured"_a, "own_thread"_a, "most_bytes"_a);
  nb::class_<PyLoader>(m, "Loader")
      .def(nb::init<const PyTable&, const Plan&, const LoaderSettings&, std::shared_ptr<StagingPool>>(), "table"_a, "plan"_a, "settings"_a, "pool"_a.none())
      .def("next", &PyLoader::next, "timeout"_a.none())
      .def("prepare", &PyLoader::prepare, "seconds"_a)
      .def("push", [](PyLoader& l, Prepared& batch) {
        const auto loader = l.get();
        return loader->push(std::move(batch));
      }, "batch"_a)
      .def("fail", [](PyLoader& l) {
        l.get()->producer_failed(std::make_exception_ptr(Error(ErrorCode::closed, "the preparation of this loader's batches has ended")));
      })
      .def("handed_later", [](PyLoader& l) { l.get()->handed_later(); })
      .def("check", [](PyLoader& l) { l.get()->check(); })
      .def("close", &PyLoader::close)
      .def_prop_ro("closed", [](PyLoader& l) { return l.closed() || l.get()->closed(); })
      .def_prop_ro("number", [](PyLoader& l) { return l.get()->number(); })
      .def("metrics", [](PyLoader& l) {
        const LoaderMetrics x = l.get()->metrics();
        return std::make_tuple(x.batches, x.redrawn, x.exposed_ns, x.hidden_ns, x.depth, x.ready, x.drift_last, x.drift_max, x.drift_sum);
      });

  nb::class_<PySumTree>(m, "SumTree")
      .def(nb::init<std::uint64_t>(), "leaves"_a)
      .def("update", &PySumTree::update, "leaves"_a, "values"_a)
      .def("find", &PySumTree::find, "masses"_a, "equal"_a = false)
      .def("total", [](PySumTree& t) { return t.tree.total(); })
      .def("range_sum", [](PySumTree& t, std::uint64_t first, std::uint64_t last) { return t.tree.range_sum(first, last); }, "first"_a, "last"_a)
      .def("consistent", [](PySumTree& t) { return t.tree.consistent(); });

#ifdef CONDUIT_FAILPOINTS
  m.def("failpoint_names", &failpoint_names);
  m.def("failpoint_hits", &failpoint_hits, "name"_a);
  m.def("failpoint_resume", &failpoint_resume);
  m.def("set_lock_timeout", [](double seconds) { set_lock_timeout(static_cast<std::uint64_t>(seconds * 1e9)); }, "seconds"_a);
  m.def("failpoint_arm", [](const std::string& name, const std::string& action, long nth) {
    failpoint_arm(name, action == "kill" ? FailAction::kill : action == "stop" ? FailAction::stop : FailAction::pause, nth);
  }, "name"_a, "action"_a, "nth"_a);
#endif
}

}  // namespace conduit
