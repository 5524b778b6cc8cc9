// DLPack capsules over a staging buffer: the cheapest way into torch, half the price of a NumPy array and a tensor of it.
// The structs are the C ABI of DLPack (github.com/dmlc/dlpack), unversioned form. Part of the bindings.
#pragma once

#include <nanobind/nanobind.h>

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

// One array within a buffer. `kind` and `item` as NumPy names dtypes; shape without the leading rows.
struct Field {
  std::uint64_t offset = 0;
  DLDataType dtype{};
  std::vector<std::int64_t> shape;
};

struct Export {  // owns what the tensor points to
  DLManagedTensor managed;
  std::shared_ptr<Staging> staging;
  std::vector<std::int64_t> dims;  // shape, then strides
};

inline DLDataType dlpack_type(char kind, std::size_t item) {
  const std::uint8_t code = kind == 'i' ? 0 : kind == 'u' ? 1 : kind == 'f' ? 2 : 6;  // kDLInt, UInt, Float, Bool
  return {code, static_cast<std::uint8_t>(item * 8), 1};
}

// A new "dltensor" capsule for `n` rows of `field`. The buffer lives until the consumer's last tensor has died. Called with
// the interpreter's lock; the deleter takes it, since consumers may free tensors in threads without it.
inline nanobind::object dlpack_capsule(const std::shared_ptr<Staging>& staging, const Field& field, std::int64_t n) {
  auto* e = new Export{{}, staging, {}};
  const auto ndim = static_cast<std::int32_t>(field.shape.size() + 1);
  e->dims.push_back(n);
  e->dims.insert(e->dims.end(), field.shape.begin(), field.shape.end());
  e->dims.resize(static_cast<std::size_t>(ndim) * 2, 1);
  std::int64_t* strides = e->dims.data() + ndim;
  for (std::int32_t d = ndim - 1; d-- > 0;) strides[d] = strides[d + 1] * e->dims[static_cast<std::size_t>(d) + 1];
  e->managed.tensor = {staging->data() + field.offset, {1, 0}, ndim, field.dtype, e->dims.data(), strides, 0};
  e->managed.context = e;
  e->managed.deleter = [](DLManagedTensor* self) {
    const PyGILState_STATE state = PyGILState_Ensure();
    delete static_cast<Export*>(self->context);
    PyGILState_Release(state);
  };
  PyObject* capsule = PyCapsule_New(&e->managed, "dltensor", [](PyObject* object) {
    if (PyCapsule_IsValid(object, "dltensor") == 0) return;  // consumed: the consumer calls the deleter
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(object, "dltensor"));
    managed->deleter(managed);
  });
  if (capsule == nullptr) {
    delete e;
    throw nanobind::python_error();
  }
  return nanobind::steal(capsule);
}

}  // namespace conduit
