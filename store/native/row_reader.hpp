// Reads one row given as a dict of Python values, for the values that need no conversion: exact arrays, Python scalars.
// Anything else is left to the careful path in Python (conduit_store.values), which also makes the error messages.
// Part of the bindings: included by bindings.cpp only.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ragged.hpp"

namespace conduit {

// NumPy's arrays as its ABI has them: its headers compile reads of these fields into every extension. Asking an array for its
// buffer costs ten times as much.
struct ArrayObject {
  PyObject_HEAD
  char* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;
  PyObject *base, *descr;
  int flags;
};
inline constexpr int kContiguous = 0x1, kAligned = 0x100;  // of `flags`; in C's order
// The same of scalars, up to 8 bytes.
struct ScalarObject {
  PyObject_HEAD
  std::byte value[8];
};

// A column as NumPy names it: kind ('f', 'i', 'u', 'b') and item size, and the shape of one row, whose first dimension is -1
// where rows vary in length. Of such also 's': str, stored as UTF-8. 'c': str, stored as its number, an int32. 'v': whether the
// next column has a value; it is not among the values given, where None then means that it has none.
struct RowColumn {
  nanobind::object name;
  char kind = 0;
  std::size_t item = 0;
  std::vector<std::int64_t> shape;
  std::size_t bytes = 0;
  nanobind::dict numbers;  // 'c': number by value, of those values that are known here
  nanobind::object descr, scalar;  // NumPy's dtype object of such values, and its type of scalars; none where it has no such

  using Given = std::tuple<std::string, std::string, std::vector<std::int64_t>>;  // name, dtype.str without byte order, shape
  static std::vector<RowColumn> make(const std::vector<Given>& given, nanobind::dict numbers) {
    std::vector<RowColumn> columns;
    const nanobind::object numpy_dtype = nanobind::module_::import_("numpy").attr("dtype");
    for (const auto& [name, dtype, shape] : given) {
      RowColumn c;
      c.name = nanobind::steal(PyUnicode_InternFromString(name.c_str()));
      c.kind = dtype[0];
      c.item = static_cast<std::size_t>(std::stoul(dtype.substr(1)));
      c.shape = shape;
      c.bytes = c.item;
      if (std::string_view("biuf").find(c.kind) != std::string_view::npos) {
        c.descr = numpy_dtype(dtype.c_str());
        c.scalar = c.descr.attr("type");
      }
      if (c.kind == 'c') c.numbers = nanobind::cast<nanobind::dict>(numbers[c.name]);
      for (const std::int64_t d : shape) c.bytes *= d < 0 ? 1 : static_cast<std::size_t>(d);
      columns.push_back(std::move(c));
    }
    return columns;
  }
};

class RowReader {
 public:
  RowReader(std::vector<RowColumn> columns, int terminated, int truncated)
      : columns_(std::move(columns)), terminated_(terminated), truncated_(truncated), scalars_(columns_.size()), at_(columns_.size()), cells_(columns_.size()), cells_at_(columns_.size()), lists_(columns_.size()),
        given_(static_cast<std::size_t>(std::count_if(columns_.begin(), columns_.end(), [](const RowColumn& c) { return c.kind != 'v'; }))),
        masked_(nanobind::module_::import_("numpy.ma").attr("MaskedArray")), array_(nanobind::module_::import_("numpy").attr("ndarray")),
        float32_(nanobind::module_::import_("numpy").attr("dtype")("f4")) {}

