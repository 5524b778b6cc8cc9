"""`conduit trace`: the spans that a store's processes left, as a Chrome trace for ui.perfetto.dev.

Every stage leaves a span in a ring in the store. What a learner waits for is `exposed`, what ran behind its
computing is `hidden`; the rest is `work` of writers and updaters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conduit.store import Store
from conduit_store.native import native

__all__ = ["Span", "Written", "events", "spans", "write"]

# The numbers are the core's (spans.hpp, Stage).
_STAGES = {
    1: "extend", 2: "draw", 3: "gather", 4: "prepare", 5: "wait", 6: "handover", 7: "update", 8: "evict",
}  # fmt: skip
_DELIVERY = {"draw", "gather", "prepare", "wait", "handover"}
_COLORS = {"exposed": "terrible", "hidden": "good", "work": "generic_work"}


class Span(NamedTuple):
    """One stage of one call. Times in ns of CLOCK_MONOTONIC."""

    began: int
    duration: int
    stage: str
    category: str  # exposed, hidden or work
    process: int  # process slot
    thread: int  # as the kernel numbers it
    table: str
    rows: int


class Written(NamedTuple):
    """What a trace file holds."""

    spans: int
    seconds: float  # from the first span's begin to the last one's end


def spans(store: Store, seconds: float | None = None) -> list[Span]:
    """Return the spans that the store remembers, of the last `seconds` if given, by their begin.

    Raises:
        StoreClosed: the store was closed here.
    """
    since = 0 if seconds is None else max(0, native.now_ns() - int(seconds * 1e9))
    tables = store.tables()
    found = [
        Span(began, duration, _STAGES[stage], _category(_STAGES[stage], behind), process, thread,
             tables[table] if table < len(tables) else f"table {table}", rows)
        for began, duration, stage, behind, process, thread, table, rows in store._native.spans(since)
        if stage in _STAGES
    ]  # fmt: skip
    return sorted(found)


def _category(stage: str, behind: bool) -> str:
    if behind:
        return "hidden"
    return "exposed" if stage in _DELIVERY else "work"


def events(found: Sequence[Span], pids: dict[int, int]) -> list[dict[str, Any]]:
    """Return the trace events of the spans. `pids`: the pid that each process slot has now."""
    made: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": slot, "args": {"name": f"slot {slot}, pid {pids.get(slot, 0)}"}}
        for slot in sorted({span.process for span in found})
    ]
    made += [
        {
            "ph": "X",
            "name": span.stage,
            "cat": span.category,
            "cname": _COLORS[span.category],
            "ts": span.began / 1e3,
            "dur": span.duration / 1e3,
            "pid": span.process,
            "tid": span.thread,
            "args": {"table": span.table, "rows": span.rows},
        }
        for span in found
    ]
    return made


def write(name: str, out: str | Path, seconds: float | None = None) -> Written:
    """Write the trace of the live store `name` to the file `out`.

    Raises:
        StoreNotFound: no such store. OSError: the file cannot be written.
    """
    with Store.attach(name, read_only=True) as store:
        found = spans(store, seconds)
        pids = {slot: pid for slot, pid, _ in store._native.processes()}
    document = {"displayTimeUnit": "ns", "traceEvents": events(found, pids)}
    Path(out).write_text(json.dumps(document))
    end = max((span.began + span.duration for span in found), default=0)
    return Written(len(found), (end - found[0].began) * 1e-9 if found else 0.0)
