"""Where a process can be struck: which roles pass each failpoint, and what it takes to get there."""

from __future__ import annotations

__all__ = ["LOCK_FREE", "PREPARED", "QUEUE_ROLES_AT", "ROLES_AT", "RUN_POINTS", "TIER_POINTS", "WRITING", "strikes"]

WRITING = ("extend", "append", "episodes", "fragments", "vector")
_READING = ("sampler", "updater")
_ANY = (*WRITING, *_READING, "reader", "cleaner")
_LOCKING = (*_ANY, "tuner", "limited")

# Failpoint -> roles that pass it while they do nothing but their ordinary work beside the survivors. The dry run
# in test_points.py holds this against what really happens.
ROLES_AT: dict[str, tuple[str, ...]] = {
    "attach_claimed": ("attacher",),
    "attach_cleaned": ("attacher",),
    "detach_begin": ("attacher",),
    "create_reserving": ("creator",),
    "create_reserved": ("creator",),
    "create_formatted": ("creator",),
    "create_published": ("creator",),
    **dict.fromkeys(("append_row_written", "append_before_publish", "append_published"), (*WRITING, "cleaner")),
    **dict.fromkeys(("append_sealed", "append_released"), (*WRITING, "cleaner")),
    **dict.fromkeys(("append_together", "append_noted", "append_halfway"), ("vector",)),
    "lock_taken": _LOCKING,
    **dict.fromkeys(("open_locked", "open_before_state", "open_after_state", "open_ordered"), (*WRITING, "cleaner")),
    "open_sealed_dead": ("updater",),
    **dict.fromkeys(("fold_begin", "fold_row_ready", "fold_block_leaves", "fold_block_counted", "fold_end"), _ANY),
    "fold_row_linked": ("episodes", "fragments", "vector", *_READING, "reader"),
    **dict.fromkeys(("evict_begin", "evict_marked", "evict_leaves"), (*WRITING, *_READING, "reader")),
    **dict.fromkeys(("evict_counted", "evict_end"), (*WRITING, *_READING, "reader")),
    **dict.fromkeys(("retire_before", "retire_after"), _ANY),
    **dict.fromkeys(("reclaim_before", "reclaim_after"), (*WRITING, "cleaner")),
    **dict.fromkeys(("expel_before", "expel_after"), WRITING),
    **dict.fromkeys(("journal_written", "tree_leaves_written", "tree_level_written", "tree_done"), _ANY),
    "tree_raw_written": (*WRITING, *_READING, "cleaner"),
    **dict.fromkeys(("configure_marked", "configure_leaf"), ("tuner",)),
    **dict.fromkeys(("configure_leaves", "configure_done"), ("tuner",)),
    **dict.fromkeys(("announce_begin", "announce_cleared", "announce_signalled"), ("tuner",)),
    **dict.fromkeys(("settings_written", "settings_switched"), ("tuner", "cleaner")),
    **dict.fromkeys(("limiter_taken", "limiter_delivered", "limiter_returned"), ("limited",)),
    **dict.fromkeys(("insert_locked", "insert_published", "wait_limiter"), ("limited",)),
    **dict.fromkeys(("use_counted", "use_ended", "use_counts"), ("limited",)),
    **dict.fromkeys(("update_locked", "update_done", "rewritten"), ("updater",)),
    **dict.fromkeys(("reader_entered", "draw_locked", "draw_done"), _READING),
    **dict.fromkeys(("draw_marked", "epoch_marked", "epoch_counted", "epoch_leaves", "epoch_done"), ("sampler",)),
    **dict.fromkeys(("draw_unmarked", "draw_undone"), ("sampler",)),
    **dict.fromkeys(("gather_begin", "gather_column", "gather_end", "reader_left"), _READING),
    **dict.fromkeys(("pin_locked", "pin_written", "pin_released"), ("reader",)),
    **dict.fromkeys(("clear_begin", "clear_end"), ("cleaner",)),
    **dict.fromkeys(("recover_begin", "recover_end"), ("extend", "episodes", "sampler", "updater", "reader")),
    **dict.fromkeys(("cut_locked", "cut_held", "cut_copying", "cut_released"), ("saver",)),
    "wait_rows": ("sampler",),
    **dict.fromkeys(("wait_space",), WRITING),
    "evict_bereft": ("episodes", "fragments", "vector", *_READING),
}

