// What batches of a window are made of, as Python gives it, and whether it is a plan of the table.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "plan.hpp"
#include "table_bindings.hpp"

namespace conduit {
namespace {

struct CheckedPlan {
  // The plan, if it is one of this table: a wrong one would read outside of it.
  static Plan of(const TableCore& core, Plan plan) {
    if (core.queue() != nullptr) fail(ErrorCode::config, "table '%.63s' is a queue: its rows are delivered, not drawn", core.shared().name);
    for (Output& output : plan.outputs) {
      const std::uint64_t count = plan.count(output.source);
      if (of_columns(output.source) && (output.column >= core.shared().n_columns || core.columns()[output.column].row_bytes * count != output.row_bytes)) {
        fail(ErrorCode::config, "output of %llu bytes a row does not fit column %u", static_cast<unsigned long long>(output.row_bytes), output.column);
      }
      output.element_bytes = of_columns(output.source) ? core.columns()[output.column].element_bytes : 0;
      if (output.element_bytes > 0 && output.source == Source::n_step_sum) fail(ErrorCode::config, "rows of column %u vary in length: they are not summed", output.column);
      if (output.source == Source::mask && output.row_bytes != count) fail(ErrorCode::config, "a mask of %llu bytes for %llu rows", static_cast<unsigned long long>(output.row_bytes), static_cast<unsigned long long>(count));
      const bool goal = output.source == Source::goal || output.source == Source::next_goal || output.source == Source::relabelled;
      if (goal && plan.hindsight == Hindsight::none) fail(ErrorCode::config, "goals without a strategy");
      if (goal && output.source != Source::relabelled && (plan.achieved >= core.shared().n_columns || core.columns()[plan.achieved].row_bytes != output.row_bytes ||
                                                    core.columns()[plan.achieved].element_bytes != output.element_bytes)) {
        fail(ErrorCode::config, "goals of %llu bytes do not fit column %u", static_cast<unsigned long long>(output.row_bytes), plan.achieved);
      }
      const bool plain = output.source == Source::row;
      if (plan.steps == 0 && !plain) fail(ErrorCode::config, "an output of windows in a plan of rows");
    }
    const View& view = core.shared().views[checked_view(core, plan.view)];
    const std::uint32_t steps = plan.steps - (plan.last_step && plan.steps > 0);
    const std::uint32_t before = std::max(plan.before, plan.stack - 1);
    if (plan.stack == 0 || steps > view.steps_after || before > view.steps_before || (plan.hindsight == Hindsight::episode && view.steps_before != kWholePast)) {
      fail(ErrorCode::config, "a window of %u rows, then %u, on a table that was declared with %u and %u", before, steps, view.steps_before, view.steps_after);
    }
    return plan;
  }
};

void bind_plan(nb::module_& m) {
  // What batches of one window are made of; outputs as (source, column, bytes a row).
  nb::class_<Plan>(m, "Plan")
      .def("__init__", [](Plan* self, const std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>>& outputs, std::uint32_t view, std::uint32_t before, std::uint32_t steps, std::uint32_t stack,
                          bool last_step, bool pad_zeros, double gamma, bool double_reward, bool table_weights, std::uint32_t hindsight, double ratio, std::uint32_t achieved) {
        if (hindsight > static_cast<std::uint32_t>(Hindsight::episode)) fail(ErrorCode::config, "unknown strategy %u", hindsight);
        Plan plan;
        for (const auto& [source, column, row_bytes] : outputs) {
          if (source >= kSources) fail(ErrorCode::config, "unknown source %u", source);
          plan.outputs.push_back({static_cast<Source>(source), column, row_bytes});
        }
        plan.view = view;
        plan.before = before;
        plan.steps = steps;
        plan.stack = stack;
        plan.last_step = last_step;
        plan.pad_zeros = pad_zeros;
        plan.hindsight = static_cast<Hindsight>(hindsight);
        plan.ratio = ratio;
        plan.achieved = achieved;
        plan.gamma = gamma;
        plan.double_reward = double_reward;
        plan.table_weights = table_weights;
        new (self) Plan(std::move(plan));
      }, "outputs"_a, "view"_a, "before"_a, "steps"_a, "stack"_a, "last_step"_a, "pad_zeros"_a, "gamma"_a, "double_reward"_a, "table_weights"_a, "hindsight"_a, "ratio"_a, "achieved"_a);
}

}  // namespace
}  // namespace conduit
