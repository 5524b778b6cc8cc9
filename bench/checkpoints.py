"""Checkpoints: `python -m bench.checkpoints --folder DIR`. JSON lines; in one run

- how long appends and samples take while nobody saves and while a checkpoint is being taken: 4 writers, 2 learners
  (each a process), a prioritized table that is full;
- how fast a full checkpoint is written and restored, beside `cp -r` of the same files, without and with the sync that
  follows, from the disk and from the page cache;
- how long an incremental one takes.

The folder decides what is measured: give one on the disk that is meant.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

import conduit
from bench.workloads import WORKLOADS, Workload, make_rows
from conduit import checkpoints, samplers

WRITERS, LEARNERS = 4, 2
_BATCH = 256
_PIECE = 64  # rows of an append


def schema_of(workload: Workload) -> conduit.Schema:
    columns = workload.columns.items()
    return conduit.Schema(tuple(conduit.Column(name, dtype, shape) for name, (shape, dtype) in columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints go")
    parser.add_argument("--gib", type=float, default=2.0, help="rows of a table (%(default)s)")
    parser.add_argument("--only", choices=list(WORKLOADS), nargs="*", default=["W1", "W3"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5.0, help="MB a second that each writer appends (%(default)s)")
    arguments = parser.parse_args()
    for name in arguments.only:
        measure(WORKLOADS[name], arguments)


def measure(workload: Workload, arguments: argparse.Namespace) -> None:
    rows = int(arguments.gib * 2**30) // workload.row_bytes
    name, folder = f"bench-{os.getpid()}", arguments.folder / "saved"
    with conduit.Store.create(name, int(arguments.gib * 2**30 * 1.3)) as store:
        table = store.create_table(
            "t", schema_of(workload), rows, sampler=samplers.Prioritized(0.6, 0.4), max_writers=WRITERS
        )
        pool = make_rows(workload, 1_024 if workload.name == "W3" else 65_536)
        n = len(pool["reward"])
        for first in range(0, rows, n):
            table.extend({key: values[: min(n, rows - first)] for key, values in pool.items()})
        table.sample(1)
        for number in range(arguments.rounds):
            shutil.rmtree(folder, ignore_errors=True)
            os.sync()
            say(workload, "full", number, **speeds(store, folder, arguments.folder, f"{name}-again"))
        say(workload, "pauses", 0, **pauses(store, name, folder, workload, arguments))
    shutil.rmtree(folder)


def say(workload: Workload, what: str, number: int, **values: Any) -> None:
    print(json.dumps({"workload": workload.name, "case": what, "round": number, **values}), flush=True)


def speeds(store: conduit.Store, folder: Path, parent: Path, again: str) -> dict[str, Any]:
    began = time.monotonic()
    info = store.checkpoint(folder)
    written = time.monotonic() - began
    gb = info.bytes / 1e9
    found = {"GB": round(gb, 3), "checkpoint_GBps": round(gb / written, 3)}
    # Of files that are not in the page cache, then of files that are.
    for where in ("disk", "cache"):
        copied, synced = copy_of(folder, parent / "copied", cold=where == "disk")
        restored = timed_restore(folder, again, cold=where == "disk")
        found[f"cp_from_{where}_GBps"] = round(gb / copied, 3)
        found[f"cp_and_sync_from_{where}_GBps"] = round(gb / synced, 3)
        found[f"restore_from_{where}_GBps"] = round(gb / restored, 3)
    began = time.monotonic()
    checkpoints.verify(folder)
    found["verify_GBps"] = round(gb / (time.monotonic() - began), 3)
    began = time.monotonic()
    small = store.checkpoint(folder)
    found["incremental_s"] = round(time.monotonic() - began, 3)
    found["incremental_GB"] = round(small.written / 1e9, 3)
    return found


def copy_of(folder: Path, copy: Path, *, cold: bool) -> tuple[float, float]:
    """Return how long `cp -r` takes, and with the sync after it."""
    forget(folder, cold)
    began = time.monotonic()
    subprocess.run(["cp", "-r", folder, copy], check=True)
    copied = time.monotonic() - began
    os.sync()
    synced = time.monotonic() - began
    shutil.rmtree(copy)
    return copied, synced


def timed_restore(folder: Path, name: str, *, cold: bool) -> float:
    forget(folder, cold)
    began = time.monotonic()
    with conduit.Store.restore(folder, name):
        return time.monotonic() - began


def forget(folder: Path, cold: bool) -> None:
    """Take files out of the page cache."""
    for path in folder.iterdir() if cold else ():
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def pauses(
    store: conduit.Store, name: str, folder: Path, workload: Workload, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Percentiles in ms of appends and samples, at rest and while checkpoints are written."""
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    roles = [(append, WRITERS), (learn, LEARNERS)]
    rate = arguments.rate * 1e6 / workload.row_bytes
    team = [
        context.Process(target=role, args=(name, workload.name, rate, stop, results))
        for role, count in roles
        for _ in range(count)
    ]
    for process in team:
        process.start()
    for _ in team:
        results.get()  # ready
    windows: list[tuple[float, float]] = []
    locked_ms: list[float] = []
    time.sleep(5)
    quiet = (time.monotonic() - 5, time.monotonic())
    for _ in range(arguments.rounds):
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        locked_ms.append(round(store.checkpoint(folder).locked_s * 1e3, 3))
        windows.append((began, time.monotonic()))
        time.sleep(1)
    stop.set()
    told = [results.get() for _ in team]
    for process in team:
        process.join()
    found: dict[str, Any] = {"saving_s": round(sum(b - a for a, b in windows), 2), "locked_ms": locked_ms}
    for kind in ("append", "sample"):
        calls = np.concatenate([times for what, times in told if what == kind])
        for label, spans in (("quiet", [quiet]), ("saving", windows)):
            chosen = np.zeros(len(calls), bool)
            for a, b in spans:
                chosen |= (calls[:, 0] + calls[:, 1] > a) & (calls[:, 0] < b)
            taken = calls[chosen, 1] * 1e3
            found[f"{kind}_{label}_ms"] = {
                "calls": len(taken), "p50": round(float(np.percentile(taken, 50)), 3),
                "p99": round(float(np.percentile(taken, 99)), 3), "p99.9": round(float(np.percentile(taken, 99.9)), 3),
                "max": round(float(taken.max()), 3),
            }  # fmt: skip
    return found


def append(name: str, workload: str, rate: float, stop: Event, results: Any) -> None:
    pool = make_rows(WORKLOADS[workload], _PIECE)
    times: list[tuple[float, float]] = []
    with conduit.Store.attach(name) as store:
        table = store["t"]
        table.extend(pool)
        results.put("ready")
        due = time.monotonic()
        while not stop.is_set():
            began = time.monotonic()
            table.extend(pool)
            times.append((began, time.monotonic() - began))
            due = max(due + _PIECE / rate, began)
            time.sleep(max(0.0, due - time.monotonic()))
    results.put(("append", np.array(times)))


def learn(name: str, _workload: str, _rate: float, stop: Event, results: Any) -> None:
    times: list[tuple[float, float]] = []
    with conduit.Store.attach(name) as store:
        table = store["t"]
        table.sample(_BATCH)
        results.put("ready")
        while not stop.is_set():
            began = time.monotonic()
            batch = table.sample(_BATCH)
            times.append((began, time.monotonic() - began))
            table.update_priorities(batch.keys, batch.probabilities + 0.5)
            time.sleep(0.005)  # a learner computes
    results.put(("sample", np.array(times)))


if __name__ == "__main__":
    main()
