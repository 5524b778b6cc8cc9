"""How costs grow: with rows in the table, rows in a batch, blocks, tables, writers and readers.

    python -m bench.growth [--only rows,batch,blocks,tables,writers,readers] [--largest 100000000] [--out FOLDER]

W1 rows, a prioritized table. Every point is measured in a process of its own, `--rounds` times over (once where that
takes long: the largest table, many processes); the median is kept. growth.jsonl, .md and .png go to FOLDER
(bench/results). A point that does not fit into the memory that is available is said, not measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import conduit
from bench.conduit_cases import create
from bench.machine import describe
from bench.report import FOLDER, markdown_table, number
from bench.runner import MEMORY_SHARE, available_bytes
from bench.timing import end_with_parent, timed_calls
from bench.workloads import W1, make_rows, split
from conduit_store.layout import plan

SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
BATCHES = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384)
OPEN_BLOCKS = (1, 8, 64, 512)  # writers a table of a million rows is made for: the more, the smaller its blocks
TABLES = (1, 4, 16, 64)
PROCESSES = (1, 2, 4, 8, 16, 32, 64)
SHARED_ROWS = 200_000
ROW_BYTES = 72  # of W1 with its index
SLICE_S = 0.3
BESIDE_S = 3.0
START_S = 300.0
Point = dict[str, Any]  # "curve", "x" and the measured values by name
UNITS = {
    "rows": ("rows in the table", "us a call"),
    "batch": ("rows in a batch", "us a row"),
    "blocks": ("blocks of the table", "us a call"),
    "tables": ("tables of the store", "ms, MiB"),
    "writers": ("writer processes", "a second"),
    "readers": ("reader processes", "a second"),
}


def filled(rows: int, max_writers: int = 8) -> tuple[conduit.Store, conduit.Table]:
    """A table at capacity with priorities of its own for a part of its rows."""
    store, table = create(W1, rows, prioritized=True, max_writers=max_writers)
    parts = split(make_rows(W1, 8_192), 4_096)
    for i in range(-(-rows * 5 // 4 // 4_096)):
        table.extend(parts[i % len(parts)])
    chance = np.random.default_rng(1)
    for _ in range(min(rows // 256, 2_000)):
        table.update_priorities(table.sample(256).keys, chance.random(256, np.float32) + np.float32(0.01))
    return store, table


def calls_of(table: conduit.Table) -> dict[str, Callable[[], object]]:
    rows = make_rows(W1, 512)
    row = {name: column[0] for name, column in rows.items()}
    keys = table.sample(256).keys
    new = np.random.default_rng(2).random(256, np.float32) + np.float32(0.1)
    writer = table.writer()
    return {
        "sample 256": lambda: table.sample(256),
        "update 256": lambda: table.update_priorities(keys, new),
        "extend 512": lambda: table.extend(rows),
        "append 1": lambda: writer.append(**row),
    }


def us(call: Callable[[], object]) -> float:
    return float(np.median(timed_calls(call, SLICE_S)[0])) / 1e3


def by_rows(rows: int) -> Point:
    store, table = filled(rows)
    with store:
        return {name: us(call) for name, call in calls_of(table).items()} | {"attach": attach_ms(store) * 1e3}


def by_batch(batch: int) -> Point:
    store, table = filled(1_000_000)
    with store:
        rows = make_rows(W1, batch)
        calls: dict[str, Callable[[], object]] = {
            "sample": lambda: table.sample(batch), "extend": lambda: table.extend(rows),
        }  # fmt: skip
        return {name: us(call) / batch for name, call in calls.items()}


def by_blocks(writers: int) -> Point:
    store, table = filled(1_000_000, writers)
    with store:
        blocks = plan(table.schema, table.max_size, max_writers=writers, mean_episode_length=None).blocks
        return {"x": blocks, **{name: us(call) for name, call in calls_of(table).items()}}


def by_tables(tables: int) -> Point:
    """What a process pays to attach and write one row, by the store's tables."""
    store, table = filled(100_000)
    with store:
        for i in range(1, tables):
            store.create_table(f"table-{i}", table.schema, 10_000)
        pages = {"attach, ms": attach_ms(store)}
        answers: Any = multiprocessing.get_context("spawn").SimpleQueue()
        child = multiprocessing.get_context("spawn").Process(target=write_one, args=(store.name, answers))
        child.start()
        child.join(START_S)
        held: Point = answers.get()
        return pages | held


