// One view of a table as seen from one process: which rows its window fits, and how likely each of them is drawn.
//
// Ground truth: each row's raw priority and mark, epoch, the settings in force (alpha, eps, beta). Derived: readiness (see fold.cpp), leaves, sums, extremes. All of it is
// read and written under the table's index lock, but for what says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "layout.hpp"
#include "process.hpp"
#include "tree.hpp"

namespace conduit {

// The view as a draw found it: what its drift is measured from.
struct DrawMark {
  Drift at{};
  double total = 0.0;
};

// From a mark until now. `bound`: no less than the total variation distance, for each draw, between the distribution drawn
// from and today's; at most 1. `changed`: the same draw made now may give something else.
struct DriftSince {
  double bound;
  bool changed;
};

class ViewIndex {
 public:
  ViewIndex() = default;
  ViewIndex(const Segments& segments, Table& table, std::uint32_t number);

  View& shared() const { return *v_; }
  bool prioritized() const { return v_->prioritized != 0; }
  SamplerKind sampler() const { return static_cast<SamplerKind>(v_->sampler); }
  const ViewSettings& settings() const { return t_->settings[t_->settings_now].views[number_]; }  // under the index lock

  // --- no lock ---
  bool ready(std::uint32_t slot) const { return (std::atomic_ref(flags_[slot]).load(std::memory_order_relaxed) & ready_) != 0; }
  float raw(std::uint32_t slot) const { return std::atomic_ref(raw_[slot]).load(std::memory_order_relaxed); }
  void set_raw(std::uint32_t slot, float value) const { std::atomic_ref(raw_[slot]).store(value, std::memory_order_relaxed); }
  // Of a row that is published: under the index lock. What it was is noted while a checkpoint copies priorities.
  void change_raw(std::uint32_t slot, float value) const {
    if (t_->undo.on != 0) note_raw(slot);
    set_raw(slot, value);
  }
  // Marks of draws without replacement. A new row's is 0, written by its writer before publication.
  bool marked() const { return marks_ != nullptr; }
  bool drawn(std::uint32_t slot) const { return marked() && mark(slot) == v_->epoch; }
  std::uint32_t mark(std::uint32_t slot) const { return std::atomic_ref(marks_[slot]).load(std::memory_order_relaxed); }
  void set_mark(std::uint32_t slot, std::uint32_t epoch) const { std::atomic_ref(marks_[slot]).store(epoch, std::memory_order_relaxed); }

  // --- under the index lock ---
  // Masses (leaves) of priorities as given: (raw + eps)^alpha, 0 where that base is 0.
  void masses(const float* raw, double* out, std::uint32_t n) const;
  double mass(float raw) const;
  void set_ready(std::uint32_t slot, bool ready) const {
    std::atomic_ref flags(flags_[slot]);
    const std::uint8_t others = flags.load(std::memory_order_relaxed) & static_cast<std::uint8_t>(~ready_);
    flags.store(ready ? others | ready_ : others, std::memory_order_relaxed);
  }
  double leaf_of(std::uint32_t slot) const {
    if (!ready(slot) || drawn(slot)) return 0.0;
    return prioritized() ? mass(raw(slot)) : 1.0;
  }
  double* leaves() const { return sum_.leaves(); }
  const SumTree& sum() const { return sum_; }
  double total() const { return sum_.total(); }
  const Extremes& extremes() const { return extremes_.all(); }  // of prioritized views only
  void extreme_changed(std::uint32_t slot, float before) { extremes_.changed(slot, before); }
  // The smallest mass of a row that can be drawn, infinity when there is none. Of prioritized views only.
  double least_mass() const {
    const Extremes found = extremes();
    if (found.largest < 0.0f) return std::numeric_limits<double>::infinity();
    const double least = mass(found.least);  // rows of priority 0 are drawn where eps is not 0
    if (least > 0.0) return least;
    return found.smallest < Extremes{}.smallest ? mass(found.smallest) : std::numeric_limits<double>::infinity();
  }
  // Brings sums and extremes up to date with the leaves of these lines. `ranges` is scratch.
  void refresh(LineRange* ranges, std::uint32_t n);
  void refresh_sums(LineRange* ranges, std::uint32_t n) const { sum_.refresh(ranges, n); }
  // Every leaf anew, as after a change of alpha or eps.
  void recompute_leaves();
  // What of sums and extremes differs from a recomputation, or nullptr.
  const char* inconsistency() const;

  DrawMark mark() const { return {v_->drift, total()}; }
  void drift(const DrawMark* marks, std::uint32_t n, DriftSince* since) const;
  // `change`: a sum of n terms |new leaf - old leaf|. The tree is up to date.
  void moved(double change, std::uint64_t n) const;
  // A draw made now may differ from one made before, whatever the leaves say: the limiter, beta.
  void touched() const { ++v_->drift.changes; }
  // Nothing is known of how far the view has moved since whatever was drawn before.
  void new_era() const;

 private:
  void note_raw(std::uint32_t slot) const;

  Table* t_ = nullptr;
  View* v_ = nullptr;
  Undo* undos_ = nullptr;
  std::uint32_t number_ = 0;
  std::uint8_t* flags_ = nullptr;
  float* raw_ = nullptr;
  std::uint32_t* marks_ = nullptr;
  std::uint32_t slots_ = 0;
  std::uint8_t ready_ = 0;
  SumTree sum_;
  ExtremeTree extremes_;
};

}  // namespace conduit
