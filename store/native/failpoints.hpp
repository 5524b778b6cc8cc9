// Named points at every step that changes shared state. In a test build a point can kill, stop or pause the process that
// reaches it for the n-th time, end just the thread, or have a system call fail; in a release build FAILPOINT expands to nothing.
#pragma once

#include <string>
#include <vector>

namespace conduit {

#define CONDUIT_FAILPOINT_LIST(X)                                                                                 \
  X(attach_claimed) X(attach_cleaned) X(detach_begin)                                                             \
  X(create_reserving) X(create_reserved) X(create_formatted) X(create_published)                                  \
  X(append_row_written) X(append_before_publish) X(append_published) X(append_sealed) X(append_released)          \
  X(append_values_written) X(open_annexed) X(reclaim_annexed)                                                      \
  X(append_together) X(append_noted) X(append_halfway) X(lock_taken)                                              \
  X(open_locked) X(open_sealed_dead) X(open_before_state) X(open_after_state) X(open_ordered)                     \
  X(fold_begin) X(fold_row_linked) X(fold_row_ready) X(fold_block_leaves) X(fold_block_counted) X(fold_end)       \
  X(evict_begin) X(evict_marked) X(evict_bereft) X(evict_leaves) X(evict_counted) X(evict_end)                                    \
  X(retire_before) X(retire_after) X(reclaim_before) X(reclaim_after) X(expel_before) X(expel_after)              \
  X(journal_written) X(tree_raw_written) X(tree_leaves_written) X(tree_level_written) X(tree_done)                \
  X(settings_written) X(settings_switched)                                                                        \
  X(configure_marked) X(configure_leaf) X(configure_leaves) X(configure_done)                                     \
  X(limiter_taken) X(limiter_delivered) X(limiter_returned) X(insert_locked) X(insert_published) X(wait_limiter)  \
  X(use_counted) X(use_ended) X(use_counts)                                                                       \
  X(announce_begin) X(announce_cleared) X(announce_signalled)                                                     \
  X(update_locked) X(update_done) X(rewritten) X(category_written) X(category_added)                                                                    \
  X(reader_entered) X(draw_locked) X(draw_done) X(gather_begin) X(gather_measure) X(gather_column) X(gather_end) X(reader_left)     \
  X(pin_locked) X(pin_written) X(pin_released) X(clear_begin) X(clear_end) X(recover_begin) X(recover_end)        \
  X(wait_rows) X(wait_space) X(cut_locked) X(cut_held) X(cut_copying) X(cut_released)                                            \
  X(draw_marked) X(draw_unmarked) X(draw_undone) X(epoch_marked) X(epoch_counted) X(epoch_leaves) X(epoch_done)  \
  X(remove_chosen) X(remove_done) X(victim_written) \
  X(queue_reserved) X(queue_written) X(queue_locked) X(queue_noted) X(queue_halfway) X(queue_published)          \
  X(lease_locked) X(lease_written) X(lease_row) X(lease_made) X(lease_copied)                                     \
  X(ack_locked) X(ack_row_marked) X(ack_marked) X(ack_decided) X(ack_row) X(ack_done) X(ack_left)                 \
  X(return_begin) X(return_row) X(return_done)                                                                    \
  X(tier_given) X(tier_chosen) X(tier_taken) X(tier_copied) X(tier_placed) X(tier_confirmed) X(tier_sync)

enum class Failpoint : int {
#define X(name) name,
  CONDUIT_FAILPOINT_LIST(X)
#undef X
      count
};

enum class FailAction : int { none = 0, kill = 1, stop = 2, pause = 3, exit_thread = 4, fail = 5 };

#ifdef CONDUIT_FAILPOINTS
bool failpoint_hit(Failpoint point);  // true: what follows is to fail
// Arms one point for this process: acts at its `nth` next pass (1 = the next). `pause` spins until `failpoint_resume`.
// `exit_thread` counts and ends only threads that are mortal. They end as a kill would end them: no destructor runs, what
// they hold stays as it is, and the kernel marks their robust mutexes.
void failpoint_arm(const std::string& name, FailAction action, long nth);
void failpoint_resume();
void failpoint_mortal(bool mortal);  // whether `exit_thread` may end the calling thread
long failpoint_hits(const std::string& name);
std::vector<std::string> failpoint_names();
#define FAILPOINT_FAILS(name) ::conduit::failpoint_hit(::conduit::Failpoint::name)
#define FAILPOINT(name) ((void)FAILPOINT_FAILS(name))
#else
#define FAILPOINT_FAILS(name) false
#define FAILPOINT(name) ((void)0)
#endif

}  // namespace conduit
