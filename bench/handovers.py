"""One process waits for another through a limiter, and what the bare futex takes for the same, in turns.

    python -m bench.handovers [--seconds 2] [--rounds 5]

A round trip is two hand-overs, each to a process that waits. `limiter/rows`: a sampler waits for an append.
`limiter/room`: an append waits for a sample. Both go through tables with SampleToInsertRatio(1, error_buffer=1).
`futex`: two words and the system calls, in C. One JSON line each: microseconds of a round trip, medians.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import conduit
from bench.ceilings import library
from bench.timing import beside

MAX_SIZE = 10_000
WARM = 200


class LimiterSide:
    """Two tables: what one process does to the first lets the other go on, and the other way round."""

    def __init__(self, room: bool) -> None:
        self.room = room
        self.store = conduit.Store.create(f"bench-handover-{os.getpid()}", "64MiB")
        limiter = conduit.limiters.SampleToInsertRatio(1, min_size=1, error_buffer=1)
        schema = conduit.Schema.from_example({"x": np.int64(0)})
        self.tables = [self.store.create_table(name, schema, MAX_SIZE, limiter=limiter) for name in ("there", "back")]
        if room:
            for table in self.tables:
                table.extend({"x": np.zeros(2, np.int64)})
        self.writer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"room": self.room, "tables": self.tables}

    def _step(self, append: conduit.Table, sample: conduit.Table, first: bool) -> Callable[[], None]:
        writer = append.writer(timeout=60.0)
        self.writer = writer
        if first != self.room:

            def append_first() -> None:
                writer.append(x=0)
                sample.sample(1, timeout=60.0)

            return append_first

        def sample_first() -> None:
            sample.sample(1, timeout=60.0)
            writer.append(x=0)

        return sample_first

    def ping(self) -> Callable[[], None]:
        there, back = self.tables
        return self._step(back, there, True) if self.room else self._step(there, back, True)

    def pong(self) -> None:
        there, back = self.tables
        step = self._step(there, back, False) if self.room else self._step(back, there, False)
        while True:
            step()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.store.close()


def pong(side: LimiterSide) -> None:
    """Answers until it is killed."""
    side.pong()


def measure_limiter(room: bool, seconds: float) -> float:
    """Microseconds of a round trip, the median."""
    side = LimiterSide(room)
    try:
        with beside(pong, side):
            turn = side.ping()
            for _ in range(WARM):
                turn()
            took: list[int] = []
            end = time.perf_counter_ns() + int(seconds * 1e9)
            while (before := time.perf_counter_ns()) < end:
                turn()
                took.append(time.perf_counter_ns() - before)
            return statistics.median(took) / 1e3
    finally:
        side.close()


def measure_futex(seconds: float) -> float:
    """The same through two words that two processes sleep on."""
    core = library()
    words = mmap.mmap(-1, mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(words))
    child = os.fork()
    if child == 0:
        core.futex_pong(ctypes.c_void_p(at))
        os._exit(0)
    took = np.zeros(int(seconds * 1e6))
    core.futex_ping.restype = ctypes.c_uint64
    done = core.futex_ping(
        ctypes.c_void_p(at), ctypes.c_uint64(int(seconds * 1e9)), ctypes.c_uint64(len(took)),
        took.ctypes.data_as(ctypes.c_void_p),
    )  # fmt: skip
    os.waitpid(child, 0)
    return float(np.median(took[min(WARM, done // 2) : done])) / 1e3


CASES: dict[str, Callable[[float], float]] = {
    "futex": measure_futex,
    "limiter/rows": lambda seconds: measure_limiter(False, seconds),
    "limiter/room": lambda seconds: measure_limiter(True, seconds),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.handovers", description="Limiters beside a bare futex.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    seen: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(given.rounds):
        for name, measure in CASES.items():
            seen[name].append(measure(given.seconds))
    bare = statistics.median(seen["futex"])
    for name, rounds in seen.items():
        median = statistics.median(rounds)
        line = {"case": name, "unit": "us", "median": round(median, 2), "over_futex": round(median / bare, 2)}
        print(json.dumps({**line, "rounds": [round(value, 2) for value in rounds]}), flush=True)


if __name__ == "__main__":
    main()
