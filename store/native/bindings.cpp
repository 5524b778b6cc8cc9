// The module that Python imports. Python appears here, in the headers that this file includes, and nowhere else in the core: each
// *_bindings.hpp is one subject, and part of this file.
#include <cerrno>
#include <cstring>
#include <string>

#include "attachment_bindings.hpp"
#include "binding_support.hpp"
#include "buffer_bindings.hpp"
#include "category_bindings.hpp"
#include "checkpoint_bindings.hpp"
#include "codec.hpp"
#include "disk_bindings.hpp"
#include "disk_writer.hpp"
#include "loader_bindings.hpp"
#include "plan_bindings.hpp"
#include "queue_bindings.hpp"
#include "reader_bindings.hpp"
#include "spec_bindings.hpp"
#include "table_bindings.hpp"
#include "test_bindings.hpp"
#include "writer_bindings.hpp"

#ifndef CONDUIT_MODULE_NAME
#define CONDUIT_MODULE_NAME _native
#endif

namespace conduit {
namespace {

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

}  // namespace

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

  bind_specs(m);
  bind_buffers(m);
  bind_attachment(m);
  bind_pins(m);
  nb::class_<PyTable> table(m, "Table");
  bind_table(table);
  bind_queue_table(table);
  bind_saved_table(table);
  bind_categories(table);
  bind_disk(table);
  bind_queues(m);
  bind_checkpoints(m);
  bind_writer(m);
  bind_plan(m);
  bind_reader(m);
  bind_loader(m);
  bind_tests(m);
}

}  // namespace conduit
