"""Clocks: every call is timed, in turns (slices) that alternate with those of the other libraries."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

WARM_CALLS = 5
_PR_SET_PDEATHSIG = 1
WARM_SHARE = 0.1  # of a slice: caches were used by the others meanwhile


@dataclass(slots=True)
class Slices:
    """Durations of single calls, one array of nanoseconds a slice, and the seconds each slice took."""

    calls_ns: list[npt.NDArray[np.float64]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, calls_ns: npt.NDArray[np.float64], seconds: float) -> None:
        self.calls_ns.append(calls_ns)
        self.seconds.append(seconds)

    def summary(self, rows_per_call: int) -> dict[str, Any]:
        """Microseconds: median and p99 of all calls, the median of each slice; calls and rows a second."""
        calls = np.concatenate(self.calls_ns) / 1e3
        rates = [len(c) / s for c, s in zip(self.calls_ns, self.seconds, strict=True)]
        return {
            "unit": "us",
            "median": round(float(np.median(calls)), 4),
            "p99": round(float(np.percentile(calls, 99)), 4),
            "n": len(calls),
            "rounds": [round(float(np.median(c)) / 1e3, 4) for c in self.calls_ns],
            "calls_per_s": round(float(np.median(rates)), 1),
            "rows_per_s": round(float(np.median(rates)) * rows_per_call, 1),
            "rounds_rows_per_s": [round(r * rows_per_call, 1) for r in rates],
        }


def timed_calls(call: Callable[[], object], seconds: float) -> tuple[npt.NDArray[np.float64], float]:
    """Call for `seconds`, after a short uncounted start. Returns nanoseconds of each call, and the seconds passed."""
    clock = time.perf_counter_ns
    warm_until = clock() + int(seconds * WARM_SHARE * 1e9)
    done = 0
    while done < WARM_CALLS or clock() < warm_until:
        call()
        done += 1
    took: list[int] = []
    note = took.append
    start = now = clock()
    end = start + int(seconds * 1e9)
    while now < end:
        before = now
        call()
        now = clock()
        note(now - before)
    return np.asarray(took, np.float64), (now - start) / 1e9


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds since boot: busy over all cores, stolen by the hypervisor, used by the processes of a case."""

    busy: float
    steal: float
    own: float
    at: float


def cpu_use(pids: Iterable[int]) -> CpuUse:
    """Read /proc; `pids` are the processes of the case."""
    tick = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(x) for x in file.readline().split()[1:9])
    own = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        own += sum(int(x) for x in fields[11:15])  # user and system, of it and of the children it waited for
    return CpuUse((user + nice + system + irq + softirq) / tick, steal / tick, own / tick, time.perf_counter())


def interference(before: CpuUse, after: CpuUse) -> tuple[float, float]:
    """Cores used meanwhile by processes that are not the case's, and cores stolen by the hypervisor."""
    wall = max(after.at - before.at, 1e-9)
    others = (after.busy - before.busy) - (after.own - before.own)
    return max(others, 0.0) / wall, (after.steal - before.steal) / wall


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent dies, whatever killed that."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


@contextlib.contextmanager
def beside(target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Another process runs `target` meanwhile, and is killed at the end."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