  // The values of one row, valid while this lives (buffers stay exported).
  class Held {
   public:
    explicit Held(RowReader& reader) : reader_(reader) {}
    ~Held() {
      for (std::size_t i = 0; i < used_; ++i) PyBuffer_Release(&reader_.views_[i]);
      for (PyObject* array : kept_) Py_DECREF(array);
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    bool read(nanobind::dict row) {
      if (static_cast<std::size_t>(PyDict_GET_SIZE(row.ptr())) != reader_.given_) return false;
      if (reader_.views_.size() < reader_.columns_.size()) reader_.views_.resize(reader_.columns_.size());
      for (std::size_t i = 0; i < reader_.columns_.size(); ++i) {
        const char kind = reader_.columns_[i].kind;
        if (kind == 'v') continue;  // told with the next one
        PyObject* value = PyDict_GetItemWithError(row.ptr(), reader_.columns_[i].name.ptr());  // borrowed
        if (value == nullptr) {
          PyErr_Clear();
          return false;
        }
        if (i > 0 && reader_.columns_[i - 1].kind == 'v') {
          put(i - 1, static_cast<std::uint8_t>(value != Py_None));
          if (value == Py_None) {
            reader_.at_[i] = nullptr;  // zeros, or no elements
            reader_.cells_at_[i] = nullptr;
            continue;
          }
        }
        if (exact(i, value)) continue;
        if (!(kind == 's' ? text(i, value) : kind == 'c' ? category(i, value) : scalar(i, value) || array(i, value))) return false;
      }
      return true;
    }
    // Whole columns: an array (n, *shape) of just this dtype each, or of rows that vary in length a list of such, or false. Of
    // tables without nulls, categories and text.
    bool read_columns(nanobind::dict given, std::uint32_t most, std::uint32_t* n) {
      if (static_cast<std::size_t>(PyDict_GET_SIZE(given.ptr())) != reader_.columns_.size()) return false;
      for (std::size_t i = 0; i < reader_.columns_.size(); ++i) {
        const RowColumn& c = reader_.columns_[i];
        PyObject* value = PyDict_GetItemWithError(given.ptr(), c.name.ptr());  // borrowed
        if (value == nullptr) PyErr_Clear();
        if (value == nullptr) return false;
        const bool varies = !c.shape.empty() && c.shape[0] < 0;
        const ArrayObject* array = varies ? nullptr : exact_array(value, c, 1, 0);
        const Py_ssize_t rows = varies ? read_list(i, value) : array != nullptr ? array->dimensions[0] : 0;
        if (rows < 1 || rows > static_cast<Py_ssize_t>(most) || (i > 0 && rows != static_cast<Py_ssize_t>(*n))) return false;
        *n = static_cast<std::uint32_t>(rows);
        if (varies) continue;
        reader_.at_[i] = reinterpret_cast<const std::byte*>(array->data);
        keep(value);
      }
      return true;
    }
    // n float32 as they lie in an array, or null.
    const float* read_priorities(PyObject* value, std::uint32_t n) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != reader_.array_.ptr()) return nullptr;
      const auto* array = reinterpret_cast<const ArrayObject*>(value);
      const bool fits = array->descr == reader_.float32_.ptr() && (array->flags & kContiguous) != 0 && (array->flags & kAligned) != 0 && array->nd == 1 && array->dimensions[0] == n;
      if (!fits) return nullptr;
      keep(value);
      return reinterpret_cast<const float*>(array->data);
    }
    const std::byte* const* columns() const { return reader_.at_.data(); }
    Cells cells() const { return reader_.cells_at_.data(); }
    std::uint8_t flags() const {
      const auto set = [&](int column, std::uint8_t bit) -> std::uint8_t {
        return column >= 0 && std::to_integer<int>(*reader_.at_[static_cast<std::size_t>(column)]) != 0 ? bit : std::uint8_t{0};
      };
      return static_cast<std::uint8_t>(set(reader_.terminated_, kTerminated) | set(reader_.truncated_, kTruncated));
    }

   private:
    // The value, if it is an array of just the column's dtype and of its dimensions from `from` on, behind `leading` of any size; else
    // null.
    const ArrayObject* exact_array(PyObject* value, const RowColumn& c, std::size_t leading, std::size_t from) const {
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != reader_.array_.ptr()) return nullptr;
      const auto* array = reinterpret_cast<const ArrayObject*>(value);
      if (array->descr != c.descr.ptr() || (array->flags & kContiguous) == 0 || static_cast<std::size_t>(array->nd) != leading + c.shape.size() - from) return nullptr;
      for (std::size_t d = from; d < c.shape.size(); ++d) {
        if (array->dimensions[leading + d - from] != c.shape[d]) return nullptr;
      }
      return array;
    }
    // The rows of a column that varies in length, given as a list of arrays of just its dtype: how many, or -1.
    Py_ssize_t read_list(std::size_t i, PyObject* value) {
      if (!PyList_CheckExact(value)) return -1;
      std::vector<Cell>& cells = reader_.lists_[i];
      cells.clear();
      for (Py_ssize_t k = 0; k < PyList_GET_SIZE(value); ++k) {
        PyObject* row = PyList_GET_ITEM(value, k);
        const ArrayObject* array = exact_array(row, reader_.columns_[i], 1, 1);
        if (array == nullptr) return -1;
        cells.push_back({reinterpret_cast<const std::byte*>(array->data), static_cast<std::uint64_t>(array->dimensions[0])});
        keep(row);
      }
      reader_.cells_at_[i] = cells.data();
      return PyList_GET_SIZE(value);
    }

