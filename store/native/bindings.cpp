// The only file that knows Python. Arguments arrive checked for dtype and shape by conduit_store; sizes are checked again
// here, because a wrong one would corrupt shared memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
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

#include "error.hpp"
#include "failpoints.hpp"
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

constexpr std::uint64_t kSliceNs = 50'000'000;  // waits come back this often to let Ctrl-C through

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
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  template <class T>
  const T* as() const {
    return static_cast<const T*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

// A zero-copy view's hold on its block; also keeps the segments mapped.
class Pin {
 public:
  Pin(std::shared_ptr<Process> process, std::uint32_t entry) : process_(std::move(process)), entry_(entry), forks_(process_->forks()) {}
  ~Pin() { process_->unpin(entry_, forks_); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  std::shared_ptr<Process> process_;
  std::uint32_t entry_, forks_;
};

class PyAttachment {
 public:
  PyAttachment(int control_fd, int data_fd, bool writable)
      : process(std::make_shared<Process>(Segments::map(control_fd, data_fd, writable), control_fd)) {}

  std::vector<std::string> tables() const {
    process->check();
    std::vector<std::string> names;
    const std::uint32_t n = process->segments().header().tables.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < n; ++i) names.emplace_back(process->segments().table(i).name);
    return names;
  }
  std::vector<std::tuple<std::uint32_t, std::uint32_t, bool>> processes() const {
    process->check();
    std::vector<std::tuple<std::uint32_t, std::uint32_t, bool>> result;
    const Segments& s = process->segments();
    for (std::uint32_t i = 0; i < s.header().processes_used.load(); ++i) {
      const ProcessSlot& p = s.process(i);
      result.emplace_back(i, p.pid.load(), p.attached.load() != 0 && process->alive(i, p.claim.load()));
    }
    return result;
  }

  std::shared_ptr<Process> process;
};

TableSpec make_spec(const std::string& name, nb::bytes spec, const std::vector<std::uint64_t>& offsets,
                    const std::vector<std::uint64_t>& row_bytes, std::uint64_t max_size, std::uint32_t rows_per_block, std::uint32_t n_blocks,
                    std::uint64_t block_bytes, std::uint32_t steps_after, bool prioritized, double alpha, double beta, double eps,
                    std::uint64_t min_size, std::uint64_t seed) {
  TableSpec s;
  s.name = name;
  s.spec.assign(spec.c_str(), spec.size());
  if (name.size() >= kNameBytes) fail(ErrorCode::config, "table name of %zu bytes is longer than %u", name.size(), kNameBytes - 1);
  if (std::uint64_t{rows_per_block} * n_blocks >= kSlotMask) fail(ErrorCode::config, "table '%s' needs %llu row slots, the limit is %llu", name.c_str(),
      static_cast<unsigned long long>(std::uint64_t{rows_per_block} * n_blocks), static_cast<unsigned long long>(kSlotMask));
  for (std::size_t i = 0; i < offsets.size(); ++i) s.columns.push_back({offsets[i], row_bytes[i]});
  s.max_size = max_size;
  s.rows_per_block = rows_per_block;
  s.n_blocks = n_blocks;
  s.block_bytes = block_bytes;
  s.links = steps_after > 0;
  s.steps_after = steps_after;
  s.prioritized = prioritized;
  s.alpha = alpha;
  s.beta = beta;
  s.eps = eps;
  s.min_size = min_size;
  s.seed = seed;
  return s;
}

class PyTable {
 public:
  PyTable(const PyAttachment& attachment, std::uint32_t index) {
    attachment.process->check();
    if (index >= attachment.process->segments().header().tables.load(std::memory_order_acquire)) fail(ErrorCode::config, "no table %u", index);
    core = std::make_shared<TableCore>(attachment.process, index);
  }
  std::shared_ptr<TableCore> core;
};

nb::dict info_dict(const TableInfo& i) {
  nb::dict d;
#define FIELD(name) d[#name] = i.name
  FIELD(live_steps); FIELD(ready_rows); FIELD(steps_folded); FIELD(steps_evicted); FIELD(evicted_early); FIELD(sampled_rows);
  FIELD(sampled_batches); FIELD(updated); FIELD(stale_updates); FIELD(discarded_batches); FIELD(recoveries); FIELD(blocks_opened);
  FIELD(draw_ns); FIELD(gather_ns); FIELD(sample_wait_ns); FIELD(fold_ns); FIELD(append_ns); FIELD(append_wait_ns); FIELD(append_calls);
  FIELD(update_ns); FIELD(blocks_open); FIELD(blocks_free); FIELD(blocks_retired); FIELD(blocks_pinned); FIELD(open_writers);
  FIELD(total); FIELD(max_priority);
#undef FIELD
  return d;
}

class PyWriter {
 public:
  PyWriter(const PyTable& table, std::uint32_t chains, std::vector<RowColumn> columns, int terminated, int truncated)
      : writer(table.core, chains), reader(std::move(columns), terminated, truncated) {
    if (!table.core->process().segments().writable()) fail(ErrorCode::read_only, "this attach is read-only: attach with read_only=False to write");
  }
  std::uint32_t push(const Rows& rows, std::optional<double> timeout) {
    if (busy) fail(ErrorCode::config, "writer of table '%s' is in use by another thread: give each thread its own writer", writer.table().shared().name);
    struct Busy {
      bool& flag;
      explicit Busy(bool& f) : flag(f) { flag = true; }
      ~Busy() { flag = false; }
    } guard(busy);
    std::uint32_t done = 0;
    Rows rest = rows;
    std::vector<const std::byte*> columns(writer.table().shared().n_columns);
    std::optional<Deadline> deadline;
    for (;;) {
      std::uint32_t n;
      if (writer.needs_block(rest.n) || rest.n > 64) {
        nb::gil_scoped_release release;
        n = writer.append(rest);
      } else {
        n = writer.append(rest);
      }
      done += n;
      if (done == rows.n) return done;
      if (n == 0) {
        if (!deadline) deadline.emplace(timeout);
        const std::uint64_t slice = deadline->slice();
        if (slice == 0) return done;
        nb::gil_scoped_release release;
        writer.wait_space(slice);
      }
      for (std::size_t c = 0; c < columns.size(); ++c) {
        columns[c] = rows.columns[c] == nullptr ? nullptr : rows.columns[c] + done * writer.table().columns()[c].row_bytes;
      }
      rest = {rows.n - done, columns.data(), rows.flags ? rows.flags + done : nullptr, rows.priorities ? rows.priorities + done : nullptr,
              rows.chains ? rows.chains + done : nullptr};
    }
  }

  // Appends one row given as keyword columns. 1 = done, 0 = timed out, -1 = some value needs the careful path in Python,
  // -2 = the previous step ended its episode and end() has not been called.
  int append_row(nb::dict row, std::optional<float> priority, std::optional<double> timeout) {
    writer.check();
    if (ended) return -2;
    RowReader::Held held(reader);
    if (!held.read(row)) return -1;
    const std::uint8_t flags = held.flags();
    const Rows rows{1, held.columns(), &flags, priority ? &*priority : nullptr, nullptr};
    if (push(rows, timeout) != 1) return 0;
    ended = (flags & kEnd) != 0;
    return 1;
  }

  // Rows given as one contiguous buffer (or None) a column. Returns how many were appended before the timeout.
  std::uint32_t append_rows(std::uint32_t n, nb::list columns, nb::object flags, nb::object priorities, nb::object chains, std::optional<double> timeout) {
    writer.check();
    const Table& t = writer.table().shared();
    if (nb::len(columns) != t.n_columns) fail(ErrorCode::config, "%zu columns given, table '%s' has %u", nb::len(columns), t.name, t.n_columns);
    std::vector<std::unique_ptr<Bytes>> held;
    std::vector<const std::byte*> at;
    for (std::uint32_t c = 0; c < t.n_columns; ++c) {
      if (columns[c].is_none()) {
        at.push_back(nullptr);
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
    Rows rows{n, at.data(), static_cast<const std::uint8_t*>(optional(flags, n, "flags")),
              static_cast<const float*>(optional(priorities, n * sizeof(float), "priorities")),
              static_cast<const std::int32_t*>(optional(chains, n * sizeof(std::int32_t), "chains"))};
    for (std::uint32_t i = 0; rows.chains != nullptr && i < n; ++i) {
      if (rows.chains[i] < 0 || static_cast<std::size_t>(rows.chains[i]) >= writer.chains()) fail(ErrorCode::config, "chain %d of %zu", rows.chains[i], writer.chains());
    }
    if (n == 0) return 0;
    return push(rows, timeout);
  }

  std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t> holders() const {
    const SpaceHolders& h = writer.holders();
    return {h.pinned, h.read, h.written, h.process};
  }

  Writer writer;
  RowReader reader;
  bool ended = false;
  bool busy = false;
};

class PySampler {
 public:
  PySampler(const PyTable& table, const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>& outputs, std::uint32_t steps, double gamma, bool double_reward)
      : sampler(table.core, make_plan(*table.core, outputs, steps, gamma, double_reward)) {}

  static Plan make_plan(const TableCore& core, const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>& outputs, std::uint32_t steps, double gamma, bool double_reward) {
    Plan plan;
    for (const auto& [source, column, row_bytes] : outputs) {
      const auto kind = static_cast<Source>(source);
      if (source > static_cast<std::uint32_t>(Source::steps)) fail(ErrorCode::config, "unknown source %u", source);
      if (kind <= Source::n_step_sum && (column >= core.shared().n_columns || core.columns()[column].row_bytes != row_bytes)) {
        fail(ErrorCode::config, "output of %llu bytes a row does not fit column %u", static_cast<unsigned long long>(row_bytes), column);
      }
      plan.outputs.push_back({kind, column, row_bytes});
    }
    if (steps > core.shared().steps_after) fail(ErrorCode::config, "a window of %u steps on a table that was declared with %u", steps, core.shared().steps_after);
    plan.steps = steps;
    plan.gamma = gamma;
    plan.double_reward = double_reward;
    return plan;
  }

  // (buffer or None, live steps, steps needed, total priority)
  std::tuple<std::shared_ptr<Staging>, std::uint64_t, std::uint64_t, double> sample(std::uint32_t n, std::uint32_t stream, std::uint64_t batch, std::optional<double> timeout) {
    auto staging = std::make_shared<Staging>(sampler.plan().offsets(n).back());
    std::optional<Deadline> deadline;
    for (;;) {
      SampleState state;
      SampleStatus status;
      {
        nb::gil_scoped_release release;
        status = sampler.sample(n, staging->data(), stream, batch, &state);
      }
      if (status == SampleStatus::ok) return {staging, state.live_steps, state.needed, state.total};
      if (!deadline) deadline.emplace(timeout);
      const std::uint64_t slice = deadline->slice();
      if (slice == 0) return {nullptr, state.live_steps, state.needed, state.total};
      nb::gil_scoped_release release;
      sampler.wait_rows(slice);
    }
  }

  std::tuple<std::shared_ptr<Staging>, std::uint64_t> read(nb::object keys, std::uint32_t n) {
    const Bytes held(keys, n * sizeof(std::uint64_t), "keys");
    auto staging = std::make_shared<Staging>(sampler.plan().offsets(n).back());
    std::uint64_t stale_at = 0;
    nb::gil_scoped_release release;
    const bool ok = sampler.read(held.as<std::uint64_t>(), n, staging->data(), &stale_at);
    return {ok ? staging : nullptr, stale_at};
  }

  Sampler sampler;
};

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
  std::vector<std::uint32_t> find(const std::vector<double>& masses) const {
    std::vector<std::uint32_t> leaves(masses.size());
    tree.find(masses.data(), static_cast<std::uint32_t>(masses.size()), leaves.data());
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
                                               "ReadOnlyStore", "StaleKey", "NameTaken", "CapacityError", "UnsupportedPlatform"};
    nb::object type = nb::module_::import_("conduit_store.errors").attr(kClasses[static_cast<int>(e.code)]);
    PyErr_SetString(type.ptr(), e.what());
  }
}

int staging_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* staging = nb::inst_ptr<Staging>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, staging->data(), static_cast<Py_ssize_t>(staging->bytes()), 0, flags);
}

