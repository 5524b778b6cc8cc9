// Where the rows of each drawn window are.
#include <string.h>

#include <algorithm>
#include <type_traits>

#include "sampler.hpp"
#include "scalars.hpp"

namespace conduit {
namespace {

constexpr std::uint32_t kLinks = 128;  // links of a window that are asked for ahead, each way

}  // namespace

// Asks for what will be read of these rows first, so that it comes while other things are done.
void Sampler::prefetch(const std::uint32_t* slots, std::uint32_t n) const {
  const TableCore& t = *table_;
  if (t.packs()) return;  // where rows are is known once their blocks have been unpacked
  if (sequences_) {
    for (std::uint32_t i = 0; i < n; ++i) prefetch_links(slots[i]);
  } else if (plan_.steps > 0) {
    for (std::uint32_t i = 0; i < n; ++i) {
      __builtin_prefetch(&t.next_[slots[i]], 0, 2);
      __builtin_prefetch(&t.flags_[slots[i]], 0, 2);
    }
  }
  for (std::uint32_t i = 0; i < n && !small_rows_.empty(); ++i) {
    const Cursor at = locate(slots[i]);
    for (const auto [offset, bytes] : small_rows_) __builtin_prefetch(at.base + offset + at.row * bytes, 0, 2);
  }
}

void Sampler::locate_rows(std::uint32_t n) {
  rows_.resize(std::size_t{n} * 2);
  for (std::uint32_t i = 0; i < n; ++i) rows_[i] = locate(slots_[i]);
}

// Small columns miss the cache once a row: all of them are asked for at once.
void Sampler::prefetch_successors(std::uint32_t n) const {
  for (const auto [offset, bytes] : small_successors_) {
    for (const Cursor* at = rows_.data() + n; at < rows_.data() + 2 * n; ++at) __builtin_prefetch(at->base + offset + at->row * bytes);
  }
}

// A ready row has what its window needs, and the links of what it needs never change while the row's block is protected.
void Sampler::resolve(std::uint32_t n, const std::uint32_t* slots) {
  if (plan_.steps == 0) return;
  windows_.resize(n);
  for (std::vector<CopyRun>* runs : {&sequence_runs_, &stack_runs_, &next_stack_runs_, &after_runs_}) runs->clear();
  if (goals_) goal_rows_.assign(n, {nullptr, 0});
  if (sequences_) {
    firsts_.resize(n);
    for (std::uint32_t i = 0; i < n; ++i) resolve_sequence(i, slots[i], n);
    return;
  }
  afters_.resize(n);
  const auto reward = std::find_if(plan_.outputs.begin(), plan_.outputs.end(), [](const Output& output) { return output.source == Source::n_step_sum; });
  if (reward == plan_.outputs.end()) {
    resolve_steps<void>(n, slots, 0);
  } else {
    const std::uint64_t offset = table_->columns()[reward->column].block_offset;
    if (plan_.double_reward) resolve_steps<double>(n, slots, offset);
    else resolve_steps<float>(n, slots, offset);
  }
  if (!stacks_ && !next_stacks_ && !after_ && !goals_) return;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (stacks_) resolve_stack(slots[i], stack_runs_);
    if (next_stacks_) resolve_stack(afters_[i], next_stack_runs_);
    if (after_) resolve_after(i, slots[i]);
    if (goals_) resolve_goal(i, slots[i]);
  }
}

// What the walk of a sequence will most likely read.
void Sampler::prefetch_links(std::uint32_t slot) const {
  const std::uint32_t before = std::min(std::min(plan_.before, kLinks), slot), steps = std::min(plan_.steps, kLinks);
  if (table_->runs_ != nullptr) {
    __builtin_prefetch(&table_->runs_[slot]);
    __builtin_prefetch(&table_->runs_[slot + steps]);
    return;
  }
  for (std::uint32_t k = 0; k <= before; k += 16) __builtin_prefetch(&table_->prev_[slot - k]);
  for (std::uint32_t k = 0; k <= steps; k += 16) __builtin_prefetch(&table_->next_[slot + k]);
  for (std::uint32_t k = 0; k <= before + steps; k += 64) __builtin_prefetch(&table_->flags_[slot - before + k]);
}

