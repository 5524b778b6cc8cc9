// Columns of categories, as Python has them.
#pragma once

#include "categories.hpp"
#include "table_bindings.hpp"

namespace conduit {
namespace {

Categories categories_of(const TableCore& core, std::uint32_t column) {
  if (column >= core.shared().n_columns || core.columns()[column].categories == 0) fail(ErrorCode::config, "column %u has no categories", column);
  return core.categories(column);
}

void bind_categories(nb::class_<PyTable>& table) {
  table
      // The values from number `first` on, as bytes.
      .def("categories", [](PyTable& t, std::uint32_t column, std::uint64_t first) {
        const auto core = t.get();
        const Categories categories = categories_of(*core, column);
        nb::list values;
        const std::uint64_t count = categories.count();
        for (std::uint64_t i = first; i < count; ++i) {
          const std::string_view value = categories.value(i);
          values.append(nb::bytes(value.data(), value.size()));
        }
        return values;
      }, "column"_a, "first"_a)
      // Sees to it that each of `values` has a number; the caller knows the first `known`. False: there is no room for them, and
      // none was added.
      .def("add_categories", [](PyTable& t, std::uint32_t column, std::uint64_t known, const std::vector<nb::bytes>& values) {
        const auto core = t.get();
        const Categories categories = categories_of(*core, column);
        std::vector<std::string> texts;
        for (const nb::bytes& value : values) texts.emplace_back(value.c_str(), value.size());
        nb::gil_scoped_release free;
        core->process().check();
        const IndexLock lock(*core);
        return categories.add(std::min(known, categories.count()), texts);
      }, "column"_a, "known"_a, "values"_a);
}

}  // namespace
}  // namespace conduit
