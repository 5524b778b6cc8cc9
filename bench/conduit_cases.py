"""Conduit behind the driver interface, and the case that is its own: memory at capacity."""

from __future__ import annotations

import os
from typing import Any

import conduit
from bench.driver import Append, one_row
from bench.workloads import Rows, Workload, make_rows, split
from conduit_store.layout import plan

ALPHA, BETA = 0.6, 0.4
MAX_WRITERS = 8


def create(
    workload: Workload, capacity: int, prioritized: bool, max_writers: int = MAX_WRITERS
) -> tuple[conduit.Store, conduit.Table]:
    """A store of one table of plain transitions."""
    example = one_row(make_rows(workload, 1))
    store = conduit.Store.create(f"bench-{os.getpid()}", host_memory=None)
    sampler: Any = conduit.samplers.Prioritized(alpha=ALPHA, beta=BETA) if prioritized else conduit.samplers.Uniform()
    schema = conduit.Schema.from_example(example)
    return store, store.create_table("rows", schema, capacity, sampler=sampler, max_writers=max_writers)


class ConduitDriver:
    """One table in a store of its own. Writer processes get the table by pickling: they attach by its name."""

    start_method = "spawn"

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        self.store, self.table = create(workload, capacity, prioritized)
        self.writer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table, "store": None, "writer": None}

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        part: Any = one_row(rows) if len(rows["reward"]) == 1 else rows
        return part if priorities is None else (part, priorities)

    def appender(self, batch: int, own_priorities: bool) -> Append:
        if batch == 1:
            self.writer = self.table.writer()
            append = self.writer.append
            if own_priorities:
                return lambda part: append(**part[0], priority=part[1][0])
            return lambda part: append(**part)
        extend = self.table.extend
        if own_priorities:
            return lambda part: extend(part[0], priorities=part[1])
        return extend

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        batch = self.table.sample(n)
        return batch.torch(), batch.keys

    def update(self, handle: Any, priorities: Any) -> object:
        return self.table.update_priorities(handle, priorities)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        if self.store is not None:
            self.store.close()


class MemoryCase:
    """Bytes held by the store's segments when a prioritized table is full, over the bytes of its rows.

    Counted from outside: blocks that the kernel gave to the memory files which this process maps. Open blocks, one a
    writer and one more, are allowed on top and subtracted.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.row_bytes: int = workload.row_bytes
        self.limit_bytes = 1.05 * self.row_bytes + 24  # a row
        self.mean_episode: float | None = None  # steps
        before = memory_files()
        self.store, self.table = self.filled()
        self.held = sum(bytes_ for file, bytes_ in memory_files().items() if file not in before)

    def filled(self) -> tuple[conduit.Store, conduit.Table]:
        """A table that has wrapped."""
        store, table = create(self.workload, self.workload.held, prioritized=True)
        parts = split(make_rows(self.workload, 1_024), 512)
        for i in range(self.workload.held * 5 // 4 // 512):
            table.extend(parts[i % len(parts)])
        return store, table

    def slice(self, seconds: float) -> None:
        """Nothing changes with time."""

    def result(self) -> dict[str, Any]:
        rows, row_bytes = len(self.table), self.row_bytes
        open_blocks = (MAX_WRITERS + 1) * block_bytes(self.table, self.mean_episode)
        overhead = (self.held - open_blocks) / rows - row_bytes
        return {
            "unit": "bytes",
            "median": self.held - open_blocks,
            "n": 1,
            "rows": rows,
            "row_bytes": row_bytes,
            "held_bytes": self.held,
            "open_block_bytes": open_blocks,
            "over_row_bytes": round((self.held - open_blocks) / (rows * row_bytes), 4),
            "limit_bytes": round(rows * self.limit_bytes),
            "overhead_bytes_per_row": round(overhead, 2),
            "ceiling": {"what": "the rows themselves", "median": rows * row_bytes},
        }

    def close(self) -> None:
        self.store.close()


def block_bytes(table: conduit.Table, mean_episode: float | None = None) -> int:
    """Bytes of one block of the table."""
    return plan(table.schema, table.max_size, max_writers=MAX_WRITERS, mean_episode_length=mean_episode).block_bytes


def memory_files() -> dict[int, int]:
    """Inode and allocated bytes of every memory file that this process holds open."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:"):
                status = os.stat(f"/proc/self/fd/{name}")
                found[status.st_ino] = status.st_blocks * 512
        except OSError:  # the listing's own descriptor
            continue
    return found