    template <class T>
    bool put(std::size_t i, T value) {
      memcpy(&reader_.scalars_[i], &value, sizeof value);
      reader_.at_[i] = reinterpret_cast<const std::byte*>(&reader_.scalars_[i]);
      return true;
    }
    template <class T>
    bool put_int(std::size_t i, PyObject* value) {
      int overflow = 0;
      const long long v = PyLong_AsLongLongAndOverflow(value, &overflow);
      if (overflow != 0) return false;
      if constexpr (std::numeric_limits<T>::is_signed) {
        if (v < std::numeric_limits<T>::min() || v > std::numeric_limits<T>::max()) return false;
      } else {
        if (v < 0 || static_cast<unsigned long long>(v) > std::numeric_limits<T>::max()) return false;
      }
      return put(i, static_cast<T>(v));
    }

    // What is stored just as it is: an array or a scalar of NumPy's, of this very dtype. Anything else is looked at more closely.
    bool exact(std::size_t i, PyObject* value) {
      const RowColumn& c = reader_.columns_[i];
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == c.scalar.ptr()) {
        if (!c.shape.empty()) return false;
        memcpy(&reader_.scalars_[i], reinterpret_cast<const ScalarObject*>(value)->value, c.item);
        reader_.at_[i] = reinterpret_cast<const std::byte*>(&reader_.scalars_[i]);
        return true;
      }
      const bool varies = !c.shape.empty() && c.shape[0] < 0;
      const ArrayObject* array = exact_array(value, c, varies, varies);
      if (array == nullptr) return false;
      if (varies) return put_cell(i, array->data, static_cast<std::uint64_t>(array->dimensions[0]));
      reader_.at_[i] = reinterpret_cast<const std::byte*>(array->data);
      return true;
    }

    bool scalar(std::size_t i, PyObject* value) {
      const RowColumn& c = reader_.columns_[i];
      if (!c.shape.empty()) return false;
      if (c.kind == 'b') return PyBool_Check(value) && put(i, static_cast<std::uint8_t>(value == Py_True));
      if (c.kind == 'f' && PyFloat_Check(value)) {  // NumPy's float64 scalar is a Python float, and as weak
        const double v = PyFloat_AS_DOUBLE(value);
        if (c.item == 8) return put(i, v);
        if (c.item != 4 || (std::isfinite(v) && !std::isfinite(static_cast<float>(v)))) return false;
        return put(i, static_cast<float>(v));
      }
      if (!PyLong_CheckExact(value)) return false;
      if (c.kind == 'i') {
        switch (c.item) {
          case 1: return put_int<std::int8_t>(i, value);
          case 2: return put_int<std::int16_t>(i, value);
          case 4: return put_int<std::int32_t>(i, value);
          default: return put_int<std::int64_t>(i, value);
        }
      }
      if (c.kind == 'u') {
        switch (c.item) {
          case 1: return put_int<std::uint8_t>(i, value);
          case 2: return put_int<std::uint16_t>(i, value);
          case 4: return put_int<std::uint32_t>(i, value);
          default: return put_int<std::uint64_t>(i, value);
        }
      }
      return false;
    }

    bool array(std::size_t i, PyObject* value) {
      const RowColumn& c = reader_.columns_[i];
      Py_buffer& view = reader_.views_[used_];
      if (!PyObject_CheckBuffer(value) || PyObject_TypeCheck(value, reader_.masked())) return false;
      if (PyObject_GetBuffer(value, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        PyErr_Clear();
        return false;
      }
      ++used_;
      if (kind_of(view.format) != c.kind || static_cast<std::size_t>(view.itemsize) != c.item || static_cast<std::size_t>(view.ndim) != c.shape.size()) return false;
      const bool varies = !c.shape.empty() && c.shape[0] < 0;
      for (std::size_t d = varies; d < c.shape.size(); ++d) {
        if (view.shape[d] != c.shape[d]) return false;
      }
      if (varies) return put_cell(i, view.buf, static_cast<std::uint64_t>(view.shape[0]));
      reader_.at_[i] = static_cast<const std::byte*>(view.buf);
      return true;
    }

    bool category(std::size_t i, PyObject* value) {
      PyObject* number = PyUnicode_CheckExact(value) ? PyDict_GetItem(reader_.columns_[i].numbers.ptr(), value) : nullptr;  // borrowed
      return number != nullptr && put(i, static_cast<std::int32_t>(PyLong_AsLong(number)));
    }

    bool text(std::size_t i, PyObject* value) {
      if (!PyUnicode_Check(value)) return false;
      Py_ssize_t bytes = 0;
      const char* at = PyUnicode_AsUTF8AndSize(value, &bytes);  // the string's own, for as long as it lives
      if (at == nullptr) PyErr_Clear();
      return at != nullptr && put_cell(i, at, static_cast<std::uint64_t>(bytes));
    }

    bool put_cell(std::size_t i, const void* at, std::uint64_t elements) {
      reader_.cells_[i] = {static_cast<const std::byte*>(at), elements};
      reader_.cells_at_[i] = &reader_.cells_[i];
      return true;
    }

    // The mapping is the caller's, who may change it while the core waits. Values of one row lie in one that nobody else has.
    void keep(PyObject* array) {
      Py_INCREF(array);
      kept_.push_back(array);
    }

    RowReader& reader_;
    std::size_t used_ = 0;
    std::vector<PyObject*> kept_;
  };

  // The dtype kind of a native-order struct format of one character, else 0.
  static char kind_of(const char* format) {
    if (format == nullptr || format[0] == '\0' || format[1] != '\0') return 0;
    switch (format[0]) {
      case '?': return 'b';
      case 'e': case 'f': case 'd': return 'f';
      case 'b': case 'h': case 'i': case 'l': case 'q': return 'i';
      case 'B': case 'H': case 'I': case 'L': case 'Q': return 'u';
      default: return 0;
    }
  }

  // Whether each of a list is a contiguous array of rows of such elements, of any length.
  static bool fits(nanobind::list rows, const RowColumn& elements) {
    for (nanobind::handle row : rows) {
      Py_buffer view;
      if (!PyObject_CheckBuffer(row.ptr())) return false;
      if (PyObject_GetBuffer(row.ptr(), &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        PyErr_Clear();
        return false;
      }
      bool fit = kind_of(view.format) == elements.kind && static_cast<std::size_t>(view.itemsize) == elements.item &&
                 static_cast<std::size_t>(view.ndim) == elements.shape.size() + 1;
      for (std::size_t d = 0; fit && d < elements.shape.size(); ++d) fit = view.shape[d + 1] == elements.shape[d];
      PyBuffer_Release(&view);
      if (!fit) return false;
    }
    return true;
  }

 private:
  std::vector<RowColumn> columns_;
  int terminated_, truncated_;
  std::vector<std::uint64_t> scalars_;
  std::vector<const std::byte*> at_;
  std::vector<Cell> cells_;
  std::vector<const Cell*> cells_at_;
  std::vector<std::vector<Cell>> lists_;  // of each column that varies in length, of many rows
  std::vector<Py_buffer> views_;
  std::size_t given_;        // values of a row
  nanobind::object masked_;  // the type of arrays whose buffer does not say all
  nanobind::object array_;   // that of arrays
  nanobind::object float32_;  // a dtype
  PyTypeObject* masked() const { return reinterpret_cast<PyTypeObject*>(masked_.ptr()); }
};

}  // namespace conduit
