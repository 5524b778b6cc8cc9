// What a table is made with and what may change while it lives, for Python; also how its limiter stands.
#pragma once

#include <algorithm>
#include <bit>
#include <string>
#include <tuple>
#include <vector>

#include "binding_support.hpp"
#include "sampler.hpp"
#include "scalars.hpp"
#include "table.hpp"

namespace conduit {
namespace {

TableSpec make_spec(const std::string& name, nb::bytes spec, const std::vector<std::uint64_t>& offsets,
                    const std::vector<std::uint64_t>& row_bytes, const std::vector<std::uint64_t>& element_bytes, const std::vector<std::uint64_t>& mean_bytes,
                    std::uint64_t values_offset, std::uint64_t max_size, std::uint32_t rows_per_block, std::uint32_t n_blocks, std::uint32_t n_frames,
                    std::uint64_t block_bytes, const std::vector<ViewSpec>& views, const Settings& settings, std::uint32_t limiter,
                    bool limits_inserts, bool counts_uses, std::uint64_t seed, std::uint32_t remover, std::uint32_t remover_view) {
  TableSpec s;
  s.name = name;
  s.spec.assign(spec.c_str(), spec.size());
  if (name.size() >= kNameBytes) fail(ErrorCode::config, "table name of %zu bytes is longer than %u", name.size(), kNameBytes - 1);
  if (std::uint64_t{rows_per_block} * n_blocks >= kSlotMask) fail(ErrorCode::config, "table '%s' needs %llu row slots, the limit is %llu", name.c_str(),
      static_cast<unsigned long long>(std::uint64_t{rows_per_block} * n_blocks), static_cast<unsigned long long>(kSlotMask));
  std::uint64_t ragged = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    s.columns.push_back({offsets[i], row_bytes[i], element_bytes[i], mean_bytes[i], element_bytes[i] > 0 ? ragged++ : 0});
  }
  s.values_offset = values_offset;
  s.max_size = max_size;
  s.rows_per_block = rows_per_block;
  s.n_blocks = n_blocks;
  if (n_frames < 1 || n_frames > n_blocks) fail(ErrorCode::config, "table '%s' of %u blocks has memory for %u", name.c_str(), n_blocks, n_frames);
  s.n_frames = n_frames;
  s.block_bytes = block_bytes;
  if (views.empty() || views.size() > kMaxViews) fail(ErrorCode::config, "table '%s' has %zu windows: 1 to %u", name.c_str(), views.size(), kMaxViews);
  s.views = views;
  s.links = std::any_of(views.begin(), views.end(), [](const ViewSpec& view) { return view.steps_after > 0 || view.steps_before > 0 || view.period > 1 || view.rules != 0; });
  s.settings = settings;
  if (limiter > kQueueCapacity) fail(ErrorCode::config, "unknown limiter %u", limiter);
  s.limiter = static_cast<LimiterKind>(limiter);
  s.limits_inserts = limits_inserts;
  s.counts_uses = counts_uses;
  s.seed = seed;
  if (remover > kRemoveLeast) fail(ErrorCode::config, "unknown remover %u", remover);
  s.remover = static_cast<RemoverKind>(remover);
  s.remover_view = remover_view;
  if (ragged > 0 && remover != kRemoveOldest) fail(ErrorCode::config, "table '%s' has columns whose rows vary in length: they go by blocks", name.c_str());
  if (n_frames < n_blocks && remover != kRemoveOldest) fail(ErrorCode::config, "table '%s' goes by blocks where some of them lie on disk", name.c_str());
  if (remover != kRemoveOldest && (rows_per_block != 1 || s.links)) fail(ErrorCode::config, "table '%s' removes rows one by one: its blocks have one row, without episodes", name.c_str());
  if (remover == kRemoveLeast && (remover_view >= views.size() || !views[remover_view].prioritized)) fail(ErrorCode::config, "table '%s' removes by priorities that it does not keep", name.c_str());
  return s;
}

void bind_specs(nb::module_& m) {
  // What may change while a table lives; `table.reconfigure` takes a changed one back.
  nb::class_<ViewSettings>(m, "ViewSettings")
      .def_rw("alpha", &ViewSettings::alpha)
      .def_rw("beta", &ViewSettings::beta)
      .def_rw("eps", &ViewSettings::eps);
  nb::class_<Settings>(m, "Settings")
      .def("__init__", [](Settings* self) { new (self) Settings{}; })
      .def("view", [](Settings& s, std::uint32_t number) -> ViewSettings& {
        if (number >= kMaxViews) fail(ErrorCode::config, "view %u of %u", number, kMaxViews);
        return s.views[number];
      }, "number"_a, nb::rv_policy::reference_internal)
      .def_ro("version", &Settings::version)
#define FIELD(name) .def_rw(#name, &Settings::name)
      FIELD(min_size) FIELD(ratio) FIELD(error_buffer) FIELD(capacity) FIELD(max_times)
#undef FIELD
      .def_prop_ro("low", &Settings::low)
      .def_prop_ro("high", &Settings::high);
  nb::class_<LimiterState>(m, "LimiterState")
#define FIELD(name) .def_ro(#name, &LimiterState::name)
      FIELD(settings) FIELD(live_steps) FIELD(inserts) FIELD(samples) FIELD(reserved) FIELD(cursor);
#undef FIELD
  // `status`: sampler.hpp's.
  nb::class_<SampleState>(m, "SampleState")
      .def_prop_ro("status", [](const SampleState& s) { return static_cast<int>(s.status); })
      .def_ro("limiter", &SampleState::limiter)
      .def_prop_ro("found", [](const SampleState& s) { return s.drawn.found; })
      .def_ro("total", &SampleState::total);

  // `sampler`: a SamplerKind; `beta_schedule`: (ScheduleKind, start, end, batches).
  nb::class_<ViewSpec>(m, "ViewSpec")
      .def("__init__", [](ViewSpec* self, std::uint32_t steps_before, std::uint32_t steps_after, std::uint32_t period, bool strict, bool whole, bool last_step, bool prioritized, double alpha, double beta, double eps,
                          std::uint32_t sampler, bool stratified, const std::tuple<std::uint32_t, double, double, std::uint64_t>& beta_schedule) {
        if (period == 0) fail(ErrorCode::config, "a period of 0");
        if (sampler > kWithoutReplacement) fail(ErrorCode::config, "unknown sampler %u", sampler);
        const auto& [kind, start, end, batches] = beta_schedule;
        if (kind > kExponential) fail(ErrorCode::config, "unknown schedule %u", kind);
        const std::uint32_t rules = (strict ? kStrict : 0) | (whole ? kWhole : 0) | (last_step ? kLastStep : 0);
        new (self) ViewSpec{prioritized, steps_before, steps_after, period, rules, {alpha, eps, beta}, static_cast<SamplerKind>(sampler), stratified, {kind, start, end, batches}};
      }, "steps_before"_a, "steps_after"_a, "period"_a, "strict"_a, "whole"_a, "last_step"_a, "prioritized"_a, "alpha"_a, "beta"_a, "eps"_a, "sampler"_a, "stratified"_a, "beta_schedule"_a);
  nb::class_<TableSpec>(m, "TableSpec")
      .def("__init__", [](TableSpec* self, const std::string& name, nb::bytes spec, const std::vector<std::uint64_t>& offsets, const std::vector<std::uint64_t>& row_bytes,
                          const std::vector<std::uint64_t>& element_bytes, const std::vector<std::uint64_t>& mean_bytes, std::uint64_t values_offset, std::uint64_t max_size, std::uint32_t rows_per_block, std::uint32_t n_blocks, std::uint32_t n_frames, std::uint64_t block_bytes, const std::vector<ViewSpec>& views,
                          const Settings& settings, std::uint32_t limiter, bool limits_inserts, bool counts_uses, std::uint64_t seed, std::uint32_t remover, std::uint32_t remover_view) {
             new (self) TableSpec(make_spec(name, spec, offsets, row_bytes, element_bytes, mean_bytes, values_offset, max_size, rows_per_block, n_blocks, n_frames, block_bytes, views, settings, limiter, limits_inserts, counts_uses, seed, remover, remover_view));
           },
           "name"_a, "spec"_a, "offsets"_a, "row_bytes"_a, "element_bytes"_a, "mean_bytes"_a, "values_offset"_a, "max_size"_a, "rows_per_block"_a, "n_blocks"_a, "n_frames"_a, "block_bytes"_a, "views"_a, "settings"_a,
           "limiter"_a, "limits_inserts"_a, "counts_uses"_a, "seed"_a, "remover"_a, "remover_view"_a)
      .def("rewritable", [](TableSpec& s, const std::vector<std::uint32_t>& columns) {
        for (const std::uint32_t c : columns) {
          if (c >= s.columns.size() || s.columns[c].element_bytes > 0 || !std::has_single_bit(s.columns[c].row_bytes) || s.columns[c].row_bytes > kMaxScalar) fail(ErrorCode::config, "column %u cannot be rewritten", c);
          s.columns[c].changes = 1;
        }
      }, "columns"_a)
      // (column, most values, most bytes of them, values that it begins with)
      .def("categorical", [](TableSpec& s, const std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::vector<nb::bytes>>>& columns) {
        for (const auto& [column, max_values, max_bytes, values] : columns) {
          if (column >= s.columns.size() || s.columns[column].element_bytes > 0) fail(ErrorCode::config, "column %u has no categories", column);
          std::vector<std::string> texts;
          for (const nb::bytes& value : values) texts.emplace_back(value.c_str(), value.size());
          s.categories.push_back({column, max_values, max_bytes, std::move(texts)});
        }
      }, "columns"_a)
      .def("as_queue", [](TableSpec& s, std::uint32_t groups, double lease_timeout, std::optional<std::int64_t> max_staleness, std::uint32_t version_column) {
        if (groups < 1 || groups > kGroups || s.links || s.limits_inserts || s.counts_uses) fail(ErrorCode::config, "a queue of %u consumer groups, or with episodes or a limiter", groups);
        if (max_staleness && (version_column >= s.columns.size() || s.columns[version_column].row_bytes != 8)) fail(ErrorCode::config, "no version in column %u", version_column);
        s.views.clear();
        s.queue = {groups, static_cast<std::uint64_t>(lease_timeout * 1e9), max_staleness.value_or(-1), version_column};
      }, "groups"_a, "lease_timeout"_a, "max_staleness"_a.none(), "version_column"_a);
}

}  // namespace
}  // namespace conduit
