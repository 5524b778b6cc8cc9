// How far a view has moved since a draw, bounded from above.
#include <algorithm>
#include <cmath>

#include "table.hpp"

namespace conduit {
namespace {

constexpr double kOutgrown = 0x1p50;  // D over the total; two doubles then still tell changes of 2^-54 of the total

}  // namespace

// `change`: a sum of n terms |new leaf - old leaf|, in double. The lock is held, and the tree is up to date.
void ViewIndex::moved(double change, std::uint64_t n) const {
  if (!(change > 0.0)) return;
  Drift& d = v_->drift;
  ++d.changes;
  change *= 1.0 + static_cast<double>(n + 4) * 0x1p-53;  // what the sum of n terms may have lost
  // D. E. Knuth, "The Art of Computer Programming" vol. 2, 4.2.2, theorem B: sum + error is exact.
  const double sum = d.sum + change, part = sum - d.sum;
  const double rest = d.rest + ((d.sum - (sum - part)) + (change - part)) + sum * 0x1p-104;  // never rounded below the truth
  d.sum = sum + rest;
  d.rest = rest - (d.sum - sum);
  if (d.sum <= total() * kOutgrown) return;
  d.sum = d.rest = 0.0;
  ++d.era;
}

// With leaves a of total S before and b of total T >= S now: sum |a/S - b/T| <= sum |a - b| / T + (T - S) / T <= 2 D / T, and
// the total variation distance is half of that. The same holds with S and T exchanged.
void ViewIndex::drift(const DrawMark* marks, std::uint32_t n, DriftSince* since) const {
  const Drift& now = v_->drift;
  const double today = total();
  for (std::uint32_t i = 0; i < n; ++i) {
    const DrawMark& then = marks[i];
    since[i] = {0.0, now.changes != then.at.changes};
    if (now.era != then.at.era) {
      since[i].bound = 1.0;
    } else if (since[i].changed) {
      const double moved_by = (now.sum - then.at.sum) + (now.rest - then.at.rest);
      since[i].bound = std::min(1.0, moved_by * (1.0 + 0x1p-40) / std::max(today, then.total));  // margin: rounding of sums
    }
  }
}

void ViewIndex::new_era() const {
  Drift& d = v_->drift;
  ++d.changes;
  ++d.era;
  d.sum = d.rest = 0.0;
}

void TableCore::drift(std::uint32_t v, const DrawMark* marks, std::uint32_t n, DriftSince* since) {
  process_->check();
  IndexLock lock(*this);
  fold();
  views_[v].drift(marks, n, since);
}

DrawMark TableCore::mark_now(std::uint32_t v) {
  process_->check();
  IndexLock lock(*this);
  fold();
  return views_[v].mark();
}

}  // namespace conduit
