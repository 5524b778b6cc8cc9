// A process's attachment to a store, for Python: its tables, who is attached, new tables, spans.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "binding_support.hpp"
#include "table.hpp"

namespace conduit {
namespace {

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

void bind_attachment(nb::module_& m) {
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
}

}  // namespace
}  // namespace conduit