def attach_ms(store: conduit.Store) -> float:
    took: list[float] = []
    for _ in range(9):
        start = time.perf_counter()
        attached = conduit.Store.attach(store.name)
        attached.table("rows")
        took.append((time.perf_counter() - start) * 1e3)
        attached.close()
    return statistics.median(took)


def write_one(name: str, answers: Any) -> None:
    """An actor's process: what it holds of its own after a row was written, and what it has loaded."""
    with conduit.Store.attach(name) as store, store.table("rows").writer() as writer:
        writer.append(**{column: values[0] for column, values in make_rows(W1, 1).items()})
        held = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
        private = sum(int(line.split()[1]) for line in held.splitlines() if line.startswith("Private_"))
        heavy = [module for module in ("torch", "ray", "cupy", "pyarrow") if module in sys.modules]
        threads = len(os.listdir("/proc/self/task"))
        answers.put({"private, MiB": private / 1024, "threads": threads, "heavy modules": len(heavy)})


def by_processes(kind: str, processes: int) -> Point:
    """Rows (or batches) a second of all, and the least of one beside the mean: who is served worst.

    Beside writers this process samples and updates as a learner; beside readers it appends 32 rows at a time.
    """
    store, table = create(W1, SHARED_ROWS, prioritized=True, max_writers=max(8, processes))
    with store:
        rows = make_rows(W1, 4_096)
        for part in split(rows, 512) * (SHARED_ROWS * 5 // 4 // 4_096 + 1):
            table.extend(part)
        context: Any = multiprocessing.get_context("spawn")
        done = context.Array("q", 8 * (processes + 1), lock=False)  # a cache line each; the last says: stop
        ready = context.Semaphore(0)
        target = write_rows if kind == "writers" else read_batches
        others = [
            context.Process(target=target, args=(table, done, k, processes, ready), daemon=True)
            for k in range(processes)
        ]
        try:
            for process in others:
                process.start()
            for _ in others:
                if not ready.acquire(timeout=START_S):
                    raise RuntimeError(f"{processes} {kind} did not start within {START_S:.0f} s")
            part = {name: column[:32] for name, column in rows.items()}
            new = np.random.default_rng(2).random(256, np.float32) + np.float32(0.1)

            def learn() -> None:
                table.update_priorities(table.sample(256).keys, new)

            call: Callable[[], object] = learn if kind == "writers" else functools.partial(table.extend, part)
            timed_calls(call, 0.3)
            before, start = [done[8 * k] for k in range(processes)], time.perf_counter()
            mine = len(timed_calls(call, BESIDE_S)[0])
            took = time.perf_counter() - start
            each = np.array([done[8 * k] for k in range(processes)]) - before
            done[8 * processes] = 1
            ours, theirs = ("batches", "rows") if kind == "writers" else ("rows", "batches")
            scale = 1 if kind == "writers" else 32
            return {
                theirs: float(each.sum()) / took,
                f"{ours} of one process beside them": mine * scale / BESIDE_S,
                "least of one over the mean": float(each.min() / max(each.mean(), 1e-9)),
            }
        finally:
            for process in others:
                process.kill()
                process.join()


def write_rows(table: conduit.Table, done: Any, k: int, stop: int, ready: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    parts = split(make_rows(W1, 1_024), 32)
    turn = 0
    ready.release()
    while not done[8 * stop]:
        table.extend(parts[turn % len(parts)])
        turn += 1
        done[8 * k] = turn * 32


def read_batches(table: conduit.Table, done: Any, k: int, stop: int, ready: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    turn = 0
    ready.release()
    while not done[8 * stop]:
        table.sample(256)
        turn += 1
        done[8 * k] = turn


CURVES: dict[str, tuple[Callable[[int], Point], tuple[int, ...]]] = {
    "rows": (by_rows, SIZES),
    "batch": (by_batch, BATCHES),
    "blocks": (by_blocks, OPEN_BLOCKS),
    "tables": (by_tables, TABLES),
    "writers": (functools.partial(by_processes, "writers"), PROCESSES),
    "readers": (functools.partial(by_processes, "readers"), PROCESSES),
}


def apart(measure: Callable[[int], Point], x: int) -> Point:
    """Measured in a fresh process, so that no point inherits another's heap or pages.

    Raises:
        RuntimeError: it ended without an answer.
    """
    context: Any = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=answer, args=(measure, x, theirs))
    child.start()
    theirs.close()
    try:
        found: Point = ours.recv()
    except EOFError:
        child.join()
        raise RuntimeError(f"the process that measured {x} ended with {child.exitcode}") from None
    except BaseException:
        child.terminate()
        raise
    child.join()
    return {"x": x, **found}


def answer(measure: Callable[[int], Point], x: int, pipe: Any) -> None:
    end_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pipe.send(measure(x))


def points(curve: str, largest: int, rounds: int) -> Iterator[Point]:
    """The curve's points, each the median of its rounds."""
    measure, places = CURVES[curve]
    for x in places:
        rows = x if curve == "rows" else 0
        if rows > largest:
            continue
        if rows * ROW_BYTES * 1.3 > available_bytes() * MEMORY_SHARE:
            size = f"{rows * ROW_BYTES >> 20:,} MiB"
            print(f"{curve} {x:,}: not measured, {size} do not fit into memory", file=sys.stderr)
            continue
        once = rows >= 100_000_000 or curve in ("writers", "readers")
        found = [apart(measure, x) for _ in range(1 if once else rounds)]
        yield {"curve": curve, **{name: statistics.median(point[name] for point in found) for name in found[0]}}


def markdown(machine: dict[str, Any], lines: list[Point]) -> str:
    out = ["# How costs grow", "", "Made by `python -m bench.growth`.", ""]
    out += [f"- {key.replace('_', ' ')}: {shown}" for key, shown in machine["machine"].items()]
    for curve in dict.fromkeys(line["curve"] for line in lines):
        shown = [line for line in lines if line["curve"] == curve]
        names = [name for name in shown[0] if name not in ("curve", "x")]
        rows = [[f"{line['x']:,}", *(number(line[name]) for name in names)] for line in shown]
        head = (UNITS[curve][0], *names)
        out += ["", f"## {curve} ({UNITS[curve][1]})", "", *markdown_table(head, rows)]
    return "\n".join([*out, "", "![growth](growth.png)", ""])


def plot(lines: list[Point], path: Path) -> None:
    """A panel for each curve, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    curves = list(dict.fromkeys(line["curve"] for line in lines))
    across = min(3, len(curves))
    down = -(-len(curves) // across)
    figure, panels = plt.subplots(down, across, figsize=(4.6 * across, 3.6 * down), layout="constrained", squeeze=False)
    for axes in panels.flat[len(curves) :]:
        axes.axis("off")
    for axes, curve in zip(panels.flat, curves, strict=False):
        shown = [line for line in lines if line["curve"] == curve]
        for name in (name for name in shown[0] if name not in ("curve", "x")):
            axes.plot([line["x"] for line in shown], [line[name] for line in shown], marker="o", label=name)
        axes.set(title=curve, xlabel=UNITS[curve][0], ylabel=UNITS[curve][1], xscale="log", yscale="log")
        axes.grid(which="both", alpha=0.25)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda s: s.split(","), default=list(CURVES), help=f"of {','.join(CURVES)}")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="rows of the largest table (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results (%(default)s)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.only if name not in CURVES]:
        parser.error(f"no curve {unknown[0]!r}; there are {', '.join(CURVES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine, lines = describe(), list[Point]()
    try:
        for curve in arguments.only:
            for line in points(curve, arguments.largest, arguments.rounds):
                lines.append(line)
                print(json.dumps(line), flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted: the points measured so far are kept", file=sys.stderr)
        return 130
    finally:
        if lines:
            data = "".join(f"{json.dumps(line)}\n" for line in [machine, *lines])
            (arguments.out / "growth.jsonl").write_text(data, encoding="utf-8")
            (arguments.out / "growth.md").write_text(markdown(machine, lines), encoding="utf-8")
            plot(lines, arguments.out / "growth.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
