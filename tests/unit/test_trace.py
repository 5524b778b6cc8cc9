"""Spans: left by every stage, read whole, told apart by category, written as a trace."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from conduit import Store, Table, trace
from conduit.cli import main
from conduit_store.native import native
from tests.store_support import fresh_store, plain_table, prioritized, scalar_writer

RING = 32_768


def stages(store: Store, category: str) -> set[str]:
    return {span.stage for span in trace.spans(store) if span.category == category}


def work(table: Table, batches: int = 5) -> None:
    table.extend({"x": range(table.max_size)})
    table.extend({"x": range(3)})
    with table.loader(8, prefetch=2) as loader:
        for _ in range(batches):
            batch = next(loader)
            while loader.metrics().ready < 1:
                time.sleep(1e-4)
            table.update_priorities(batch.keys, np.ones(8))


def test_each_stage_leaves_its_span() -> None:
    with fresh_store() as store:
        before = native.now_ns()
        table = plain_table(store, 64, "replay", sampler=prioritized())
        work(table)
        found = trace.spans(store)
        assert stages(store, "exposed") == {"draw", "gather", "wait", "handover"}
        assert stages(store, "hidden") >= {"draw", "gather", "prepare"}
        assert stages(store, "work") == {"extend", "update", "evict"}
        assert all(before <= span.began <= span.began + span.duration <= native.now_ns() for span in found)
        assert {span.table for span in found} == {"replay"}
        assert {span.process for span in found} == {0}
        assert len({span.thread for span in found}) == 2
        assert sum(span.rows for span in found if span.stage == "update") == 40
        assert sum(span.rows for span in found if span.stage == "evict") == 3
        assert sum(span.stage == "handover" for span in found) == 5


def test_single_appends_leave_none() -> None:
    with fresh_store() as store:
        table = plain_table(store, 64)
        with scalar_writer(table) as writer:
            for i in range(10):
                writer.append(x=i)
        assert trace.spans(store) == []


def test_the_ring_keeps_the_newest_and_readers_skip_what_is_torn() -> None:
    with fresh_store() as store:
        plain_table(store, 64)
        stop = threading.Event()

        def leave() -> None:
            while not stop.is_set():
                store._native.time_spans(1000)

        threads = [threading.Thread(target=leave) for _ in range(2)]
        store._native.time_spans(RING)
        for thread in threads:
            thread.start()
        for _ in range(20):
            found = store._native.spans(0)
            assert RING // 2 < len(found) <= RING
            for _, duration, stage, behind, process, _, table, rows in found:
                assert (stage, behind, process, table) == (1, False, 0, 0)
                assert duration == rows  # both are the writer's count
        stop.set()
        for thread in threads:
            thread.join()
        assert len(store._native.spans(0)) == RING
        assert store._native.spans(native.now_ns() + 10**9) == []


def test_leaving_a_span_is_cheap() -> None:
    with fresh_store() as store:
        store._native.time_spans(RING)
        assert min(store._native.time_spans(10_000) for _ in range(5)) < 200


def test_the_last_seconds_only() -> None:
    with fresh_store() as store:
        table = plain_table(store, 64)
        table.extend({"x": range(3)})
        time.sleep(0.3)
        table.extend({"x": range(2)})
        assert [span.rows for span in trace.spans(store, 0.2)] == [2]
        assert [span.rows for span in trace.spans(store)] == [3, 2]


def test_the_command_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.json"
    with fresh_store() as store:
        assert main(["trace", store.name, "--out", str(out)]) == 0
        assert json.loads(out.read_text())["traceEvents"] == []
        work(plain_table(store, 64, sampler=prioritized()))
        assert main(["trace", store.name, "--out", str(out), "--seconds", "60"]) == 0
    assert "spans of" in capsys.readouterr().out
    made = json.loads(out.read_text())["traceEvents"]
    assert [event["name"] for event in made if event["ph"] == "M"] == ["process_name"]
    colors = {event["cat"]: event["cname"] for event in made if event["ph"] == "X"}
    assert colors == {"exposed": "terrible", "hidden": "good", "work": "generic_work"}
    event = next(event for event in made if event["name"] == "handover")
    assert event["args"] == {"table": "t", "rows": 8}
    assert event["dur"] >= 0
    with pytest.raises(SystemExit):
        main(["trace", "x", "--seconds", "0"])
    assert main(["trace", "no-such-store"]) == 2
