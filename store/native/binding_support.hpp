// What every part of the bindings stands on: waits that let Ctrl-C through, buffers that are held for a call, handles that let go of
// the process slot. Arguments arrive checked for dtype and shape by conduit_store; sizes are checked again in the bindings, because a
// wrong one would corrupt shared memory.
//
// Part of the bindings, as all *_bindings.hpp: included by bindings.cpp only.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "error.hpp"
#include "process.hpp"
#include "sync.hpp"

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

}  // namespace
}  // namespace conduit