# The role that alone writes, draws from and changes the tables whose rows leave one by one passes nearly all of that.
for _point in (
    *("append_row_written", "append_before_publish", "append_published", "lock_taken"),
    *("open_locked", "open_before_state", "open_after_state", "open_ordered"),
    *("fold_begin", "fold_row_ready", "fold_block_leaves", "fold_block_counted", "fold_end"),
    *("evict_begin", "evict_marked", "evict_leaves", "evict_counted", "retire_before", "retire_after"),
    *("reclaim_before", "reclaim_after", "remove_chosen", "remove_done", "victim_written"),
    *("journal_written", "tree_raw_written", "tree_leaves_written", "tree_level_written", "tree_done"),
    *("update_locked", "update_done", "reader_entered", "draw_locked", "draw_done"),
    *("gather_begin", "gather_column", "gather_end", "reader_left", "clear_begin", "clear_end"),
):
    ROLES_AT[_point] = (*ROLES_AT.get(_point, ()), "remover")

# And the one that alone writes and reads rows that vary in length, some of them longer than a block.
for _point in (
    *("append_values_written", "open_annexed", "reclaim_annexed", "gather_measure"),
    *("category_written", "category_added"),
    *("append_row_written", "append_before_publish", "append_published", "append_sealed", "append_released"),
    *("lock_taken", "open_locked", "open_before_state", "open_after_state", "open_ordered"),
    *("fold_begin", "fold_row_ready", "fold_block_leaves", "fold_block_counted", "fold_end"),
    *("evict_begin", "evict_marked", "evict_leaves", "evict_counted", "evict_end", "retire_before", "retire_after"),
    *("reclaim_before", "reclaim_after", "draw_locked", "draw_done", "gather_begin", "gather_column", "gather_end"),
    *("pin_locked", "pin_written", "pin_released", "clear_begin", "clear_end"),
):
    ROLES_AT[_point] = (*ROLES_AT.get(_point, ()), "varying")

# The same of queues, which have a stage of their own (test_queue_kills.py).
QUEUE_ROLES_AT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("queue_reserved", "queue_written", "queue_locked", "queue_noted"), ("producer",)),
    **dict.fromkeys(("queue_halfway", "queue_published"), ("producer",)),
    **dict.fromkeys(("lease_locked", "lease_written", "lease_row", "lease_made", "lease_copied"), ("consumer",)),
    **dict.fromkeys(("ack_locked", "ack_row_marked", "ack_marked", "ack_decided", "ack_row"), ("consumer",)),
    **dict.fromkeys(("ack_done", "ack_left"), ("consumer",)),
    **dict.fromkeys(("return_begin", "return_row", "return_done"), ("consumer",)),
}

# Passed by who moves blocks between memory and disk (test_tier_kills.py).
TIER_POINTS = ("tier_given", "tier_chosen", "tier_taken", "tier_copied", "tier_sync", "tier_placed")
# Passed by who appends a row that is larger than a block to a table with a disk (there too).
RUN_POINTS = ("tier_confirmed",)

# Points outside the locks: while a process is stopped there nobody else waits for it, but at `cut_copying` for the
# two seconds after which writers that come round to the blocks of the cut take them.
LOCK_FREE = frozenset(
    (
        *("attach_claimed", "attach_cleaned", "detach_begin"),
        *("append_row_written", "append_before_publish", "append_published", "append_sealed", "append_released"),
        *("append_values_written", "reader_entered", "gather_begin", "gather_column", "gather_end", "reader_left"),
        *("gather_measure", "pin_released", "wait_rows", "wait_space", "wait_limiter", "draw_undone"),
        *("limiter_delivered", "limiter_returned", "cut_copying", "cut_released"),
        *("announce_begin", "announce_cleared", "announce_signalled"),
        *("queue_written", "lease_copied", "ack_left", "tier_copied", "tier_sync", "tier_confirmed"),
    )
)

# Points that are only passed after something else went wrong: what must happen first (rounds.py does it).
PREPARED = {
    "recover_begin": "dead holder",
    "recover_end": "dead holder",
    "expel_before": "stopped reader",
    "expel_after": "stopped reader",
    "open_sealed_dead": "dead writer",
    "wait_space": "pinned blocks",
}


def strikes() -> list[tuple[str, str]]:
    """Return every (role, failpoint) that can be struck."""
    return [(role, point) for point, roles in ROLES_AT.items() for role in roles]
