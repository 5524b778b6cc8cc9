// What only tests call: the sum tree by itself, and failpoints where they are compiled in.
#pragma once

#include <string>
#include <vector>

#include "binding_support.hpp"
#include "failpoints.hpp"
#include "tree.hpp"

namespace conduit {
namespace {

// Test hook: the sum tree on memory of its own.
class PySumTree {
 public:
  explicit PySumTree(std::uint64_t leaves) : n_(leaves) {
    std::uint64_t sizes[kTreeLevels];
    const std::uint32_t levels = SumTree::plan(leaves, sizes);
    double* at[kTreeLevels];
    for (std::uint32_t k = 0; k < levels; ++k) {
      memory_.emplace_back(sizes[k], 0.0);
      at[k] = memory_.back().data();
    }
    tree = SumTree(at, sizes, levels);
  }
  void update(const std::vector<std::uint32_t>& at, const std::vector<double>& values) {
    std::vector<LineRange> lines;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (at[i] >= n_) fail(ErrorCode::config, "leaf %u of %llu", at[i], static_cast<unsigned long long>(n_));
      tree.leaves()[at[i]] = values[i];
      lines.push_back({at[i] / kFanOut, at[i] / kFanOut});
    }
    if (!lines.empty()) tree.refresh(lines.data(), static_cast<std::uint32_t>(lines.size()));
  }
  // `equal`: all leaves are 0 or 1.
  std::vector<std::uint32_t> find(const std::vector<double>& masses, bool equal) const {
    std::vector<std::uint32_t> leaves(masses.size());
    const auto n = static_cast<std::uint32_t>(masses.size());
    if (equal) tree.find_equal(masses.data(), n, leaves.data());
    else tree.find(masses.data(), n, leaves.data());
    return leaves;
  }
  SumTree tree;

 private:
  std::uint64_t n_;
  std::vector<std::vector<double>> memory_;
};

void bind_tests(nb::module_& m) {
  nb::class_<PySumTree>(m, "SumTree")
      .def(nb::init<std::uint64_t>(), "leaves"_a)
      .def("update", &PySumTree::update, "leaves"_a, "values"_a)
      .def("find", &PySumTree::find, "masses"_a, "equal"_a = false)
      .def("total", [](PySumTree& t) { return t.tree.total(); })
      .def("range_sum", [](PySumTree& t, std::uint64_t first, std::uint64_t last) { return t.tree.range_sum(first, last); }, "first"_a, "last"_a)
      .def("consistent", [](PySumTree& t) { return t.tree.consistent(); });

#ifdef CONDUIT_FAILPOINTS
  m.def("failpoint_names", &failpoint_names);
  m.def("failpoint_hits", &failpoint_hits, "name"_a);
  m.def("failpoint_resume", &failpoint_resume);
  m.def("set_lock_timeout", [](double seconds) { set_lock_timeout(static_cast<std::uint64_t>(seconds * 1e9)); }, "seconds"_a);
  m.def("failpoint_arm", [](const std::string& name, const std::string& action, long nth) {
    failpoint_arm(name, action == "kill" ? FailAction::kill : action == "stop" ? FailAction::stop : action == "fail" ? FailAction::fail : FailAction::pause, nth);
  }, "name"_a, "action"_a, "nth"_a);
#endif
}

}  // namespace
}  // namespace conduit
