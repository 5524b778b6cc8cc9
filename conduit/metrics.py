"""What a store and its tables say of themselves: named tuples, a line for each field."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from conduit import limiting
from conduit.limiters import Limiter, SampleToInsertRatio

__all__ = [
    "ConsumerMetrics", "DiskMetrics", "QueueMetrics", "ReaderMetrics", "StoreMetrics", "TableMetrics", "WriterMetrics",
]  # fmt: skip


class ReaderMetrics(NamedTuple):
    """One process that has read batches of a table, and lives."""

    pid: int  # as its own pid namespace sees it
    batches: int
    rows: int
    idle_s: float  # since the last batch


class WriterMetrics(NamedTuple):
    """One process with open writers."""

    pid: int
    blocks: int  # that its writers hold open


class DiskMetrics(NamedTuple):
    """Where the rows of a table with a disk are, in blocks; counts are over the table's life."""

    frames: int  # blocks that memory has room for
    frames_free: int  # of these, free now or soon
    blocks_on_disk: int  # now
    rows_from_disk: int  # read for samples
    blocks_written: int
    blocks_promoted: int  # read back into memory because their rows were drawn much more often than others
    blocks_dropped: int  # left memory without being written again
    bytes_written: int
    write_s: float  # writing and syncing
    failures: int
    losses: int  # times that numbers which `update` had rewritten on disk may not have reached it
    error: str  # why the last blocks could not be moved; empty if they were

    @classmethod
    def from_native(cls, info: Mapping[str, int]) -> DiskMetrics:
        """Make the record from the core's counters."""
        same = {field: info[field] for field in cls._fields if field in info and field != "error"}
        error = os.strerror(info["error"]) if info["error"] else ""
        return cls(write_s=info["write_ns"] * 1e-9, error=error, **same)


class TableMetrics(NamedTuple):
    """One table, at one moment. Counts are of rows over the table's life unless they say otherwise.

    Seconds are summed over all processes; a writer adds its own when it changes blocks or closes.
    """

    name: str
    rows: int  # live now (steps, for episodes)
    max_size: int
    ready_rows: int  # live now and with all that the window needs
    appended: int
    evicted: int
    sampled_out: int  # part of evicted: delivered max_times_sampled times
    evicted_early: int  # evicted below max_size for want of blocks: many writers, or short episodes
    sampled: int
    batches: int
    discarded_batches: int  # the reader had been stopped for so long that its copy was thrown away
    updated: int
    stale_updates: int  # priorities for rows that were gone
    recoveries: int  # times that a process died holding the index lock
    append_s: float  # inside append, with waits for the index lock
    append_wait_s: float  # waiting for space
    sample_wait_s: float  # waiting for rows
    draw_s: float
    fold_s: float  # part of draw_s and append_s: taking published rows into the index
    gather_s: float
    update_s: float
    limiter: str  # as it is in force
    limiter_inserts: int  # since creation or the last clear
    limiter_samples: int  # drawn and not thrown away; counted, like what follows, by SampleToInsertRatio
    limiter_reserved: int  # of these, not delivered yet
    limiter_cursor: float  # inserts * samples_per_insert - samples
    limiter_low: float  # where the cursor may be
    limiter_high: float
    limiter_append_wait_s: float  # appends waited for samples
    limiter_sample_wait_s: float  # samples waited for rows or inserts; part of sample_wait_s
    total_priority: float
    max_priority: float
    epoch: int  # of draws without replacement, from 1; total_priority then is the rows left in it. 0: no such sampler
    blocks_open: int
    blocks_free: int
    blocks_retired: int
    blocks_pinned: int
    open_writers: int
    writers: tuple[WriterMetrics, ...]
    readers: tuple[ReaderMetrics, ...]  # of a queue: its consumers
    data_bytes: int  # reserved for rows
    index_bytes: int  # reserved for the index
    disk: DiskMetrics | None  # of a table whose rows may lie on disk

    @classmethod
    def from_native(
        cls,
        name: str,
        max_size: int,
        limiter: Limiter,
        data_bytes: int,
        index_bytes: int,
        info: Mapping[str, Any],
        tier: Mapping[str, int] | None,
    ) -> TableMetrics:
        """Make the record from the core's counters. `limiter`: as the table was created."""
        state = info["limiter"]
        ratio = isinstance(limiter, SampleToInsertRatio)
        renamed = {
            "rows": info["live_steps"],
            "appended": info["steps_folded"],
            "evicted": info["steps_evicted"],
            "sampled": info["sampled_rows"],
            "batches": info["sampled_batches"],
            "sampled_out": info["used_up"],
            "limiter": str(limiting.in_force(limiter, state.settings)),
            "limiter_inserts": state.inserts,
            "limiter_samples": state.samples,
            "limiter_reserved": state.reserved,
            "limiter_cursor": state.cursor,
            "limiter_low": state.settings.low if ratio else 0.0,
            "limiter_high": state.settings.high if ratio else 0.0,
            "limiter_append_wait_s": info["limited_append_ns"] * 1e-9,
            "limiter_sample_wait_s": info["limited_sample_ns"] * 1e-9,
            "total_priority": info["total"],
            "writers": tuple(WriterMetrics(*writer) for writer in info["writers"]),
            "readers": tuple(ReaderMetrics(*reader) for reader in info["readers"]),
            **{f"{stage}_s": info[f"{stage}_ns"] * 1e-9 for stage in _STAGES},
        }
        same = {field: info[field] for field in cls._fields if field in info}
        return cls(
            name=name,
            max_size=max_size,
            data_bytes=data_bytes,
            index_bytes=index_bytes,
            disk=None if tier is None else DiskMetrics.from_native(tier),
            **{**same, **renamed},
        )


