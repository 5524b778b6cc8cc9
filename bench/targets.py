"""What must hold, as ratios of numbers from one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.cases import DRIVERS

Record = dict[str, Any]
Results = dict[tuple[str, str], Record]  # by case name and driver
PEERS = tuple(driver for driver in DRIVERS if driver not in ("conduit", "numpy-ring"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target: what was measured, what was asked, whether it holds (None: not measured)."""

    target: str
    measured: str
    holds: bool | None
    against: str = ""


def index(records: list[Record]) -> Results:
    return {(r["case"], r["driver"]): r for r in records}


def value(record: Record | None) -> float | None:
    """The number a case is about: rows/s of an append, batches/s beside writers, else the median in its unit."""
    if record is None or "error" in record:
        return None
    key = "batches_per_s" if record["op"] == "cross" else "rows_per_s" if more_is_better(record) else "median"
    return float(record[key])


def more_is_better(record: Record) -> bool:
    return record["op"] in ("append", "append-priorities", "cross")


def ratio(ours: Record | None, other: Record | None) -> float | None:
    """How many times better ours is: the median over rounds, each round compared with the same round of the other."""
    if ours is None or other is None or "error" in ours or "error" in other:
        return None
    rises = more_is_better(ours)
    key = "rounds"
    if rises:
        key = "rounds_batches_per_s" if ours["op"] == "cross" else "rounds_rows_per_s"
    pairs: list[tuple[float, float]] = list(zip(ours.get(key, []), other.get(key, []), strict=False))
    if not pairs or any(a <= 0 or b <= 0 for a, b in pairs):
        return None
    return float(statistics.median(a / b if rises else b / a for a, b in pairs))


def fastest_peer(results: Results, case: str) -> Record | None:
    """The peer with the best value of a case."""
    peers = [r for d in PEERS if (r := results.get((case, d))) is not None and value(r) is not None]
    best: Callable[..., Record] = max if peers and more_is_better(peers[0]) else min
    return best(peers, key=lambda r: value(r) or 0.0) if peers else None


def verdicts(records: list[Record]) -> list[Verdict]:
    """Every target, in the order of the report."""
    results = index(records)
    sample = "sample/W1/prioritized/256"
    found = [
        compared(results, "prioritized sample(256) of W1 into torch: 4x the fastest peer", sample, None, 4.0),
        compared(results, "extend(512), default priorities: cpprb's rate", "append/W1/prioritized/512", "cpprb", 1.0),
        compared(results, "extend(512), own priorities: cpprb's rate", "append-priorities/W1/512", "cpprb", 1.0),
        compared(
            results, "append one at a time, prioritized: 4x cpprb's rate", "append/W1/prioritized/1", "cpprb", 4.0
        ),
        compared(results, "1 writer + learner, W1: 5x torchrl's batches/s", "cross/W1/1-writer", "torchrl", 5.0),
        arriving(results.get(("cross/W1/1-writer", "conduit"))),
    ]
    found += [memory(r) for (case, _), r in results.items() if case.startswith("memory/")]
    found.append(imported(results.get(("import", "conduit"))))
    return found


def compared(results: Results, target: str, case: str, peer: str | None, least: float) -> Verdict:
    """Ours against a named peer, or the fastest."""
    ours = results.get((case, "conduit"))
    other = results.get((case, peer)) if peer else fastest_peer(results, case)
    times = ratio(ours, other)
    if times is None or other is None:
        return Verdict(target, "not measured", None)
    return Verdict(target, f"{times:.2f}x", times >= least, other["driver"])


def arriving(record: Record | None) -> Verdict:
    target = "the same: at least 500,000 rows/s arrive"
    if value(record) is None or record is None:
        return Verdict(target, "not measured", None)
    return Verdict(target, f"{record['arriving_rows_per_s']:,.0f} rows/s", record["arriving_rows_per_s"] >= 500_000)


def memory(record: Record) -> Verdict:
    target = f"{record['workload']} at capacity: at most 1.05x the rows + 24 bytes a row"
    if "error" in record:
        return Verdict(target, "not measured", None)
    text = f"{record['over_row_bytes']:.3f}x, {record['overhead_bytes_per_row']:+.1f} bytes a row"
    return Verdict(target, text, record["median"] <= record["limit_bytes"])


def imported(record: Record | None) -> Verdict:
    target = "import conduit: under 150 ms, without torch, ray, cupy, pyarrow"
    if value(record) is None or record is None:
        return Verdict(target, "not measured", None)
    heavy = [m for m in record["heavy_modules"] if m != "gymnasium"]
    text = f"{record['median']:.0f} ms" + (f", loads {', '.join(heavy)}" if heavy else "")
    return Verdict(target, text, record["median"] < 150 and not heavy)
