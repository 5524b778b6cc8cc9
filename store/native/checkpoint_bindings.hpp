// Checkpoints for Python: the cut of a store, a table put back, the files' checksum. The numbers of a table travel as a dict
// that JSON can hold.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "crc32c.hpp"
#include "cut.hpp"
#include "disk_writer.hpp"
#include "part_file.hpp"
#include "queue.hpp"
#include "table_bindings.hpp"

namespace conduit {
namespace {

// A contiguous writable buffer of exactly `bytes` bytes.
class Room {
 public:
  Room(nb::handle object, std::uint64_t bytes) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    if (static_cast<std::uint64_t>(view_.len) == bytes) return;
    const auto got = static_cast<long long>(view_.len);
    PyBuffer_Release(&view_);
    fail(ErrorCode::config, "room for %lld bytes, %llu are needed", got, static_cast<unsigned long long>(bytes));
  }
  ~Room() { PyBuffer_Release(&view_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  std::byte* at() const { return static_cast<std::byte*>(view_.buf); }

 private:
  Py_buffer view_;
};

// Calls f(name, number) for every plain count that is saved.
template <class Saved, class F>
void each_count(Saved& s, F f) {
  f("births", s.births); f("writers", s.writers); f("samples", s.samples); f("steps_folded", s.steps_folded); f("evicted_early", s.evicted_early);
  f("sampled_rows", s.sampled_rows); f("sampled_batches", s.sampled_batches); f("updated", s.updated); f("stale_updates", s.stale_updates);
  f("discarded_batches", s.discarded_batches); f("blocks_opened", s.blocks_opened); f("used_up", s.used_up);
}

template <class Saved, class F>
void each_limit(Saved& s, F f) {
  f("min_size", s.min_size); f("ratio", s.ratio); f("shift", s.shift); f("inserts_before", s.inserts_before); f("era", s.era);
  f("capacity", s.capacity); f("max_times", s.max_times);
}

template <class Saved, class F>
void each_queue_number(Saved& q, F f) {
  f("now_ns", q.now_ns); f("stamp", q.stamp); f("fences", q.fences); f("policy_version", q.policy_version); f("ended", q.ended);
}

template <class Counts, class F>
void each_queue_count(Counts& c, F f) {
  f("delivered", c.delivered); f("acknowledged", c.acknowledged); f("redelivered", c.redelivered); f("stale_rows", c.stale_rows); f("dropped_rows", c.dropped_rows);
}

nb::dict saved_dict(const SavedTable& s, std::uint32_t n_views, std::uint32_t groups) {
  nb::dict d, counts, limits;
  each_count(s, [&](const char* name, auto value) { counts[name] = value; });
  each_limit(s.settings, [&](const char* name, auto value) { limits[name] = value; });
  if (s.settings.error_buffer <= kMaxErrorBuffer) limits["error_buffer"] = s.settings.error_buffer;
  else limits["error_buffer"] = nb::none();  // infinite: JSON has no number for it
  d["counts"] = counts;
  d["limits"] = limits;
  nb::list views, streams;
  for (std::uint32_t v = 0; v < n_views; ++v) {
    nb::dict view;
    view["alpha"] = s.settings.views[v].alpha;
    view["beta"] = s.settings.views[v].beta;
    view["eps"] = s.settings.views[v].eps;
    view["epoch"] = s.epochs[v];
    view["batches"] = s.batches[v];
    views.append(view);
  }
  d["views"] = views;
  for (const SavedStream& stream : s.streams) {
    nb::list entry;
    entry.append(stream.view);
    entry.append(stream.stream);
    entry.append(stream.delivered);
    streams.append(entry);
  }
  d["streams"] = streams;
  if (groups == 0) return d;
  nb::dict queue;
  each_queue_number(s.queue, [&](const char* name, auto value) { queue[name] = value; });
  nb::list of_groups;
  for (std::uint32_t g = 0; g < groups; ++g) {
    nb::dict group;
    group["grouped"] = s.queue.grouped[g];
    each_queue_count(s.queue.counters[g], [&](const char* name, auto value) { group[name] = value; });
    of_groups.append(group);
  }
  queue["groups"] = of_groups;
  d["queue"] = queue;
  return d;
}

SavedTable saved_from(nb::dict d, const TableCore& core) {
  SavedTable s;
  const auto get = [](nb::handle from, const char* name, auto& value) { value = nb::cast<std::remove_reference_t<decltype(value)>>(from[name]); };
  const nb::object counts = d["counts"], limits = d["limits"];
  each_count(s, [&](const char* name, auto& value) { get(counts, name, value); });
  each_limit(s.settings, [&](const char* name, auto& value) { get(limits, name, value); });
  if (nb::object buffer = limits["error_buffer"]; !buffer.is_none()) s.settings.error_buffer = nb::cast<double>(buffer);
  else s.settings.error_buffer = std::numeric_limits<double>::infinity();
  const nb::list views = nb::cast<nb::list>(d["views"]);
  if (nb::len(views) != core.n_views()) fail(ErrorCode::damaged, "%zu windows are saved, table '%s' has %u", nb::len(views), core.shared().name, core.n_views());
  for (std::uint32_t v = 0; v < core.n_views(); ++v) {
    get(views[v], "alpha", s.settings.views[v].alpha);
    get(views[v], "beta", s.settings.views[v].beta);
    get(views[v], "eps", s.settings.views[v].eps);
    get(views[v], "epoch", s.epochs[v]);
    get(views[v], "batches", s.batches[v]);
  }
  for (nb::handle entry : nb::cast<nb::list>(d["streams"])) {
    const auto [view, stream, delivered] = nb::cast<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>(entry);
    s.streams.push_back({view, stream, delivered});
  }
  if (core.queue() == nullptr) return s;
  const nb::object queue = d["queue"];
  each_queue_number(s.queue, [&](const char* name, auto& value) { get(queue, name, value); });
  const nb::list groups = nb::cast<nb::list>(queue["groups"]);
  if (nb::len(groups) != core.queue()->state().groups) fail(ErrorCode::damaged, "%zu consumers are saved, queue '%s' has %u", nb::len(groups), core.shared().name, core.queue()->state().groups);
  for (std::uint32_t g = 0; g < nb::len(groups); ++g) {
    get(groups[g], "grouped", s.queue.grouped[g]);
    each_queue_count(s.queue.counters[g], [&](const char* name, auto& value) { get(groups[g], name, value); });
  }
  return s;
}

// Puts an empty table back: `arrays` has one of `rows` numbers for each that the table keeps, by its RowPart and the number of
// its view or consumer group.
void restore_table(TableCore& core, nb::dict state, nb::object blocks, std::uint64_t rows, nb::dict arrays) {
  SavedTable s = saved_from(std::move(state), core);
  const Table& t = core.shared();
  const Bytes held_blocks(blocks, t.n_blocks * sizeof(SavedBlock), "blocks");
  s.blocks.assign(held_blocks.as<SavedBlock>(), held_blocks.as<SavedBlock>() + t.n_blocks);
  s.rows = rows;
  std::vector<std::unique_ptr<Bytes>> held;
  const auto take = [&](RowPart part, std::uint32_t which, auto& to) {
    held.push_back(std::make_unique<Bytes>(arrays[nb::make_tuple(static_cast<std::uint32_t>(part), which)], rows * bytes_of(part), "a number of each row"));
    to = held.back()->as<std::remove_const_t<std::remove_pointer_t<std::remove_reference_t<decltype(to)>>>>();
  };
  take(RowPart::flags, 0, s.flags);
  if (t.links != 0) take(RowPart::previous, 0, s.previous);
  if (t.steps_offset != 0) take(RowPart::step, 0, s.steps);
  if (t.uses_offset != 0) take(RowPart::uses, 0, s.uses);
  for (std::uint32_t v = 0; v < core.n_views(); ++v) {
    if (core.view(v).prioritized()) take(RowPart::raw, v, s.raw[v]);
    if (core.view(v).marked()) take(RowPart::mark, v, s.marks[v]);
  }
  if (core.queue() != nullptr) {
    take(RowPart::stamp, 0, s.stamps);
    for (std::uint32_t g = 0; g < core.queue()->state().groups; ++g) take(RowPart::word, g, s.words[g]);
  }
  nb::gil_scoped_release release;
  core.restore(s);
}

// Values of a column for rows whose place is given: of a table that nobody else uses yet.
void place_rows(TableCore& core, std::uint32_t column, const std::uint32_t* slots, const std::byte* values, std::uint64_t n) {
  const Table& t = core.shared();
  const Column& c = core.columns()[column];
  for (std::uint64_t i = 0; i < n; ++i) {
    if (slots[i] >= t.n_blocks * t.rows_per_block) fail(ErrorCode::damaged, "row %u of %u", slots[i], t.n_blocks * t.rows_per_block);
  }
  core.reach_disk([&] {
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint32_t b = core.block_of(slots[i]);
      memcpy(core.block_data(b) + c.block_offset + (slots[i] - b * t.rows_per_block) * c.row_bytes, values + i * c.row_bytes, c.row_bytes);
    }
  });
}

using PartExtent = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // offset in the file, bytes, offset in the table's rows

std::uint32_t read_part(int fd, std::uint64_t bytes, const PyTable* table, const std::vector<PartExtent>& extents, int data_fd) {
  std::vector<Extent> places;
  std::shared_ptr<TableCore> core;
  if (!extents.empty()) {
    if (table == nullptr) fail(ErrorCode::config, "rows of a file, and no table to put them into");
    core = table->get();
  }
  std::uint64_t at = 0;
  for (const auto& [offset, size, to] : extents) {
    const std::uint64_t room = core->shared().block_bytes * core->shared().n_blocks;
    if (offset < at || size > bytes || offset > bytes - size || size > room || to > room - size) fail(ErrorCode::damaged, "rows lie outside the file or the table, or twice in it");
    places.push_back(core->extent(offset, size, to, data_fd));
    at = offset + size;
  }
  nb::gil_scoped_release release;
  return read_summed(fd, bytes, places);
}

std::uint64_t rows_of(const Cut& cut, std::uint32_t table, std::size_t from, std::size_t to) {
  const std::vector<SavedBlock>& blocks = cut.saved(table).blocks;
  if (from > to || to > blocks.size()) fail(ErrorCode::config, "blocks %zu to %zu of %zu", from, to, blocks.size());
  std::uint64_t rows = 0;
  for (std::size_t k = from; k < to; ++k) rows += blocks[k].count - blocks[k].first;
  return rows;
}

void bind_checkpoints(nb::module_& m) {
  m.def("crc32c", [](nb::object data, std::uint32_t crc) {
    Py_buffer view;
    if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    {
      nb::gil_scoped_release release;
      crc = crc32c(crc, view.buf, static_cast<std::size_t>(view.len));
    }
    PyBuffer_Release(&view);
    return crc;
  }, "data"_a, "crc"_a = 0);
  m.def("read_part", &read_part, "fd"_a, "bytes"_a, "table"_a.none(), "extents"_a, "data_fd"_a);
  nb::class_<DiskWriter>(m, "DiskWriter")
      .def(nb::init<>())
      .def("open", &DiskWriter::open, "fd"_a, "name"_a)
      .def("write", [](DiskWriter& d, std::uint32_t file, nb::object data) {
        const Bytes bytes(data, "data");
        nb::gil_scoped_release release;
        d.write(file, bytes.as<std::byte>(), bytes.size());
      }, "file"_a, "data"_a)
      .def("close", &DiskWriter::close, nb::call_guard<nb::gil_scoped_release>(), "file"_a)
      .def("finish", &DiskWriter::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("stop", &DiskWriter::stop, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Cut>(m, "Cut")
      .def("__init__", [](Cut* self, const PyAttachment& attachment, const std::vector<const PyTable*>& tables) {
        std::vector<std::shared_ptr<TableCore>> cores;
        for (const PyTable* table : tables) cores.push_back(table->get());
        const auto process = attachment.get();
        nb::gil_scoped_release release;
        new (self) Cut(process, std::move(cores));
      }, "attachment"_a, "tables"_a)
      .def("state", [](const Cut& c, std::uint32_t i) {
        const TableCore& core = c.core(i);
        return saved_dict(c.saved(i), core.n_views(), core.queue() == nullptr ? 0 : core.queue()->state().groups);
      }, "table"_a)
      .def("blocks", [](const Cut& c, std::uint32_t i) {
        const std::vector<SavedBlock>& blocks = c.saved(i).blocks;
        return nb::bytes(reinterpret_cast<const char*>(blocks.data()), blocks.size() * sizeof(SavedBlock));
      }, "table"_a)
      .def("rows", &Cut::rows, "table"_a)
      .def("keeps", [](const Cut& c, std::uint32_t i, std::uint32_t part, std::uint32_t which) { return c.keeps(i, static_cast<RowPart>(part), which); }, "table"_a, "part"_a, "which"_a)
      // One number of each row of blocks [from, to), as numbered in `blocks`; and a column of them.
      .def("fill", [](const Cut& c, std::uint32_t i, std::uint32_t part, std::uint32_t which, std::size_t from, std::size_t to, nb::object out) {
        if (!c.keeps(i, static_cast<RowPart>(part), which)) fail(ErrorCode::config, "table '%s' keeps no such number of each row", c.core(i).shared().name);
        const Room room(out, rows_of(c, i, from, to) * c.width(i, static_cast<RowPart>(part), which));
        nb::gil_scoped_release release;
        c.fill(i, static_cast<RowPart>(part), which, from, to, room.at());
      }, "table"_a, "part"_a, "which"_a, "from_"_a, "to"_a, "out"_a)
      .def("gather", [](const Cut& c, std::uint32_t i, std::uint32_t column, std::size_t from, std::size_t to, nb::object out) {
        if (column >= c.core(i).shared().n_columns) fail(ErrorCode::config, "column %u", column);
        const Room room(out, rows_of(c, i, from, to) * c.core(i).columns()[column].row_bytes);
        nb::gil_scoped_release release;
        c.gather(i, column, from, to, room.at());
      }, "table"_a, "column"_a, "from_"_a, "to"_a, "out"_a)
      // (where a block's bytes are, what keeps them there). Where blocks move between memory and disk they are copied: a pin would keep
      // the block from writers for as long as the caller holds it, even when they have broken the hold.
      .def("block", [](const Cut& c, std::uint32_t i, std::uint32_t block) {
        TableCore& core = c.core(i);
        if (block >= core.shared().n_blocks) fail(ErrorCode::config, "block %u of %u", block, core.shared().n_blocks);
        if (!core.tiered()) return nb::make_tuple(reinterpret_cast<std::uint64_t>(core.block_data(block)), nb::none());
        std::shared_ptr<Staging> copied;
        {
          nb::gil_scoped_release release;
          const Pin pin(core.process_handle(), core.disk(), core.keep_in_place(block));
          copied = core.copy_block(block);
        }
        return nb::make_tuple(reinterpret_cast<std::uint64_t>(copied->data()), copied);
      }, "table"_a, "block"_a)
      // How long the locks of all tables were held.
      .def_prop_ro("locked_ns", &Cut::locked_ns)
      // Where in the block the parts of its values begin.
      .def("starts", [](const Cut& c, std::uint32_t i, std::uint32_t block) {
        const RaggedBlocks& ragged = c.core(i).ragged();
        if (block >= c.core(i).shared().n_blocks) fail(ErrorCode::config, "block %u of %u", block, c.core(i).shared().n_blocks);
        return std::vector<std::uint64_t>(ragged.starts(block), ragged.starts(block) + ragged.n());
      }, "table"_a, "block"_a)
      .def("written", &Cut::written, "table"_a, "birth"_a)
      .def("going_on", &Cut::going_on)
      .def("close", &Cut::close);
}

void bind_saved_table(nb::class_<PyTable>& table) {
  table
      .def("restore", [](PyTable& t, nb::dict state, nb::object blocks, std::uint64_t rows, nb::dict arrays) {
        restore_table(*t.get(), std::move(state), std::move(blocks), rows, std::move(arrays));
      }, "state"_a, "blocks"_a, "rows"_a, "arrays"_a)
      // Of a table that nobody else uses yet, before its rows are put there: which of the blocks lie in memory. And after.
      .def("lay_out", [](PyTable& t, nb::object blocks) {
        const Bytes given(blocks, "blocks");
        const auto* first = given.as<SavedBlock>();
        t.unlocked([&](TableCore& c) { c.lay_out({first, first + given.size() / sizeof(SavedBlock)}); });
      }, "blocks"_a)
      .def("laid_out", [](PyTable& t, nb::object blocks) {
        const Bytes given(blocks, "blocks");
        const auto* first = given.as<SavedBlock>();
        t.unlocked([&](TableCore& c) { c.laid_out({first, first + given.size() / sizeof(SavedBlock)}); });
      }, "blocks"_a)
      // Bytes of a block that was divided, from `at` on.
      .def("put", [](PyTable& t, std::uint32_t block, std::uint64_t at, nb::object values) {
        const Bytes from(values, "values");
        t.unlocked([&](TableCore& c) {
          const std::uint64_t room = block < c.shared().n_blocks ? c.ragged().span(block) * c.shared().block_bytes : 0;
          if (at > room || from.size() > room - at) fail(ErrorCode::damaged, "rows of table '%s' lie in no block of it", c.shared().name);
          c.reach_disk([&] { memcpy(c.block_data(block) + at, from.as<std::byte>(), from.size()); });
        });
      }, "block"_a, "at"_a, "values"_a)
      // Of a table that nobody else uses yet, before `restore`: a block whose rows vary in length, the blocks that it spans, and
      // where the parts of its values begin.
      .def("divide", [](PyTable& t, std::uint32_t block, std::uint32_t span, const std::vector<std::uint64_t>& starts) {
        const auto core = t.get();
        core->ragged().put(block, span, starts);
      }, "block"_a, "span"_a, "starts"_a)
      .def("place", [](PyTable& t, std::uint32_t column, nb::object slots, nb::object values, std::uint64_t n) {
        const auto core = t.get();
        if (column >= core->shared().n_columns) fail(ErrorCode::config, "column %u of %u", column, core->shared().n_columns);
        const Bytes at(slots, n * sizeof(std::uint32_t), "slots"), from(values, n * core->columns()[column].row_bytes, "values");
        nb::gil_scoped_release release;
        place_rows(*core, column, at.as<std::uint32_t>(), from.as<std::byte>(), n);
      }, "column"_a, "slots"_a, "values"_a, "n"_a)
      // The number of the first batch to draw from a random stream: 0, but for one that a checkpoint was taken of.
      .def("stream_first", [](PyTable& t, std::uint32_t view, std::uint32_t stream) { return t.get()->stream_first(view, stream); }, "view"_a, "stream"_a);
}

}  // namespace
}  // namespace conduit