_STAGES = ("append", "append_wait", "sample_wait", "draw", "fold", "gather", "update")


class ConsumerMetrics(NamedTuple):
    """One consumer group of a queue, in rows."""

    undelivered: int  # waiting now
    leased: int  # delivered and not acknowledged yet
    oldest_lease_s: float  # age of the oldest delivery that is out; 0 when none is
    delivered: int  # over the queue's life, again or not
    acknowledged: int
    redelivered: int  # delivered again because an earlier lease had ended
    stale_rows: int  # dropped because the learner had left their policy behind
    dropped_rows: int  # given up by drop and drop_incomplete


class QueueMetrics(NamedTuple):
    """One queue, at one moment."""

    name: str
    unacknowledged: int  # rows that some consumer group has not acknowledged: what max_size bounds
    max_size: int
    appended: int
    acknowledged: int  # by every group, dropped ones too: gone
    producers: int  # open writers
    leases: int  # deliveries that are out
    expired_leases: int  # ended because their time was over
    orphaned_leases: int  # ended because their process was gone
    released_leases: int  # given back
    policy_version: int  # the learner's
    ended: bool
    consumers: Mapping[str, ConsumerMetrics]

    @classmethod
    def from_native(
        cls, name: str, max_size: int, consumers: Sequence[str], producers: int, info: Mapping[str, Any]
    ) -> QueueMetrics:
        """Make the record from the core's counters."""
        groups = {name: ConsumerMetrics(*group) for name, group in zip(consumers, info["groups"], strict=True)}
        same = {field: info[field] for field in cls._fields if field in info}
        gone = info["appended"] - info["unacknowledged"]
        return cls(
            name=name, max_size=max_size, acknowledged=gone, producers=producers, consumers=groups, **same
        )  # fmt: skip


class StoreMetrics(NamedTuple):
    """One store, at one moment."""

    name: str
    host_memory: int  # bytes that tables may take
    reserved_bytes: int  # bytes of memory behind both segments now
    processes: int  # attached and alive
    tables: Mapping[str, TableMetrics]  # queues too
    queues: Mapping[str, QueueMetrics]
