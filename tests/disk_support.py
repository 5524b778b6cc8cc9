"""What the tests of tables with rows on disk share: rows that say themselves what they must be, and waiting."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from conduit import Batch, Column, ConfigError, Disk, LockTimeout, Schema, Store, Table
from conduit_store.native import native
from tests.waiting import until

SCHEMA = Schema((Column("x", np.dtype("i8")), Column("img", np.dtype("u1"), (200,)), Column("done", np.dtype("?"))))
EPISODIC = Schema(
    (
        Column("obs", np.dtype("i8"), (16,)), Column("action", np.dtype("i8")), Column("reward", np.dtype("f4")),
        Column("terminated", np.dtype("?")), Column("truncated", np.dtype("?")),
    )
)  # fmt: skip


def columns(first: int, n: int) -> dict[str, Any]:
    """Rows `first` to `first + n`."""
    x = np.arange(first, first + n)
    return {"x": x, "img": np.repeat((x % 251).astype(np.uint8)[:, None], 200, axis=1), "done": x % 3 == 0}


def check(batch: Batch) -> None:
    """Every row is whole, and is the one that its number says."""
    x = np.asarray(batch["x"])
    assert (np.asarray(batch["img"]) == (x % 251)[:, None]).all()
    assert (np.asarray(batch["done"]) == (x % 3 == 0)).all()


def create(
    store: Store, folder: Path, max_size: int = 4_000, host: str = "200KB", *, compression: str | None = None,
    **options: Any,
) -> Table:  # fmt: skip
    """A table of which about a quarter fits in memory."""
    options.setdefault("max_writers", 2)
    return store.create_table("t", SCHEMA, max_size, disk=Disk(folder, host, compression=compression), **options)


def with_least_memory(folder: Path, create: Callable[[Disk], Table], compression: str | None = None) -> Table:
    """A table with as little memory as it may have beside its disk."""
    try:
        return create(Disk(folder, 1, compression=compression))
    except ConfigError as error:
        least = re.search(r"Give at least ([\d,]+) bytes", str(error))
        if least is None:
            raise
        return create(Disk(folder, int(least[1].replace(",", "")), compression=compression))


def tier(table: Table) -> dict[str, int]:
    return table._native.tier()


def fill(table: Table, n: int, first: int = 0, step: int = 100) -> None:
    for at in range(first, first + n, step):
        table.extend(columns(at, step))


def settled(table: Table) -> None:
    """Wait until nothing is left to be moved."""
    least = max(2, min(64, tier(table)["frames"] // 16))
    until(lambda: tier(table)["frames_free"] >= least)


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """This process writes files up to so many bytes, and no further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def arm_again(point: str, action: str) -> None:
    """In the child of `stopped_outside`: be struck once more at each SIGUSR1."""
    signal.signal(signal.SIGUSR1, lambda *_: native.failpoint_arm(point, action, 1))


def stopped_outside(table: Table, child: int) -> None:
    """Wait until a child is stopped while no thread of it is in the table's lock: a stop stops all of them."""
    while True:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        try:
            tier(table)
        except LockTimeout:
            os.kill(child, signal.SIGUSR1)
            os.kill(child, signal.SIGCONT)
        else:
            return


def move_again(table: Table) -> None:
    """Have this process move blocks again, after `table._disk.stop()`."""
    assert table._disk is not None
    table._disk._stop.clear()
    table._disk._pid = 0
    table._disk.start()
