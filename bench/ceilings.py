"""The ceilings, compiled from ceilings.c with `cc` when first needed and kept in the build folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bench.workloads import Workload

if TYPE_CHECKING:
    from bench.window_cases import SequenceRows

SOURCE = Path(__file__).with_name("ceilings.c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
DRAW, GATHER, UPDATE = 1, 2, 4
WHAT = {
    GATHER: "row gather in C",
    DRAW | GATHER: "tree draw + row gather in C",
    UPDATE: "tree update in C",
    DRAW | GATHER | UPDATE: "tree draw + row gather + tree update in C",
}


def library() -> ctypes.CDLL:
    """The compiled ceilings. Raises RuntimeError with the compiler's words when `cc` fails."""
    compiler = os.environ.get("CC", "cc")
    key = hashlib.sha256(SOURCE.read_bytes() + repr((compiler, FLAGS, cpu_model())).encode()).hexdigest()[:16]
    folder = SOURCE.parent.parent / "build" / "bench"
    target = folder / f"ceilings-{key}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=folder, suffix=".so")
        os.close(handle)
        done = subprocess.run([compiler, *FLAGS, "-o", aside, str(SOURCE)], capture_output=True, text=True, check=False)
        if done.returncode:
            os.unlink(aside)
            raise RuntimeError(
                f"{compiler} exit {done.returncode} on {SOURCE}: {done.stderr.strip()}. Set CC to a C compiler"
            )
        os.replace(aside, target)  # two processes may compile at once; either result is right
    return ctypes.CDLL(str(target))


def cpu_model() -> str:
    """As /proc/cpuinfo names it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class _Table(ctypes.Structure):
    """struct table of ceilings.c, field for field."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("n_rows", ctypes.c_uint64),
        ("row_bytes", ctypes.c_uint64),
        ("n_columns", ctypes.c_uint64),
        ("offset", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("tree", ctypes.c_void_p),
        ("leaves", ctypes.c_uint64),
        ("node", ctypes.c_void_p),
        ("mass", ctypes.c_void_p),
        ("random", ctypes.c_uint64),
    )


class BatchCeiling:
    """`steps` (of DRAW, GATHER, UPDATE) of `batch` rows out of `n_rows`, with a tree over `capacity` leaves."""

    def __init__(self, workload: Workload | SequenceRows, capacity: int, n_rows: int, batch: int, steps: int) -> None:
        self.what, self.batch, self.steps = WHAT[steps], batch, steps
        self.measure = library().measure_batch
        self.measure.restype = None
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in workload.columns.values()]
        self.bytes = np.array(sizes, np.uint64)
        self.offset = np.cumsum(self.bytes, dtype=np.uint64) - self.bytes
        self.rows = np.full((n_rows if steps & GATHER else 1) * workload.row_bytes + 64, 1, np.uint8)
        self.outputs = [np.full(batch * size, 1, np.uint8) for size in sizes]
        self.out = np.array([o.ctypes.data for o in self.outputs], np.uint64)
        self.leaves = 1 << (capacity - 1).bit_length()
        self.tree = make_tree(self.leaves if steps & (DRAW | UPDATE) else 1, n_rows)
        self.node, self.mass = np.zeros(batch, np.uint64), np.zeros(batch)
        arrays = (self.offset, self.bytes, self.out, self.tree)
        self.table = _Table(
            self.rows.ctypes.data, n_rows, workload.row_bytes, len(sizes), *(a.ctypes.data for a in arrays),
            self.leaves, self.node.ctypes.data, self.mass.ctypes.data, 88172645463325252,
        )  # fmt: skip

    def run(self, calls: int) -> npt.NDArray[np.float64]:
        """Nanoseconds of each of `calls` batches."""
        ns = np.zeros(calls)
        self.measure(
            ctypes.byref(self.table), ctypes.c_uint64(self.batch), self.steps, ctypes.c_uint64(calls),
            ctypes.c_void_p(ns.ctypes.data),
        )  # fmt: skip
        return ns


class CopyCeiling:
    """memcpy of `batch` rows into a ring of `ring` rows."""

    what = "memcpy of the rows"

    def __init__(self, workload: Workload, ring: int, batch: int) -> None:
        self.measure = library().measure_copy
        self.measure.restype = None
        self.ring = np.full(ring * workload.row_bytes, 1, np.uint8)
        self.pool = np.full(workload.pool * workload.row_bytes, 2, np.uint8)
        self.bytes = batch * workload.row_bytes
        self.at = ctypes.c_uint64(0)

    def run(self, calls: int) -> npt.NDArray[np.float64]:
        """Nanoseconds of each of `calls` copies."""
        ns = np.zeros(calls)
        u64, pointer = ctypes.c_uint64, ctypes.c_void_p
        self.measure(
            pointer(self.ring.ctypes.data), u64(self.ring.nbytes), pointer(self.pool.ctypes.data),
            u64(self.pool.nbytes), u64(self.bytes), ctypes.byref(self.at), u64(calls), pointer(ns.ctypes.data),
        )  # fmt: skip
        return ns


def make_tree(leaves: int, filled: int) -> npt.NDArray[Any]:
    """A sum tree of random leaves in (0.01, 1.01), zero from `filled` on."""
    tree = np.zeros(2 * leaves)
    used = min(filled, leaves)
    tree[leaves : leaves + used] = np.random.default_rng(1).random(used) + 0.01
    low = leaves
    while low > 1:
        tree[low // 2 : low] = tree[low : 2 * low : 2] + tree[low + 1 : 2 * low : 2]
        low //= 2
    return tree


def timed_runs(ceiling: BatchCeiling | CopyCeiling, seconds: float) -> tuple[npt.NDArray[np.float64], float]:
    """Like `timing.timed_calls`: a short uncounted start, then runs for `seconds`."""
    ceiling.run(20)
    per_call = max(float(np.median(ceiling.run(20))), 20.0)
    calls = int(np.clip(seconds * 1e9 / 8 / per_call, 10, 200_000))
    ceiling.run(calls)
    parts: list[npt.NDArray[np.float64]] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        parts.append(ceiling.run(calls))
    took = np.concatenate(parts)
    return took, float(took.sum()) / 1e9
