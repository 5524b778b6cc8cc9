"""One case in one process: builds the table, then measures in slices of time as it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from bench.cases import BATCH, BESIDE_WRITERS, CEILING, Case
from bench.driver import IMPORTS, Driver, load
from bench.timing import Slices, timed_calls
from bench.workloads import Rows, make_rows, split

FILL = 512
SPREAD_S = 10.0


class Measurement(Protocol):
    """Measures for a while whenever told to, and sums up at the end."""

    def slice(self, seconds: float) -> None: ...
    def result(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def build(driver: str, case: Case) -> Measurement:
    """The measurement of a case, its table filled."""
    if driver == CEILING:
        return Ceiling(case)
    if case.op in BESIDE_WRITERS:
        from bench.cross import CrossCase

        return CrossCase(load(driver), case)
    if case.op == "memory":
        from bench.conduit_cases import MemoryCase

        return MemoryCase(case.rows)
    if case.op == "memory-frames":
        from bench.window_cases import FramesMemoryCase

        return FramesMemoryCase(case)
    if case.op == "import":
        from bench.imports import ImportCase

        return ImportCase(IMPORTS[driver])
    if case.op in ("n-step", "sequence", "stack"):
        from bench.window_cases import WindowCase

        return WindowCase(case)
    return SingleCase(load(driver), case)


class SingleCase:
    """Append, sample or update in the process that holds the table."""

    def __init__(self, driver: type[Driver], case: Case) -> None:
        rows = case.rows
        self.case, self.slices = case, Slices()
        self.pool = make_rows(rows, rows.pool)
        self.last: tuple[dict[str, Any], Any] | None = None
        appends = case.op.startswith("append")
        self.driver = driver(rows, rows.ring if appends else rows.capacity, case.prioritized, False)
        # A ring that is appended to must have wrapped: then every row evicts one.
        fill(self.driver, self.pool, rows.ring * 5 // 4 if appends else rows.filled)
        self.call = self._append_call() if appends else self._sample_call()

    def _append_call(self) -> Callable[[], object]:
        batch, own = self.case.batch, self.case.op == "append-priorities"
        parts = split(self.pool, batch)
        priorities = np.random.default_rng(4).random((len(parts), batch), np.float32) + np.float32(0.1)
        encoded = [self.driver.encode(p, priorities[i] if own else None) for i, p in enumerate(parts)]
        append, turn = self.driver.appender(batch, own), endless(encoded)
        return lambda: append(next(turn))

    def _sample_call(self) -> Callable[[], object]:
        driver, n = self.driver, self.case.batch
        new = np.random.default_rng(2).random(BATCH, np.float32) + np.float32(0.1)
        if self.case.prioritized:
            spread_priorities(driver, 4 * self.case.rows.filled // BATCH)

        def sample() -> None:
            self.last = driver.sample(n)  # the batch before it lives until now, as in a training loop

        def sample_update() -> None:
            self.last = driver.sample(n)
            driver.update(self.last[1], new)

        if self.case.op == "update":
            handle = driver.sample(n)[1]
            return lambda: driver.update(handle, new)
        return sample_update if self.case.op == "sample-update" else sample

    def slice(self, seconds: float) -> None:
        self.slices.add(*timed_calls(self.call, seconds))

    def result(self) -> dict[str, Any]:
        if not self.case.op.startswith("append"):
            check_rows(self.driver.sample(self.case.batch)[0], self.pool, self.case)
        return self.slices.summary(self.case.batch)

    def close(self) -> None:
        self.last = None
        self.driver.close()


class Ceiling:
    """What one core allows for the same bytes, rows and draws."""

    def __init__(self, case: Case) -> None:
        from bench.ceilings import DRAW, GATHER, UPDATE, BatchCeiling, CopyCeiling

        rows, batch = case.rows, case.batch
        self.case, self.slices = case, Slices()
        self.ceiling: BatchCeiling | CopyCeiling
        if case.op.startswith("append"):
            self.ceiling = CopyCeiling(rows, rows.ring, batch)
            return
        drawn = DRAW if case.prioritized else 0
        steps = DRAW | GATHER | UPDATE
        if case.op in ("sample", "n-step", "stack"):
            steps = drawn | GATHER
        elif case.op == "update":
            steps = UPDATE
        if case.op == "sequence":
            from bench.window_cases import SequenceRows

            sequences = SequenceRows(rows)
            n = rows.filled * rows.row_bytes // 2 // sequences.row_bytes  # as many bytes as the steps have
            self.ceiling = BatchCeiling(sequences, n, n, batch, drawn | GATHER)
            return
        capacity, filled = (rows.shared, rows.shared) if case.op in BESIDE_WRITERS else (rows.capacity, rows.filled)
        self.ceiling = BatchCeiling(rows, capacity, filled, batch, steps)

    def slice(self, seconds: float) -> None:
        from bench.ceilings import timed_runs

        self.slices.add(*timed_runs(self.ceiling, seconds))

    def result(self) -> dict[str, Any]:
        return {"what": self.ceiling.what, **self.slices.summary(self.case.batch)}

    def close(self) -> None:
        """The arrays go with the process."""


def endless(items: list[Any]) -> Any:
    """Round and round."""
    while True:
        yield from items


def fill(driver: Driver, pool: Rows, n: int) -> None:
    """Append at least `n` rows from the pool."""
    encoded = [driver.encode(part, None) for part in split(pool, FILL)]
    append = driver.appender(FILL, False)
    for i in range(-(-n // FILL)):
        append(encoded[i % len(encoded)])


def spread_priorities(driver: Driver, batches: int) -> None:
    """Random priorities in (0.01, 1.01) for nearly every row, given to what is sampled: any library can do that.

    As far as SPREAD_S goes: where a sample takes tens of milliseconds, fewer rows get one.
    """
    rng = np.random.default_rng(1)
    end = time.monotonic() + SPREAD_S
    for _ in range(batches // 4):
        if time.monotonic() > end:
            return
        handle = driver.sample(4 * BATCH)[1]
        driver.update(handle, rng.random(4 * BATCH, np.float32) + np.float32(0.01))


def check_rows(tensors: dict[str, Any], pool: Rows, case: Case) -> None:
    """The sampled rows are the pool's; weights are there where they are due.

    Raises:
        RuntimeError: says how many differ: a number measured on wrong rows is worth nothing.
    """
    wrong = wrong_rows(tensors, pool, case)
    if wrong:
        raise RuntimeError(f"{case.name}: {wrong} of {case.batch} sampled rows differ from the rows appended")


def wrong_rows(tensors: dict[str, Any], pool: Rows, case: Case) -> int:
    """How many rows of a sample are not, whole, rows of the pool. Rows are recognised by their rewards."""
    rewards = tensors["reward"].numpy().reshape(-1)
    if len(rewards) != case.batch:
        raise RuntimeError(f"{case.name}: sample of {len(rewards)} rows, not {case.batch}")
    source = np.argsort(pool["reward"])[rewards.astype(np.int64)]
    right = np.ones(len(rewards), bool)
    for name, (shape, _) in case.rows.columns.items():
        got = tensors[name].numpy().reshape(-1, *shape)
        right &= (got == pool[name][source]).reshape(len(right), -1).all(1)
    if case.prioritized:
        right &= tensors["weights"].numpy().reshape(-1) > 0
    return int((~right).sum())
