"""Tables of which most rows lie on disk: `python -m bench.disks --folder DIR`. JSON lines; in one run

- batches a second of a table in memory, and of one of which memory holds a part: with the file in the page cache, and
  after it was dropped from there (`cold`), by calls and by a loader that prepares ahead;
- beside them what the disk itself gives for reads of so many bytes at random places: one at a time, and many at a time;
- rows a second appended to both, beside what writing and syncing as many bytes takes.

The folder decides what is measured: give one on the disk that is meant.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import conduit
from bench.checkpoints import schema_of
from bench.workloads import WORKLOADS, Workload, make_rows

BATCH = 256
_AT_ONCE = 32  # reads that the disk is given at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the rows go")
    parser.add_argument("--gib", type=float, default=2.0, help="rows of a table (%(default)s)")
    parser.add_argument("--share", type=float, default=0.125, help="of it that memory holds (%(default)s)")
    parser.add_argument("--only", choices=list(WORKLOADS), nargs="*", default=["W1", "W3"])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case (%(default)s)")
    arguments = parser.parse_args()
    for name in arguments.only:
        measure(WORKLOADS[name], arguments)


def measure(workload: Workload, arguments: argparse.Namespace) -> None:
    rows = int(arguments.gib * 2**30) // workload.row_bytes
    host = int(arguments.gib * 2**30 * arguments.share)
    pool = make_rows(workload, 1_024 if workload.name == "W3" else 65_536)

    def say(where: str, what: str, **values: Any) -> None:
        print(json.dumps({"workload": workload.name, "where": where, "case": what, **values}), flush=True)

    with conduit.Store.create(f"bench-{os.getpid()}", int(arguments.gib * 2**30 * 1.3) + host + (64 << 20)) as store:
        memory = store.create_table("memory", schema_of(workload), rows, max_writers=2)
        say("memory", "append", **appends(memory, pool, rows))
        say("memory", "sample", **batches(lambda: memory.sample(BATCH), arguments.seconds))
        disk = conduit.Disk(arguments.folder, host)
        table = store.create_table("disk", schema_of(workload), rows, max_writers=2, disk=disk)
        say("disk", "append", **appends(table, pool, rows))
        (path,) = arguments.folder.glob("conduit-*-disk.blocks.arrow")
        for state, what in (("cold", "sample"), ("cold", "loader"), ("warm", "sample"), ("warm", "loader")):
            drop(path) if state == "cold" else path.read_bytes()
            say(f"disk, {state}", what, **apart(store.name, what, arguments.seconds))
        for at_once in (1, _AT_ONCE):
            drop(path)
            found = reads(path, workload.row_bytes, at_once, arguments.seconds)
            say("disk itself", f"read, {at_once} at a time", **found)
    say("disk itself", "write and sync", **writes(arguments.folder, host * 2))


def apart(store: str, what: str, seconds: float) -> dict[str, Any]:
    """Batches taken by a process of its own: what another one has mapped could not be dropped from the page cache."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(take_batches, (store, what, seconds))


def take_batches(name: str, what: str, seconds: float) -> dict[str, Any]:
    with conduit.Store.attach(name) as store:
        table = store.table("disk")
        before = table.info().disk
        if what == "sample":
            found = batches(lambda: table.sample(BATCH), seconds)
        else:
            with table.loader(BATCH) as loader:
                found = batches(lambda: next(loader), seconds)
        after = table.info().disk
        assert before is not None
        assert after is not None
        rate = (after.rows_from_disk - before.rows_from_disk) / found["seconds"]
    return {**found, "rows_from_disk_per_s": round(rate)}


def appends(table: conduit.Table, pool: dict[str, Any], rows: int) -> dict[str, Any]:
    n = len(pool["reward"])
    began = time.monotonic()
    for first in range(0, rows, n):
        table.extend({key: values[: min(n, rows - first)] for key, values in pool.items()}, timeout=120.0)
    took = time.monotonic() - began
    return {"rows_per_s": round(rows / took), "GBps": round(rows * table.schema.row_bytes / took / 1e9, 3)}


def batches(take: Callable[[], object], seconds: float) -> dict[str, Any]:
    take()
    times: list[float] = []
    began = last = time.monotonic()
    while last - began < seconds:
        take()
        times.append(time.monotonic() - last)
        last += times[-1]
    return {
        "batches_per_s": round(len(times) / (last - began), 1), "median_ms": round(float(np.median(times)) * 1e3, 3),
        "p99_ms": round(float(np.quantile(times, 0.99)) * 1e3, 3), "seconds": round(last - began, 2),
    }  # fmt: skip


def drop(path: Path) -> None:
    """Out of the page cache, as far as nobody has it mapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def reads(path: Path, nbytes: int, at_once: int, seconds: float) -> dict[str, Any]:
    """Reads of the pages of `nbytes` at random places, past the page cache, by so many threads."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    pages = -(-nbytes // mmap.PAGESIZE) + (nbytes > 1)
    last = os.fstat(fd).st_size // mmap.PAGESIZE - pages
    end = time.monotonic() + seconds

    def read(seed: int) -> int:
        chance = np.random.default_rng(seed)
        done = 0
        with mmap.mmap(-1, pages * mmap.PAGESIZE) as buffer:
            while time.monotonic() < end:
                for page in chance.integers(0, last, 16).tolist():
                    os.preadv(fd, [buffer], page * mmap.PAGESIZE)
                    done += 1
        return done

    with ThreadPoolExecutor(at_once) as threads:
        total = sum(threads.map(read, range(at_once)))
    os.close(fd)
    return {"reads_per_s": round(total / seconds), "MBps": round(total * pages * mmap.PAGESIZE / seconds / 1e6, 1)}


def writes(folder: Path, nbytes: int) -> dict[str, Any]:
    piece, path = b"\x5a" * (4 << 20), folder / "bench-writes"
    began = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(0, nbytes, len(piece)):
            file.write(piece)
        os.fsync(file.fileno())
    took = time.monotonic() - began
    path.unlink()
    return {"GBps": round(nbytes / took / 1e9, 3)}


if __name__ == "__main__":
    main()
