"""Every case by name, who takes part in it, and how the full and the quick run choose among them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from typing import Any

from bench.workloads import WORKLOADS, Workload

BATCH = 256  # of the updates and of the learner beside writers
INSERT = 32  # rows a writer process inserts at a time
PACE = 5_000  # rows a second each of several writers inserts where all libraries are to have the same to take in
DRIVERS = ("conduit", "numpy-ring", "cpprb", "cpprb-mp", "torchrl", "torchrl-memmap", "tianshou", "sb3", "flashbax",
           "reverb", "rllib", "transferqueue", "flight")  # fmt: skip
_REPLAY = ("append/*", "sample*", "update/*")
_SMALL = ("append/W[12]/*", "sample*/W[12]/*", "update/W[12]/*")  # W3 takes them too long, or too much memory
_TAKES_PART: dict[str, tuple[str, ...]] = {
    "conduit": ("*",),
    "numpy-ring": (*_REPLAY, "append-priorities/*"),
    "cpprb": (*_REPLAY, "append-priorities/*", "cross/*", "paced/*", "import"),
    "cpprb-mp": (*_REPLAY, "append-priorities/*"),  # beside writers, cpprb is this
    "torchrl": (*_REPLAY, "cross/*", "paced/*"),
    "torchrl-memmap": _REPLAY,
    "tianshou": ("sample*/W[12]/*", "update/W[12]/*"),  # its unit of appending is a vector step
    "sb3": ("append/*/uniform/32", "sample/*/uniform/*"),  # the same, of 32 environments
    "flashbax": _SMALL,
    "reverb": (*_SMALL, "cross/W[12]/*", "paced/*"),
    "rllib": ("append/W[12]/*", "sample*/W[12]/*"),  # it updates what it has sampled last, once
    "transferqueue": ("append/W1/uniform/*", "sample/W1/uniform/*"),
    "flight": ("append/*/uniform/*", "sample/*/uniform/*"),
}
CEILING = "ceiling"
BESIDE_WRITERS = ("cross", "paced")  # a learner of this process, writers in others
COUNTED = ("memory", "memory-frames", "import")  # not calls that are timed


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one kind of row. `batch` in rows; `writers` in processes."""

    op: str  # one of all_cases
    workload: str
    prioritized: bool = True
    batch: int = 0
    writers: int = 0

    @property
    def name(self) -> str:
        if self.op == "import":
            return "import"
        if self.op in ("memory", "memory-frames"):
            return f"{self.op}/{self.workload}"
        if self.op in BESIDE_WRITERS:
            return f"{self.op}/{self.workload}/{self.writers}-writer{'s' if self.writers > 1 else ''}"
        if self.op in ("update", "sample-update", "append-priorities"):
            return f"{self.op}/{self.workload}/{self.batch}"
        return f"{self.op}/{self.workload}/{'prioritized' if self.prioritized else 'uniform'}/{self.batch}"

    @property
    def rows(self) -> Workload:
        return WORKLOADS[self.workload]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def all_cases() -> list[Case]:
    """In the order of the report."""
    cases: list[Case] = []
    for workload in WORKLOADS:
        for prioritized in (True, False):
            cases += [Case("append", workload, prioritized, n) for n in (1, 32, 512)]
        cases.append(Case("append-priorities", workload, True, 512))
        for prioritized in (True, False):
            cases += [Case("sample", workload, prioritized, n) for n in (32, 256, 1024)]
        cases += [Case("n-step", workload, True, BATCH), Case("sequence", workload, True, 32)]
        if workload == "W1":  # what of 32 is the fixed cost of a call
            cases += [Case("sequence", workload, True, n) for n in (64, 256)]
        cases += [Case("update", workload, True, BATCH), Case("sample-update", workload, True, BATCH)]
        cases += [Case("cross", workload, True, BATCH, writers) for writers in (1, 4)]
        if workload == "W1":
            cases.append(Case("paced", workload, True, BATCH, 4))
        cases.append(Case("memory", workload))
        if workload == "W3":
            cases += [Case("stack", workload, True, BATCH), Case("memory-frames", workload)]
    return [*cases, Case("import", "W1")]


QUICK = (
    "sample/W1/prioritized/256",
    "sample/W1/uniform/256",
    "append/W1/prioritized/1",
    "append-priorities/W1/512",
    "sample-update/W1/256",
    "cross/W1/1-writer",
    "paced/W1/4-writers",
    "memory/W1",
    "import",
)


def choose(quick: bool, patterns: list[str]) -> list[Case]:
    """Cases of the full or the quick run; shell patterns choose among all names.

    Raises:
        ValueError: a pattern fits no case; lists them all.
    """
    cases = all_cases()
    if patterns:
        for pattern in patterns:
            if not any(fnmatch(c.name, pattern) for c in cases):
                raise ValueError(f"no case fits {pattern!r}; there are {', '.join(c.name for c in cases)}")
        return [c for c in cases if any(fnmatch(c.name, p) for p in patterns)]
    return [c for c in cases if not quick or c.name in QUICK]


def takes_part(driver: str, case: Case) -> bool:
    """Whether the library can do what the case asks for."""
    return any(fnmatch(case.name, pattern) for pattern in _TAKES_PART[driver])


def needs_ceiling(case: Case) -> bool:
    """Whether the ceiling is a measurement of its own (what is counted carries its own)."""
    return case.op not in COUNTED


def memory_bytes(driver: str, case: Case) -> int:
    """About what the driver makes resident."""
    rows = case.rows
    if case.op == "import":
        return 1 << 28
    capacity, filled = {
        "cross": (rows.shared, rows.shared),
        "paced": (rows.shared, rows.shared),
        "memory": (rows.held, rows.held),
        "memory-frames": (rows.held, rows.held),
    }.get(case.op, (rows.ring, rows.ring) if case.op.startswith("append") else (rows.capacity, rows.filled))
    resident = capacity if driver in ("conduit", "cpprb", "cpprb-mp", "tianshou", "flashbax") else filled
    return int(resident * (rows.row_bytes * 1.1 + 64)) + (1 << 29)
