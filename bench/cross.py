"""Writer processes insert, at full speed or at a pace, while a learner samples the table and updates priorities."""

from __future__ import annotations

import importlib
import signal
import time
from typing import Any

import numpy as np

from bench.cases import BATCH, INSERT, PACE, Case
from bench.driver import Driver
from bench.measure import fill, wrong_rows
from bench.timing import Slices, end_with_parent, timed_calls
from bench.workloads import make_rows, split

POOL = 1_024  # rows each writer cycles through
WARM_S = 0.2  # of full speed before the clock starts
START_S = 90.0
PAD = 8  # counters of two writers share no cache line


class CrossCase:
    """One learner (this process) and `case.writers` writers, all resting between slices."""

    def __init__(self, driver: type[Driver], case: Case) -> None:
        rows = case.rows
        self.case, self.slices = case, Slices()
        self.pool = make_rows(rows, POOL)
        self.driver = driver(rows, rows.shared, True, True)
        fill(self.driver, self.pool, rows.shared)
        self.new = np.random.default_rng(3).random(BATCH, np.float32) + np.float32(0.1)
        # torch's own multiprocessing hands tensors over by shared memory; torch is loaded only where a driver needs it
        module = "torch.multiprocessing" if driver.__module__.endswith("torchrl_driver") else "multiprocessing"
        context: Any = importlib.import_module(module).get_context(driver.start_method)
        # rows inserted, by writer; the last says whether they shall insert (cheaper to ask than an event)
        self.counts = context.Array("q", PAD * (case.writers + 1), lock=False)
        self.ready = context.Semaphore(0)
        self.go = context.Event()
        self.writers = [
            context.Process(target=write, args=(self.driver, case, k, self.counts, self.ready, self.go), daemon=True)
            for k in range(case.writers)
        ]
        for process in self.writers:
            process.start()
        for _ in self.writers:
            if not self.ready.acquire(timeout=START_S):
                raise RuntimeError(f"{case.name}: writers did not start within {START_S:.0f} s")
        self.arrivals: list[float] = []
        self.wrong_rows = 0
        self.last: Any = None

    def pids(self) -> list[int]:
        return [p.pid for p in self.writers if p.pid is not None]

    def step(self) -> None:
        self.last = self.driver.sample(BATCH)
        self.driver.update(self.last[1], self.new)

    def inserted(self) -> int:
        return sum(self.counts[PAD * k] for k in range(self.case.writers))

    def slice(self, seconds: float) -> None:
        self.counts[PAD * self.case.writers] = 1
        self.go.set()
        timed_calls(self.step, WARM_S)
        before, start = self.inserted(), time.perf_counter()
        calls, took = timed_calls(self.step, seconds)
        self.arrivals.append((self.inserted() - before) / (time.perf_counter() - start))
        self.wrong_rows += wrong_rows(self.last[0], self.pool, self.case)
        self.counts[PAD * self.case.writers] = 0
        self.go.clear()
        self.slices.add(calls, took)
        dead = [p.exitcode for p in self.writers if not p.is_alive()]
        if dead:
            raise RuntimeError(f"{self.case.name}: writers ended with exit codes {dead}")

    def result(self) -> dict[str, Any]:
        summary = self.slices.summary(BATCH)
        rates = [len(c) / s for c, s in zip(self.slices.calls_ns, self.slices.seconds, strict=True)]
        return {
            **summary,
            "wrong_rows": self.wrong_rows,  # in one batch a slice, drawn while writers wrote
            "batches_per_s": summary["calls_per_s"],
            "rounds_batches_per_s": [round(r, 1) for r in rates],
            "arriving_rows_per_s": round(float(np.median(self.arrivals)), 1),
            "rounds_arriving_rows_per_s": [round(a, 1) for a in self.arrivals],
        }

    def close(self) -> None:
        for process in self.writers:
            process.kill()
        for process in self.writers:
            process.join()
        self.last = None
        self.driver.close()


def write(driver: Driver, case: Case, k: int, counts: Any, ready: Any, go: Any) -> None:
    """A writer process: inserts while `go` is set. Ends with the learner, whatever becomes of it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    if driver.start_method == "fork" or "torch" in type(driver).__module__:
        importlib.import_module("torch").set_num_threads(1)
    # all writers and the first fill take the same rows, so that the learner can check what it gets
    encoded = [driver.encode(part, None) for part in split(make_rows(case.rows, POOL), INSERT)]
    append, turn, mine, running = driver.appender(INSERT, False), k, PAD * k, PAD * case.writers
    append(encoded[turn % len(encoded)])
    ready.release()
    inserted = 0
    while True:
        go.wait()
        started, before = time.perf_counter(), inserted
        while counts[running]:
            early = started + (inserted - before) / PACE - time.perf_counter()
            if case.op == "paced" and early > 0.0:
                time.sleep(early)
                continue
            append(encoded[turn % len(encoded)])
            turn += 1
            inserted += INSERT
            counts[mine] = inserted
