// Batches' memory for Python: buffers, and tensors over them.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "batch_object.hpp"
#include "binding_support.hpp"
#include "dlpack.hpp"
#include "scalars.hpp"
#include "staging.hpp"

namespace conduit {
namespace {

int staging_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* staging = nb::inst_ptr<Staging>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, staging->data(), static_cast<Py_ssize_t>(staging->bytes()), 0, flags);
}

PyType_Slot staging_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(staging_buffer)}, {0, nullptr}};

void bind_buffers(nb::module_& m) {
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
  // A buffer of a batch's own with a copy of `data`.
  m.def("staging", [](nb::object data) {
    const Bytes held(data, "data");
    auto staging = std::make_shared<Staging>(staging_class(held.size()));
    if (held.size() > 0) memcpy(staging->data(), held.as<void>(), held.size());
    return staging;
  }, "data"_a);
  m.def("staging_kept_bytes", [] { return staging_pool()->kept(); });
  // `n` numbers of a column that is rewritten, in a block that the caller holds
  m.def("copy_scalars", [](std::uintptr_t address, std::uint64_t n, std::uint64_t bytes) {
    std::vector<std::byte> copied(n * bytes);
    copy_scalars(reinterpret_cast<const std::byte*>(address), n, bytes, copied.data());
    return nb::bytes(reinterpret_cast<const char*>(copied.data()), copied.size());
  }, "address"_a, "n"_a, "bytes"_a);
}

}  // namespace
}  // namespace conduit
