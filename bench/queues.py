"""Rows from one producer process to one consumer process: a queue beside multiprocessing.Queue, in turns.

    python -m bench.queues [--seconds 2] [--rounds 5]

One JSON line for each case and library: rows a second of the consumer, median over the rounds. Both sides move batches
of 32 rows; the consumer acknowledges each batch and looks at one value of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import conduit
from bench.timing import beside

BATCH = 32
MAX_SIZE = 4_096  # rows between the two, of either library
CASES: dict[str, dict[str, Any]] = {
    "queue/small": {"x": np.zeros(BATCH, np.int64), "reward": np.zeros(BATCH, np.float32)},
    "queue/tokens": {"x": np.zeros(BATCH, np.int64), "tokens": np.zeros((BATCH, 2_048), np.int32)},
}


class ConduitSide:
    """A queue in a store of its own."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.store = conduit.Store.create(f"bench-queue-{os.getpid()}", "512MiB")
        schema = conduit.Schema.from_example({name: column[0] for name, column in columns.items()})
        self.queue = self.store.create_queue("rows", schema, MAX_SIZE, max_writers=1)

    def __getstate__(self) -> dict[str, Any]:
        return {"queue": self.queue}

    def put(self, columns: dict[str, Any]) -> None:
        self.queue.extend(columns, timeout=None)

    def take(self) -> int:
        batch = self.queue.sample(BATCH, timeout=60.0)
        seen = int(batch["x"][0])
        batch.ack()
        return seen

    def close(self) -> None:
        self.store.close()


class MultiprocessingSide:
    """multiprocessing.Queue: pickled arrays through a pipe. It acknowledges nothing."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.queue: Any = multiprocessing.get_context("spawn").Queue(MAX_SIZE // BATCH)

    def put(self, columns: dict[str, Any]) -> None:
        self.queue.put({name: column.copy() for name, column in columns.items()})  # pickled later, by a thread

    def take(self) -> int:
        return int(self.queue.get(timeout=60.0)["x"][0])

    def close(self) -> None:
        self.queue.close()
        self.queue.cancel_join_thread()


SIDES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "conduit": ConduitSide,
    "multiprocessing.Queue": MultiprocessingSide,
}


def produce(side: Any, columns: dict[str, Any]) -> None:
    """Appends batches, numbered, until it is killed."""
    number = 0
    while True:
        columns["x"][:] = number
        side.put(columns)
        number += 1


def measure(make: Callable[[dict[str, Any]], Any], columns: dict[str, Any], seconds: float) -> float:
    """Rows a second."""
    side = make(columns)
    try:
        with beside(produce, side, columns):
            expected = side.take() + 1
            for _ in range(200):  # at full speed before the clock starts
                assert side.take() == expected
                expected += 1
            rows, start = 0, time.perf_counter()
            while (now := time.perf_counter()) - start < seconds:
                assert side.take() == expected
                expected += 1
                rows += BATCH
            return rows / (now - start)
    finally:
        side.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description="Queues beside multiprocessing.Queue.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    given = parser.parse_args()
    for case in given.cases:
        rates: dict[str, list[float]] = {name: [] for name in SIDES}
        for turn in range(given.rounds):
            for name in list(SIDES)[turn % 2 :] + list(SIDES)[: turn % 2]:
                rates[name].append(measure(SIDES[name], CASES[case], given.seconds))
        for name, seen in rates.items():
            rounds = [round(rate) for rate in seen]
            line = {"case": case, "library": name, "rows_per_s": round(statistics.median(seen)), "rounds": rounds}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
