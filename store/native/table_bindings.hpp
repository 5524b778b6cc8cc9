// A table for Python: counts, priorities, pinned blocks. What it can do as a queue, with categories, on disk and for checkpoints is
// in files of its own.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "attachment_bindings.hpp"
#include "pages.hpp"
#include "table.hpp"

namespace conduit {
namespace {

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

void bind_pins(nb::module_& m) {
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
}

void bind_table(nb::class_<PyTable>& table) {
  table
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
      // (1 where the row is live, flags, keys of the rows that follow, the largest uint64 where there is none, numbers of the rows in their
      // episodes, uint32, or none where the table does not keep them)
      .def("links", [](PyTable& t, nb::object keys, std::uint64_t n) {
        const Bytes k(keys, n * sizeof(std::uint64_t), "keys");
        std::vector<std::uint8_t> live, flags;
        std::vector<std::uint64_t> next;
        std::vector<std::uint32_t> steps;
        t.unlocked([&](TableCore& c) { c.links(k.as<std::uint64_t>(), n, &live, &flags, &next, &steps); });
        return std::make_tuple(nb::bytes(reinterpret_cast<const char*>(live.data()), n), nb::bytes(reinterpret_cast<const char*>(flags.data()), n), nb::bytes(reinterpret_cast<const char*>(next.data()), n * sizeof(std::uint64_t)),
                               nb::bytes(reinterpret_cast<const char*>(steps.data()), steps.size() * sizeof(std::uint32_t)));
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
}

}  // namespace
}  // namespace conduit
