"""Runs cases. All libraries of a case are alive at once and take turns, so that a noisy minute hits them alike.

Each (case, library) is a process of its own in that library's environment, with one thread. While one measures, the
others wait for a line of input. The order rotates from round to round.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from bench.cases import BESIDE_WRITERS, CEILING, COUNTED, Case, memory_bytes, needs_ceiling, takes_part
from bench.peers import setup

ROOT = Path(__file__).parent.parent
ONE_THREAD = {f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA")}
MEMORY_SHARE = 0.8  # of what is available may be used by the libraries of one case together


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often: seconds of a slice with one process, and beside writer processes."""

    rounds: int = 5
    slice_s: float = 0.25
    cross_slice_s: float = 1.5

    def seconds(self, case: Case) -> float:
        return self.cross_slice_s if case.op in BESIDE_WRITERS else self.slice_s

    def estimate_s(self, case: Case, drivers: int) -> float:
        """About the seconds of a case, for the time to go before anything was measured."""
        if case.op in COUNTED:
            return 3.0 + drivers
        start = {"W1": 2.0, "W2": 3.5, "W3": 7.0}[case.workload] * drivers * (1.5 if case.op in BESIDE_WRITERS else 1.0)
        return start + drivers * self.rounds * (self.seconds(case) + 0.05)


QUICK = Plan(rounds=3, slice_s=0.15, cross_slice_s=0.8)


class CaseFailed(RuntimeError):
    """A worker process ended or answered with an error."""


class Worker:
    """One library on one case, in a process."""

    def __init__(self, driver: str, case: Case) -> None:
        self.driver, self.case = driver, case
        self.log: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        request = json.dumps({"driver": driver, "case": case.to_json()})
        self.process = subprocess.Popen(
            [interpreter(driver), "-W", "ignore", "-X", "faulthandler", "-m", "bench.worker", request],
            cwd=ROOT, env={**os.environ, **ONE_THREAD}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            CaseFailed: the worker said so, or ended; carries its last words.
        """
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it said before it ended is read below
            print(json.dumps(command), file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise CaseFailed(f"{self.driver} on {self.case.name} ended with {code}: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CaseFailed(f"{self.driver} on {self.case.name}: {answer['error']}")
        return answer

    def last_words(self) -> str:
        self.log.seek(0)
        return " | ".join(self.log.read().strip().splitlines()[-3:]) or "without a word"

    def stop(self) -> None:
        """End the process; its writer processes end with it."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.process.poll() is None:
            try:
                self.process.wait(5.0)  # it closes its table and ends when its input ends
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()


@contextlib.contextmanager
def workers(drivers: list[str], case: Case) -> Iterator[list[Worker]]:
    started: list[Worker] = []
    try:
        started.extend(Worker(driver, case) for driver in drivers)
        yield started
    except BaseException:
        for worker in started:  # do not wait for what they are measuring
            worker.process.terminate()
        raise
    finally:
        for worker in started:
            worker.stop()


def interpreter(driver: str) -> str:
    return str(setup.interpreter(driver))


def run_case(case: Case, drivers: list[str], plan: Plan) -> list[dict[str, Any]]:
    """Measure one case for all drivers that take part. Returns one record a driver, each with the case's ceiling.

    A driver that fails gets a record with `error`; the others go on.
    """
    part = [d for d in drivers if takes_part(d, case)]
    groups = in_memory(([CEILING] if needs_ceiling(case) else []) + part, case) if part else []
    records: dict[str, dict[str, Any]] = {}
    for group in groups:
        records |= take_turns(case, group, plan)
    ceiling = records.pop(CEILING, None)
    lines: list[dict[str, Any]] = []
    for driver, record in records.items():
        line = {"case": case.name, "driver": driver, **case.to_json(), **record, "interleaved": len(groups) == 1}
        if ceiling is not None:
            line["ceiling"] = {
                k: ceiling.get(k) for k in ("what", "unit", "median", "p99", "n", "error") if k in ceiling
            }
        lines.append(line)
    return lines


def take_turns(case: Case, drivers: list[str], plan: Plan) -> dict[str, dict[str, Any]]:
    records: dict[str, dict[str, Any]] = {}
    with workers(drivers, case) as started:
        alive = [w for w in started if attempt(w, records, w.answer) is not None]
        for turn in range(plan.rounds):
            for worker in alive[turn % max(len(alive), 1) :] + alive[: turn % max(len(alive), 1)]:
                if attempt(worker, records, partial(worker.ask, do="slice", seconds=plan.seconds(case))) is None:
                    alive = [w for w in alive if w is not worker]
        for worker in alive:
            answer = attempt(worker, records, partial(worker.ask, do="result"))
            if answer is not None:
                records[worker.driver] = answer
    return {d: records[d] for d in drivers}


def attempt(
    worker: Worker, records: dict[str, dict[str, Any]], ask: Callable[[], dict[str, Any]]
) -> dict[str, Any] | None:
    """The answer, or None after noting the failure."""
    try:
        return ask()
    except CaseFailed as failure:
        records[worker.driver] = {"error": str(failure)}
        return None


def in_memory(drivers: list[str], case: Case) -> list[list[str]]:
    """Drivers that fit into memory together; all in one group wherever possible."""
    limit = available_bytes() * MEMORY_SHARE
    groups: list[list[str]] = [[]]
    used = 0.0
    for driver in drivers:
        need = memory_bytes(driver, case)
        if groups[-1] and used + need > limit:
            groups.append([])
            used = 0.0
        groups[-1].append(driver)
        used += need
    return groups


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 33


class Clock:
    """Time to go: estimates, corrected by how long the cases so far really took."""

    def __init__(self, estimates: list[float]) -> None:
        self.estimates, self.done, self.start = estimates, 0, time.monotonic()

    def step(self) -> None:
        self.done += 1

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start

    @property
    def left_s(self) -> float:
        spent = sum(self.estimates[: self.done])
        pace = self.elapsed_s / spent if self.done else 1.0
        return sum(self.estimates[self.done :]) * pace
