// The base of Python's Batch: a buffer, the format that says what lies where in it, and what was made of both. Made by the core
// as it delivers, without a frame of Python and without an object for the buffer, which comes into being when an array is asked for.
// No reference from here leads back to a batch (arrays hold the buffer), hence no garbage collection. Part of the bindings.
#pragma once

#include <nanobind/nanobind.h>
#include <structmember.h>

#include <memory>
#include <new>

#include "staging.hpp"

namespace conduit {

struct BatchObject {
  PyObject_HEAD
  PyObject* format;  // a BatchFormat
  PyObject* made;    // a dict of what was made of columns, or null
  PyObject* buffer;  // Python's object for `staging`, or null
  std::shared_ptr<Staging> staging;

  static BatchObject* of(nanobind::handle self) { return reinterpret_cast<BatchObject*>(self.ptr()); }

  // A batch of `type`, BatchBase or a class that inherits from it and adds nothing.
  static nanobind::object make(nanobind::handle type, std::shared_ptr<Staging> staging, nanobind::handle format) {
    auto* cls = reinterpret_cast<PyTypeObject*>(type.ptr());
    PyObject* made = allocate(cls, nullptr, nullptr);
    if (made == nullptr) throw nanobind::python_error();
    of(made)->staging = std::move(staging);
    of(made)->format = Py_NewRef(format.ptr());
    return nanobind::steal(made);
  }

  // The buffer of `object`, which must be a batch.
  static const std::shared_ptr<Staging>& staging_in(nanobind::handle object) {
    if (PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type().ptr())) == 0 || of(object)->staging == nullptr) throw nanobind::type_error("no batch, or one of nothing");
    return of(object)->staging;
  }

  // The type, as long as the process.
  static nanobind::handle type() {
    static PyObject* made = make_type();
    return made;
  }

 private:
  static PyObject* make_type() {
    static PyMemberDef members[] = {{"_format", T_OBJECT_EX, offsetof(BatchObject, format), READONLY, nullptr}, {}};
    static PyGetSetDef getters[] = {{"_staging", staging_of, nullptr, nullptr, nullptr}, {"_made", made_of, nullptr, nullptr, nullptr}, {}};
    static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(allocate)}, {Py_tp_init, reinterpret_cast<void*>(init)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)}, {Py_tp_members, members}, {Py_tp_getset, getters}, {0, nullptr}};
    static PyType_Spec spec = {"conduit_store._native.BatchBase", sizeof(BatchObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
    PyObject* made = PyType_FromSpec(&spec);
    if (made == nullptr) throw nanobind::python_error();
    return made;
  }
  // What a class that inherits is called with is for its __init__.
  static PyObject* allocate(PyTypeObject* type, PyObject*, PyObject*) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self != nullptr) new (&of(self)->staging) std::shared_ptr<Staging>();
    return self;
  }
  static int init(PyObject* self, PyObject* args, PyObject* keywords) {
    static const char* names[] = {"staging", "layout", nullptr};
    PyObject *staging, *layout;
    if (PyArg_ParseTupleAndKeywords(args, keywords, "OO", const_cast<char**>(names), &staging, &layout) == 0) return -1;
    std::shared_ptr<Staging> given;
    if (!nanobind::try_cast(nanobind::handle(staging), given) || given == nullptr) {
      PyErr_SetString(PyExc_TypeError, "a batch is made of a buffer and its format");
      return -1;
    }
    of(self)->staging = std::move(given);
    Py_XSETREF(of(self)->buffer, Py_NewRef(staging));
    Py_XSETREF(of(self)->format, Py_NewRef(layout));
    return 0;
  }
  static void dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    BatchObject* batch = of(self);
    Py_CLEAR(batch->made);
    Py_CLEAR(batch->buffer);
    Py_CLEAR(batch->format);
    batch->staging.~shared_ptr();
    type->tp_free(self);
    Py_DECREF(type);
  }
  static PyObject* staging_of(PyObject* self, void*) {
    BatchObject* batch = of(self);
    if (batch->buffer == nullptr) batch->buffer = nanobind::cast(batch->staging).release().ptr();
    return Py_XNewRef(batch->buffer);
  }
  static PyObject* made_of(PyObject* self, void*) {
    BatchObject* batch = of(self);
    if (batch->made == nullptr) batch->made = PyDict_New();
    return Py_XNewRef(batch->made);
  }
};

}  // namespace conduit