PyType_Slot staging_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(staging_buffer)}, {0, nullptr}};

}  // namespace

NB_MODULE(CONDUIT_MODULE_NAME, m) {
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  using release = nb::call_guard<nb::gil_scoped_release>;

  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("FINGERPRINT") = fingerprint();
  m.attr("MAX_TABLE_SLOTS") = kSlotMask;
  m.def("fixed_control_bytes", &control_fixed_bytes, "max_processes"_a, "max_tables"_a);
  m.def("format_control", &format_control, "control_fd"_a, "control_bytes"_a, "data_bytes"_a, "max_processes"_a, "max_tables"_a, "name"_a);
  m.def("table_bytes", [](const TableSpec& s) { return std::make_tuple(TableCore::control_bytes(s), s.block_bytes * s.n_blocks); });
  m.def("now_ns", &now_ns);
  // Position of the first of n float32 that is not finite or is negative; n if there is none.
  m.def("first_bad_priority", [](nb::object priorities, std::uint64_t n) {
    const Bytes held(priorities, n * sizeof(float), "priorities");
    const float* p = held.as<float>();
    bool good = true;
    for (std::uint64_t i = 0; i < n; ++i) good &= p[i] >= 0.0f && p[i] <= std::numeric_limits<float>::max();
    std::uint64_t at = good ? n : 0;
    while (at < n && p[at] >= 0.0f && p[at] <= std::numeric_limits<float>::max()) ++at;
    return at;
  }, "priorities"_a, "n"_a);
  m.def("staging_kept_bytes", [] { return staging_pool().kept(); });

  nb::class_<TableSpec>(m, "TableSpec")
      .def("__init__", [](TableSpec* self, const std::string& name, nb::bytes spec, const std::vector<std::uint64_t>& offsets, const std::vector<std::uint64_t>& row_bytes,
                          std::uint64_t max_size, std::uint32_t rows_per_block, std::uint32_t n_blocks, std::uint64_t block_bytes, std::uint32_t steps_after, bool prioritized,
                          double alpha, double beta, double eps, std::uint64_t min_size, std::uint64_t seed) {
             new (self) TableSpec(make_spec(name, spec, offsets, row_bytes, max_size, rows_per_block, n_blocks, block_bytes, steps_after, prioritized, alpha, beta, eps, min_size, seed));
           },
           "name"_a, "spec"_a, "offsets"_a, "row_bytes"_a, "max_size"_a, "rows_per_block"_a, "n_blocks"_a, "block_bytes"_a, "steps_after"_a, "prioritized"_a, "alpha"_a,
           "beta"_a, "eps"_a, "min_size"_a, "seed"_a);

  nb::class_<Staging>(m, "Staging", nb::type_slots(staging_slots)).def_prop_ro("bytes", &Staging::bytes);
  nb::class_<Pin>(m, "Pin", nb::is_weak_referenceable());

  nb::class_<PyAttachment>(m, "Attachment")
      .def(nb::init<int, int, bool>(), "control_fd"_a, "data_fd"_a, "writable"_a)
      .def("close", [](PyAttachment& a) { a.process->close(); })
      .def("check", [](PyAttachment& a) { a.process->check(); })
      .def_prop_ro("closed", [](PyAttachment& a) { return a.process->closed(); })
      .def_prop_ro("slot", [](PyAttachment& a) { return a.process->slot(); })
      .def_prop_ro("forks", [](PyAttachment& a) { return a.process->forks(); })
      .def_prop_ro("writable", [](PyAttachment& a) { return a.process->segments().writable(); })
      .def_prop_ro("name", [](PyAttachment& a) { return std::string(a.process->segments().header().name); })
      .def("tables", &PyAttachment::tables)
      .def("processes", &PyAttachment::processes)
      .def("populate", [](PyAttachment& a, std::uint64_t offset, std::uint64_t bytes) { a.process->segments().populate(offset, bytes); }, "offset"_a, "bytes"_a, release())
      .def("create_table", [](PyAttachment& a, int control_fd, int data_fd, const TableSpec& spec) { return TableCore::create(*a.process, control_fd, data_fd, spec); },
           "control_fd"_a, "data_fd"_a, "spec"_a, release());

  nb::class_<PyTable>(m, "Table")
      .def(nb::init<const PyAttachment&, std::uint32_t>(), "attachment"_a, "index"_a)
      .def_prop_ro("name", [](PyTable& t) { return std::string(t.core->shared().name); })
      .def_prop_ro("spec", [](PyTable& t) {
        const Table& s = t.core->shared();
        return nb::bytes(t.core->process().segments().control_at<char>(s.spec_offset), s.spec_bytes);
      })
      .def_prop_ro("seed", [](PyTable& t) { return t.core->shared().seed; })
      .def_prop_ro("data_offset", [](PyTable& t) { return t.core->shared().data_offset; })
      .def_prop_ro("data_bytes", [](PyTable& t) { return t.core->shared().data_bytes; })
      .def_prop_ro("control_bytes", [](PyTable& t) { return t.core->shared().end_offset - t.core->shared().spec_offset; })
      .def_prop_ro("alpha", [](PyTable& t) { return t.core->shared().alpha.load(); })
      .def_prop_ro("beta", [](PyTable& t) { return t.core->shared().beta.load(); })
      .def_prop_ro("eps", [](PyTable& t) { return t.core->shared().eps.load(); })
      .def_prop_ro("min_size", [](PyTable& t) { return t.core->shared().min_size.load(); })
      .def("next_stream", [](PyTable& t) { return static_cast<std::uint32_t>(t.core->shared().streams.fetch_add(1)); })
      .def("steps", [](PyTable& t) { return t.core->steps(); }, release())
      .def("clear", [](PyTable& t) { t.core->clear(); }, release())
      .def("verify", [](PyTable& t) { return t.core->verify(); }, release())
      .def("live_blocks", [](PyTable& t) { return t.core->live_blocks(); }, release())
      .def("configure", [](PyTable& t, double alpha, double beta, double eps, std::uint64_t min_size) { t.core->configure(alpha, beta, eps, min_size); },
           "alpha"_a, "beta"_a, "eps"_a, "min_size"_a, release())
      .def("info", [](PyTable& t) {
        TableInfo info;
        {
          nb::gil_scoped_release free;
          info = t.core->info();
        }
        return info_dict(info);
      })
      .def("update", [](PyTable& t, nb::object keys, nb::object priorities, std::uint64_t n) {
        const Bytes k(keys, n * sizeof(std::uint64_t), "keys"), p(priorities, n * sizeof(float), "priorities");
        nb::gil_scoped_release free;
        const UpdateCount count = t.core->update(k.as<std::uint64_t>(), p.as<float>(), n);
        return std::make_tuple(count.applied, count.stale);
      }, "keys"_a, "priorities"_a, "n"_a)
      .def("priorities", [](PyTable& t, nb::object keys, std::uint64_t n) {
        const Bytes k(keys, n * sizeof(std::uint64_t), "keys");
        nb::gil_scoped_release free;
        return t.core->priorities(k.as<std::uint64_t>(), n);
      }, "keys"_a, "n"_a)
      // (pin, first live row, end of live rows, generation, address of the block's bytes)
      .def("pin_block", [](PyTable& t, std::uint32_t block) {
        std::uint32_t first, last, entry;
        std::uint64_t generation;
        {
          nb::gil_scoped_release free;
          entry = t.core->pin_block(block, &first, &last, &generation);
        }
        return std::make_tuple(std::make_shared<Pin>(t.core->process_handle(), entry), first, last, generation, reinterpret_cast<std::uint64_t>(t.core->block_data(block)));
      }, "block"_a);

  nb::class_<PyWriter>(m, "Writer")
      .def("__init__", [](PyWriter* self, const PyTable& table, std::uint32_t chains, const std::vector<std::tuple<std::string, std::string, std::vector<std::int64_t>>>& columns, int terminated, int truncated) {
             new (self) PyWriter(table, chains, RowColumn::make(columns), terminated, truncated);
           }, "table"_a, "chains"_a, "columns"_a, "terminated"_a, "truncated"_a)
      .def("append_row", &PyWriter::append_row, "row"_a, "priority"_a.none(), "timeout"_a.none())
      .def("append_rows", &PyWriter::append_rows, "n"_a, "columns"_a, "flags"_a.none(), "priorities"_a.none(), "chains"_a.none(), "timeout"_a.none())
      .def_rw("ended", &PyWriter::ended)
      .def("chain_open", [](PyWriter& w, std::uint32_t chain) { return w.writer.chain_open(chain); }, "chain"_a)
      .def_prop_ro("holders", &PyWriter::holders)
      .def_prop_ro("closed", [](PyWriter& w) { return w.writer.closed(); })
      .def("check", [](PyWriter& w) { w.writer.check(); })
      .def("close", [](PyWriter& w) { w.writer.close(); });

  nb::class_<PySampler>(m, "Sampler")
      .def(nb::init<const PyTable&, const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>&, std::uint32_t, double, bool>(), "table"_a, "outputs"_a, "steps"_a, "gamma"_a, "double_reward"_a)
      .def("offsets", [](PySampler& s, std::uint64_t n) { return s.sampler.plan().offsets(n); }, "n"_a)
      .def("sample", &PySampler::sample, "n"_a, "stream"_a, "batch"_a, "timeout"_a.none())
      .def("read", &PySampler::read, "keys"_a, "n"_a);

  nb::class_<PySumTree>(m, "SumTree")
      .def(nb::init<std::uint64_t>(), "leaves"_a)
      .def("update", &PySumTree::update, "leaves"_a, "values"_a)
      .def("find", &PySumTree::find, "masses"_a)
      .def("total", [](PySumTree& t) { return t.tree.total(); })
      .def("range_sum", [](PySumTree& t, std::uint64_t first, std::uint64_t last) { return t.tree.range_sum(first, last); }, "first"_a, "last"_a)
      .def("consistent", [](PySumTree& t) { return t.tree.consistent(); });

#ifdef CONDUIT_FAILPOINTS
  m.def("failpoint_names", &failpoint_names);
  m.def("failpoint_hits", &failpoint_hits, "name"_a);
  m.def("failpoint_resume", &failpoint_resume);
  m.def("failpoint_arm", [](const std::string& name, const std::string& action, long nth) {
    failpoint_arm(name, action == "kill" ? FailAction::kill : action == "stop" ? FailAction::stop : FailAction::pause, nth);
  }, "name"_a, "action"_a, "nth"_a);
#endif
}

}  // namespace conduit
