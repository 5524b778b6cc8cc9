"""What the tests of queues share, and what they ask other processes to do with one."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from conduit import Queue, QueueEnded, SampleTimeout, Store
from tests.store_actions import attached
from tests.store_support import schema

PLAIN = schema(x="i8")
_held: dict[str, Any] = {}


def queue_in(store: Store, max_size: int = 64, name: str = "q", **options: Any) -> Queue:
    return store.create_queue(name, options.pop("schema", PLAIN), max_size, **options)


def put(queue: Queue, *values: int, **options: Any) -> None:
    queue.extend({"x": np.array(values, np.int64)}, **options)


def taken(queue: Queue, n: int | None = None, **options: Any) -> list[int]:
    """Values of the next batch, which is acknowledged."""
    batch = queue.sample(n, **{"timeout": 1.0, **options})
    values: list[int] = batch["x"].tolist()
    batch.ack()
    return values


def rest(queue: Queue, **options: Any) -> list[int]:
    """Values of all rows that wait; they are acknowledged."""
    batch = queue.drain(**options)
    values: list[int] = batch["x"].tolist()
    batch.ack()
    return values


# ---- in other processes


def append(store: str, name: str, values: list[int], at_a_time: int = 1) -> int:
    queue = attached(store).queue(name)
    for first in range(0, len(values), at_a_time):
        put(queue, *values[first : first + at_a_time])
    return os.getpid()


def hold(store: str, name: str, n: int, **options: Any) -> tuple[int, list[int]]:
    """Take a batch and keep it."""
    batch = _held["batch"] = attached(store).queue(name).sample(n, **options)
    return os.getpid(), batch["x"].tolist()


def ack_held() -> int:
    return int(_held.pop("batch").ack())


def drain_in_batches(store: str, name: str, n: int, consumer: str | None = None) -> list[list[int]]:
    """Take and acknowledge batches of `n` rows, the last one shorter, until there are none."""
    queue = attached(store).queue(name)
    batches: list[list[int]] = []
    while True:
        try:
            batches.append(taken(queue, n, timeout=0.3, partial=True, consumer=consumer))
        except (SampleTimeout, QueueEnded):
            return batches


def overfill(store: str, name: str, attempts: int, timeout: float) -> tuple[str, int, int]:
    """Append rows until one does not go in: the error, how many went in, by how many bytes this process has grown."""
    queue = attached(store).queue(name)
    row = {"x": np.zeros(1, np.int64), "payload": np.zeros((1, 1024), np.uint8)}
    queue.extend(row)  # what is allocated once is there
    before, done = _resident(), 1
    for _ in range(attempts):
        try:
            queue.extend(row, timeout=timeout)
        except Exception as error:
            return type(error).__name__ + ": " + str(error), done, _resident() - before
        done += 1
    return "no error", done, _resident() - before


def _resident() -> int:
    """Bytes of memory that are this process's own."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Private_Clean", "Private_Dirty")))


def took_at(store: str, name: str, n: int) -> tuple[list[int], float]:
    """Take a batch; its values and when it came, by the monotonic clock of the machine."""
    values = taken(attached(store).queue(name), n, timeout=30.0)
    return values, time.monotonic()
