"""What must hold, as ratios of numbers from one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.cases import BESIDE_WRITERS, CEILING, DRIVERS

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
    key = "batches_per_s" if record["op"] in BESIDE_WRITERS else "rows_per_s" if more_is_better(record) else "median"
    return float(record[key])


def more_is_better(record: Record) -> bool:
    return record["op"] in ("append", "append-priorities", *BESIDE_WRITERS)


def ceiling_value(record: Record) -> float | None:
    """The ceiling in the unit of the case."""
    ceiling = record.get("ceiling", {})
    median = ceiling.get("median")
    if median is None:
        return None
    if record["op"].startswith("append"):
        return float(record["batch"] / median * 1e6)
    return float(1e6 / median) if record["op"] in BESIDE_WRITERS else float(median)


def of_ceiling(record: Record) -> float | None:
    """Which share of the physical limit was reached."""
    measured, ceiling = value(record), ceiling_value(record)
    if not measured or not ceiling:
        return None
    return measured / ceiling if more_is_better(record) else ceiling / measured


def ratio(ours: Record | None, other: Record | None) -> float | None:
    """How many times better ours is: the median over rounds, each round compared with the same round of the other."""
    if ours is None or other is None or "error" in ours or "error" in other:
        return None
    rises = more_is_better(ours)
    key = "rounds"
    if rises:
        key = "rounds_batches_per_s" if ours["op"] in BESIDE_WRITERS else "rounds_rows_per_s"
    pairs: list[tuple[float, float]] = list(zip(ours.get(key, []), other.get(key, []), strict=False))
    if not pairs or any(a <= 0 or b <= 0 for a, b in pairs):
        return None
    return float(statistics.median(a / b if rises else b / a for a, b in pairs))


def fastest_peer(results: Results, case: str) -> Record | None:
    """The peer with the best value of a case."""
    peers = [r for d in PEERS if (r := results.get((case, d))) is not None and value(r) is not None]
    best: Callable[..., Record] = max if peers and more_is_better(peers[0]) else min
    return best(peers, key=lambda r: value(r) or 0.0) if peers else None


@dataclass(frozen=True, slots=True)
class Target:
    """`least` times `against` (a driver; None: the best peer; CEILING: that share of the physical limit) in a case."""

    text: str
    case: str
    least: float
    against: str | None = None


TARGETS = (
    Target("prioritized sample(256) of W1 into torch: 4x the best peer", "sample/W1/prioritized/256", 4.0),
    Target("... of W2: 2x", "sample/W2/prioritized/256", 2.0),
    Target("... of W1: 70 % of the C limit", "sample/W1/prioritized/256", 0.7, CEILING),
    Target("... of W2: 70 % of the C limit", "sample/W2/prioritized/256", 0.7, CEILING),
    Target("... of W3, stacks from single frames: 80 % of the C limit of whole rows",
           "stack/W3/prioritized/256", 0.8, CEILING),
    Target("uniform sample(256) of W1: a private NumPy ring", "sample/W1/uniform/256", 1.0, "numpy-ring"),
    Target("sample + update(256), W1: 3x the best peer", "sample-update/W1/256", 3.0),
    Target("sample + update(256), W2: 1.8x the best peer", "sample-update/W2/256", 1.8),
    Target("one row at a time, prioritized: 5x cpprb", "append/W1/prioritized/1", 5.0, "cpprb"),
    Target("extend(512) with priorities: 1.5x cpprb", "append-priorities/W1/512", 1.5, "cpprb"),
    Target("1 writer + learner, W1: 10x the best peer's batches/s", "cross/W1/1-writer", 10.0),
    Target("1 writer + learner, W2: 3x", "cross/W2/1-writer", 3.0),
    Target("4 writers at one pace + learner, W1: 8x", "paced/W1/4-writers", 8.0),
    Target("n-step windows of W1: 60 % of the C limit", "n-step/W1/prioritized/256", 0.6, CEILING),
    Target("n-step windows of W2: 60 % of the C limit", "n-step/W2/prioritized/256", 0.6, CEILING),
    Target("n-step windows of W3: 60 % of the C limit", "n-step/W3/prioritized/256", 0.6, CEILING),
    # of 32, as asked for; the cases of 64 and 256 show beside it what is the fixed cost of a call
    Target("sequences of W1: 60 % of the C limit", "sequence/W1/prioritized/32", 0.6, CEILING),
    Target("sequences of W2: 60 % of the C limit", "sequence/W2/prioritized/32", 0.6, CEILING),
    Target("sequences of W3: 60 % of the C limit", "sequence/W3/prioritized/32", 0.6, CEILING),
)  # fmt: skip
ARRIVING = 1_000_000  # rows a second, beside the learner of cross/W1/1-writer


def verdicts(records: list[Record]) -> list[Verdict]:
    """Every target that has a case among the records, in the order of the report."""
    results = index(records)
    found = [compared(results, target) for target in TARGETS if any(case == target.case for case, _ in results)]
    if (beside := results.get(("cross/W1/1-writer", "conduit"))) is not None:
        found.append(arriving(beside))
    found += [memory(r) for r in records if r["op"].startswith("memory")]
    if (ours := results.get(("import", "conduit"))) is not None:
        found.append(imported(ours))
    return found


def compared(results: Results, target: Target) -> Verdict:
    """Ours against a named peer, the best one, or the limit."""
    ours = results.get((target.case, "conduit"))
    if target.against == CEILING:
        share = of_ceiling(ours) if ours is not None else None
        if share is None:
            return Verdict(target.text, "not measured", None)
        return Verdict(target.text, f"{share:.0%}", share >= target.least, "C, one core")
    other = results.get((target.case, target.against)) if target.against else fastest_peer(results, target.case)
    times = ratio(ours, other)
    if times is None or other is None:
        return Verdict(target.text, "not measured", None)
    return Verdict(target.text, f"{times:.2f}x", times >= target.least, other["driver"])


def arriving(record: Record) -> Verdict:
    target = f"the same: at least {ARRIVING:,} rows/s arrive"
    if value(record) is None:
        return Verdict(target, "not measured", None)
    return Verdict(target, f"{record['arriving_rows_per_s']:,.0f} rows/s", record["arriving_rows_per_s"] >= ARRIVING)


def memory(record: Record) -> Verdict:
    frames = record["op"] == "memory-frames"
    limit = "8 KB a step, single frames" if frames else "1.05x the rows + 24 bytes a row"
    target = f"{record['workload']} at capacity: at most {limit}"
    if "error" in record:
        return Verdict(target, "not measured", None)
    text = f"{record['over_row_bytes']:.3f}x, {record['overhead_bytes_per_row']:+.1f} bytes a row"
    return Verdict(target, text, record["median"] <= record["limit_bytes"])


def imported(record: Record) -> Verdict:
    target = "import conduit: under 150 ms, without torch, ray, cupy, pyarrow"
    if value(record) is None:
        return Verdict(target, "not measured", None)
    heavy = [m for m in record["heavy_modules"] if m != "gymnasium"]
    text = f"{record['median']:.0f} ms" + (f", loads {', '.join(heavy)}" if heavy else "")
    return Verdict(target, text, record["median"] < 150 and not heavy)
