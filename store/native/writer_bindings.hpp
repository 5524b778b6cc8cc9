// A writer for Python: rows given as arrays or one by one, and the waits of appends.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "row_reader.hpp"
#include "table_bindings.hpp"
#include "writer.hpp"

namespace conduit {
namespace {

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

void bind_writer(nb::module_& m) {
  m.def("first_bad_priority", [](nb::object priorities, std::uint64_t n) {
    const Bytes held(priorities, n * sizeof(float), "priorities");
    return first_bad_priority(held.as<float>(), n);
  }, "priorities"_a, "n"_a);
  // Whether each of a list is a contiguous array (length, *shape) of this dtype.str, without its byte order.
  m.def("rows_fit", [](nb::list rows, const std::string& dtype, const std::vector<std::int64_t>& shape) {
    return RowReader::fits(rows, RowColumn::make({{"", dtype, shape}}, nb::dict()).front());
  }, "rows"_a, "dtype"_a, "shape"_a);

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
}

}  // namespace
}  // namespace conduit
