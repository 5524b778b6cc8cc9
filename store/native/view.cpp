#include "view.hpp"

#include <algorithm>
#include <cmath>

#include "failpoints.hpp"
#include "powers.hpp"

namespace conduit {

ViewIndex::ViewIndex(const Segments& segments, Table& table, std::uint32_t number)
    : t_(&table), v_(&table.views[number]), number_(number), flags_(segments.control_at<std::uint8_t>(table.flags_offset)),
      raw_(v_->raw_offset != 0 ? segments.control_at<float>(v_->raw_offset) : nullptr),
      marks_(v_->drawn_offset != 0 ? segments.control_at<std::uint32_t>(v_->drawn_offset) : nullptr), slots_(table.n_blocks * table.rows_per_block),
      ready_(ready_flag(number)) {
  double* levels[kTreeLevels];
  for (std::uint32_t k = 0; k < table.levels; ++k) levels[k] = segments.control_at<double>(v_->level_offset[k]);
  sum_ = SumTree(levels, table.level_size, table.levels);
  if (!prioritized()) return;
  Extremes* extremes[kTreeLevels];
  for (std::uint32_t k = 0; k < table.extreme_levels; ++k) extremes[k] = segments.control_at<Extremes>(v_->extreme_offset[k]);
  undos_ = segments.control_at<Undo>(table.undo_offset);
  extremes_ = ExtremeTree(raw_, flags_, ready_, slots_, extremes, table.extreme_size, table.extreme_levels);
}

void ViewIndex::note_raw(std::uint32_t slot) const {
  UndoLog& undo = t_->undo;
  if (undo.used < t_->undos) undos_[undo.used] = {number_, slot, raw(slot)};
  undo.used = std::min(undo.used, t_->undos) + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);  // before the change itself, also if we die in between; see journal()
}

void ViewIndex::masses(const float* raw, double* out, std::uint32_t n) const {
  const double eps = settings().eps;
  for (std::uint32_t i = 0; i < n; ++i) out[i] = static_cast<double>(raw[i]) + eps;
  powers(out, settings().alpha, out, n);
}

double ViewIndex::mass(float raw) const {
  double result;
  masses(&raw, &result, 1);
  return result;
}

void ViewIndex::refresh(LineRange* ranges, std::uint32_t n) {
  if (prioritized()) {
    for (std::uint32_t i = 0; i < n; ++i) extremes_.refresh(ranges[i].first * kFanOut, std::min(ranges[i].last * kFanOut + kFanOut, slots_) - 1);
  }
  sum_.refresh(ranges, n);
}

void ViewIndex::recompute_leaves() {
  double change = 0.0;
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    const double leaf = leaf_of(slot);
    change += std::abs(leaf - leaves()[slot]);
    leaves()[slot] = leaf;
    FAILPOINT(configure_leaf);
  }
  FAILPOINT(configure_leaves);
  if (prioritized()) extremes_.refresh_all();
  sum_.refresh_all();
  moved(change, slots_);
}

const char* ViewIndex::inconsistency() const {
  if (!sum_.consistent()) return "sum tree: a node differs from the sum of its children";
  if (prioritized() && !extremes_.consistent()) return "tree of extremes: a node differs from its children";
  return nullptr;
}

}  // namespace conduit
