// Tensors over a staging buffer, by DLPack: half the price of a NumPy array and a tensor of it. Where the library says how
// (torch 2.10 and later: `Tensor.__dlpack_c_exchange_api__`), its C function is called for each; else capsules go through a
// function in Python. The structs are the C ABI of DLPack (github.com/dmlc/dlpack). Part of the bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "staging.hpp"

namespace conduit {

struct DLDevice {
  std::int32_t type, id;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
struct DLVersion {
  std::uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLVersion version;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor tensor;
};
struct DLExchangeApi {
  DLVersion version;
  DLExchangeApi* older;  // null, or of another major version
  void *allocator, *from_object;
  int (*to_object)(DLManagedTensorVersioned*, void** object);  // -1: with a Python exception
};

// One array within a buffer, of all its rows.
struct Field {
  std::uint64_t offset = 0;
  DLDataType dtype{};
  std::vector<std::int64_t> dims;  // shape, then strides in elements
};

// The arrays of one batch. Owned by all tensors too, whose shapes lie here: it holds nothing of Python's.
using Fields = std::vector<Field>;

inline DLDataType dlpack_type(char kind, std::size_t item) {  // as NumPy names dtypes
  const std::uint8_t code = kind == 'i' ? 0 : kind == 'u' ? 1 : kind == 'f' ? 2 : 6;  // kDLInt, UInt, Float, Bool
  return {code, static_cast<std::uint8_t>(item * 8), 1};
}

inline Field make_field(std::int64_t n, std::uint64_t offset, DLDataType dtype, const std::vector<std::int64_t>& row_shape) {
  Field field{offset, dtype, {n}};
  field.dims.insert(field.dims.end(), row_shape.begin(), row_shape.end());
  const std::size_t ndim = field.dims.size();
  field.dims.resize(ndim * 2, 1);
  for (std::size_t d = ndim - 1; d-- > 0;) field.dims[ndim + d] = field.dims[ndim + d + 1] * field.dims[d + 1];
  return field;
}

// What the tensors of one batch own together: the last of them gives the buffer back, in whatever thread, with or without the
// interpreter's lock.
template <class Managed>
class Exports {
 public:
  static Exports* make(std::shared_ptr<Staging> staging, std::shared_ptr<const Fields> fields) {
    return new Exports(std::move(staging), std::move(fields));
  }
  // The tensor of field `k`; whoever gets it calls its deleter once. At most once a field.
  Managed* tensor(std::size_t k) {
    const Field& field = (*fields_)[k];
    Managed& m = managed_[k];
    auto* dims = const_cast<std::int64_t*>(field.dims.data());  // nobody writes there
    const std::size_t ndim = field.dims.size() / 2;
    m.tensor = {staging_->data() + field.offset, {1, 0}, static_cast<std::int32_t>(ndim), field.dtype, dims, dims + ndim, 0};
    m.context = this;
    m.deleter = [](Managed* self) { static_cast<Exports*>(self->context)->let_go(); };
    if constexpr (requires { m.version; }) m.version = {1, 0};
    held_.fetch_add(1, std::memory_order_relaxed);
    return &m;
  }
  void let_go() {
    // release, acquire: what a consumer did with its tensor comes before whatever is done with the buffer next
    if (held_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  Exports(std::shared_ptr<Staging> staging, std::shared_ptr<const Fields> fields)
      : staging_(std::move(staging)), fields_(std::move(fields)), managed_(std::make_unique<Managed[]>(fields_->size())) {}

  std::shared_ptr<Staging> staging_;
  std::shared_ptr<const Fields> fields_;
  std::unique_ptr<Managed[]> managed_;
  std::atomic<std::uint32_t> held_{1};  // tensors, and whoever is making some
};

// Makes tensors of some library: `api` is what its tensors have as `__dlpack_c_exchange_api__`, or None; `from_dlpack` its function
// that takes a capsule. Called with the interpreter's lock.
class TensorMaker {
 public:
  TensorMaker(nanobind::object api, nanobind::object from_dlpack) : from_dlpack_(std::move(from_dlpack)) {
    if (!PyCapsule_IsValid(api.ptr(), kApi)) return;
    auto* found = static_cast<const DLExchangeApi*>(PyCapsule_GetPointer(api.ptr(), kApi));
    while (found != nullptr && found->version.major != 1) found = found->older;
    if (found != nullptr) to_object_ = found->to_object;  // valid as long as the process
  }

  // A dict of `fields` by their names, but those of `without`.
  nanobind::dict make(const std::shared_ptr<Staging>& staging, const std::shared_ptr<const Fields>& fields, const std::vector<nanobind::object>& names, nanobind::object without) const {
    nanobind::dict made;
    const bool all = PyTuple_CheckExact(without.ptr()) && PyTuple_GET_SIZE(without.ptr()) == 0;
    const auto each = [&](auto* exports, auto object_of) {
      const std::unique_ptr<std::remove_pointer_t<decltype(exports)>, void (*)(decltype(exports))> mine(exports, [](auto* e) { e->let_go(); });
      for (std::size_t k = 0; k < fields->size(); ++k) {
        if (!all) {
          const int left_out = PySequence_Contains(without.ptr(), names[k].ptr());
          if (left_out < 0) throw nanobind::python_error();
          if (left_out == 1) continue;
        }
        const nanobind::object tensor = object_of(exports->tensor(k));
        if (PyDict_SetItem(made.ptr(), names[k].ptr(), tensor.ptr()) != 0) throw nanobind::python_error();
      }
    };
    if (to_object_ != nullptr) each(Exports<DLManagedTensorVersioned>::make(staging, fields), [this](DLManagedTensorVersioned* tensor) {
      void* object = nullptr;
      if (to_object_(tensor, &object) != 0) throw nanobind::python_error();  // the tensor is the library's, also where it fails
      return nanobind::steal(static_cast<PyObject*>(object));
    });
    else each(Exports<DLManagedTensor>::make(staging, fields), [this](DLManagedTensor* tensor) { return from_dlpack_(capsule(tensor)); });
    return made;
  }

 private:
  static constexpr const char* kApi = "dlpack_exchange_api";

  static nanobind::object capsule(DLManagedTensor* tensor) {
    PyObject* made = PyCapsule_New(tensor, "dltensor", [](PyObject* object) {
      if (PyCapsule_IsValid(object, "dltensor") == 0) return;  // consumed: the consumer calls the deleter
      auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(object, "dltensor"));
      managed->deleter(managed);
    });
    if (made == nullptr) {
      tensor->deleter(tensor);
      throw nanobind::python_error();
    }
    return nanobind::steal(made);
  }

  int (*to_object_)(DLManagedTensorVersioned*, void**) = nullptr;
  nanobind::object from_dlpack_;
};

// What Python has of the fields of a batch: names, too.
struct NamedFields {
  std::shared_ptr<const Fields> fields;
  std::vector<nanobind::object> names;
};

}  // namespace conduit