// Walks the m steps of each window, up to the episode's end or the plan's n, and finds the row after them. Sums the column at
// `offset` of each block, of dtype Reward, as it goes.
template <class Reward>
void Sampler::resolve_steps(std::uint32_t n, const std::uint32_t* slots, std::uint64_t offset) {
  const TableCore& t = *table_;
  const std::uint32_t most = plan_.steps, rows_per_block = t.shared().rows_per_block;
  const double gamma = plan_.gamma;
  for (std::uint32_t i = 0; i < n; ++i) {
    Cursor at = rows_[i];
    std::uint32_t slot = slots[i], m = 0;
    double factor = 1.0, sum = 0.0;
    std::uint8_t flags = 0;
    for (;;) {
      if constexpr (!std::is_void_v<Reward>) sum += factor * load_scalar<Reward>(at.base + offset + at.row * sizeof(Reward));
      ++m;
      factor *= gamma;
      flags = t.flag(slot);
      const std::uint32_t after = t.next(slot);
      if (after == kNoRow) break;  // only when this reader has been expelled meanwhile: the batch will be discarded
      at = after == slot + 1 && at.row + 1 < rows_per_block ? Cursor{at.base, at.row + 1, at.block} : locate(after);
      slot = after;
      if (m == most || (flags & kEnd) != 0 || (t.flag(slot) & kFinal) != 0 || t.next(slot) == kNoRow) break;
    }
    windows_[i] = {m, 0, flags, static_cast<float>((flags & kTerminated) != 0 ? 0.0 : factor), sum};
    rows_[n + i] = at;
    afters_[i] = slot;
  }
}

void Sampler::append_runs(const std::vector<StepRun>& found, std::vector<CopyRun>& runs) const {
  for (const StepRun& run : found) {
    const Cursor at = locate(run.first);
    if (&run != &found.front() && runs.back().base == at.base && runs.back().row + runs.back().n == at.row) runs.back().n += run.n;
    else runs.push_back({at.base, at.row, run.n, at.block});
  }
}

void Sampler::resolve_sequence(std::uint32_t i, std::uint32_t slot, std::uint32_t n) {
  if (walk_.together(slot, plan_.before, plan_.steps)) {
    const Cursor at = rows_[i], first{at.base, at.row - plan_.before, at.block};
    sequence_runs_.push_back({at.base, first.row, plan_.before + plan_.steps, at.block});
    firsts_[i] = first;
    rows_[n + i] = {at.base, at.row + plan_.steps, at.block};
    windows_[i] = {plan_.steps, plan_.before, ends_ ? table_->flag(slot + plan_.steps - 1) : std::uint8_t{0}, 0.0f, 0.0};
    return;
  }
  found_.clear();
  const std::uint32_t before = walk_.backward(slot, plan_.before, found_);
  if (before < plan_.before) sequence_runs_.push_back({nullptr, 0, plan_.before - before});
  const Steps steps = walk_.forward(slot, plan_.steps, plan_.last_step, found_);
  append_runs(found_, sequence_runs_);
  if (steps.n < plan_.steps) sequence_runs_.push_back({nullptr, 0, plan_.steps - steps.n});
  firsts_[i] = locate(found_.front().first);
  rows_[n + i] = locate(steps.after);
  windows_[i] = {steps.n, before, ends_ ? table_->flag(steps.last) : std::uint8_t{0}, 0.0f, 0.0};
}

// The last rows of its episode up to `slot`, as many as a stack has.
void Sampler::resolve_stack(std::uint32_t slot, std::vector<CopyRun>& runs) {
  found_.clear();
  const std::uint32_t before = walk_.backward(slot, plan_.stack - 1, found_);
  const Cursor first = locate(found_.empty() ? slot : found_.front().first);
  for (std::uint32_t k = before + 1; k < plan_.stack; ++k) runs.push_back(plan_.pad_zeros ? CopyRun{nullptr, 0, 1} : CopyRun{first.base, first.row, 1, first.block});
  append_runs(found_, runs);
  const Cursor last = locate(slot);
  runs.push_back({last.base, last.row, 1, last.block});
}

void Sampler::resolve_after(std::uint32_t i, std::uint32_t slot) {
  const std::uint32_t m = windows_[i].steps;
  for (std::uint32_t k = 0; k < m; ++k) {
    const std::uint32_t after = table_->next(slot);
    if (after != kNoRow) slot = after;
    const Cursor at = locate(slot);
    after_runs_.push_back({at.base, at.row, 1, at.block});
  }
  if (m < plan_.steps) after_runs_.push_back({nullptr, 0, plan_.steps - m});
}

// A share of the rows gets the goal that was achieved after a later step of the episode, the last one, or any.
void Sampler::resolve_goal(std::uint32_t i, std::uint32_t slot) {
  if (goal_draws_.empty() || goal_draws_[2 * i] >= plan_.ratio) return;
  const std::uint32_t later = walk_.remaining(slot);  // one at least: the row after this step
  const auto pick = [&](std::uint32_t n) {
    return std::min(n - 1, static_cast<std::uint32_t>(goal_draws_[2 * i + 1] * static_cast<double>(n)));
  };
  std::uint32_t from = slot, ahead = later;
  if (later == 0) return;
  if (plan_.hindsight == Hindsight::future) {
    ahead = 1 + pick(later);
  } else if (plan_.hindsight == Hindsight::episode) {
    std::uint32_t distance;
    from = walk_.first(slot, &distance);
    ahead = 1 + pick(distance + later);
  }
  goal_rows_[i] = locate(walk_.advanced(from, ahead));
}

}  // namespace conduit
