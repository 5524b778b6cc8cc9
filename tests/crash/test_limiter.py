"""Deaths under limiters: what the dead had reserved comes back, what it had not published was never inserted, "
"and nobody who waits waits for the dead."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from conduit import Table, limiters
from tests.crash.test_drift import ROOT, killed
from tests.store_support import column_of, fresh_store, plain_table, prioritized
from tests.worker import worker

pytestmark = pytest.mark.crash

HEAD = """
import sys
import numpy as np
import conduit
from conduit_store.native import native
table = conduit.Store.attach(sys.argv[1])["t"]
native.failpoint_arm(sys.argv[2], "kill", 1)
"""
SAMPLE = HEAD + "table.sample(3)\n"
PREPARE = HEAD + "loader = table.loader(3, prefetch=2)\nwhile True:\n    loader.next()\n"
INSERT = HEAD + "table.writer().append(x=99)\n"
RECONFIGURE = HEAD + "table.reconfigure(alpha=0.5, eps=3.0, min_size=2, samples_per_insert=2, error_buffer=50)\n"
_PRINT_ONE = """
import sys
import conduit
print(conduit.Store.attach(sys.argv[1])["t"].sample(1)["x"])
"""


def ratio_table(store: object, buffer: float | None = None, **options: object) -> Table:
    limiter = limiters.SampleToInsertRatio(1, min_size=1, error_buffer=buffer)
    return plain_table(store, 100, limiter=limiter, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("point", "counted"),
    [
        *(("draw_locked", 0), ("limiter_taken", 0), ("draw_done", 0), ("gather_begin", 0), ("gather_end", 0)),
        *(("reader_left", 0), ("limiter_delivered", 3)),
    ],
)
def test_a_sample_of_the_dead_counts_only_if_it_was_delivered(point: str, counted: int) -> None:
    with fresh_store() as store:
        table = ratio_table(store)
        table.extend({"x": np.arange(10)})
        table.sample(2)
        killed(SAMPLE, store.name, point)
        table.sample(8 - counted, timeout=0)  # whoever waits for them looks who is alive
        info = table.info()
        assert (info.limiter_samples, info.limiter_reserved, info.limiter_cursor) == (10, 0, 0.0)
        assert not table.can_sample(1)
        table.verify()


@pytest.mark.parametrize("point", ["limiter_taken", "gather_end", "limiter_delivered"])
def test_batches_that_a_dead_loader_had_prepared_come_back(point: str) -> None:
    with fresh_store() as store:
        table = ratio_table(store)
        table.extend({"x": np.arange(9)})
        killed(PREPARE, store.name, point)
        counted = 3 if point == "limiter_delivered" else 0
        table.sample(9 - counted, timeout=0)
        assert table.info().limiter_samples == 9
        assert not table.can_sample(1)


@pytest.mark.parametrize(
    ("point", "rows"),
    [
        *(("append_row_written", 4), ("append_before_publish", 4), ("insert_locked", 4)),
        *(("insert_published", 5), ("append_published", 5)),
    ],
)
def test_a_dead_writer_has_inserted_what_it_published(point: str, rows: int) -> None:
    with fresh_store() as store:
        table = ratio_table(store, buffer=10)
        table.extend({"x": np.arange(4)})
        killed(INSERT, store.name, point)
        info = table.info()
        assert (info.rows, info.limiter_inserts, info.limiter_cursor) == (rows, rows, rows)
        assert column_of(table).tolist() == [0, 1, 2, 3, 99][:rows]
        table.verify()


@pytest.mark.parametrize(
    ("point", "new"),
    [
        *(("configure_marked", False), ("settings_written", False), ("settings_switched", True)),
        *(("configure_leaf", True), ("configure_leaves", True), ("configure_done", True)),
    ],
)
def test_a_change_of_settings_is_whole_or_not_at_all(point: str, new: bool) -> None:
    with fresh_store() as store:
        table = ratio_table(store, buffer=20, sampler=prioritized())
        table.extend({"x": np.arange(2)}, priorities=[1.0, 6.0])
        killed(RECONFIGURE, store.name, point)
        assert table.limiter == (
            limiters.SampleToInsertRatio(2, 2, 50) if new else limiters.SampleToInsertRatio(1, 1, 20)
        )
        chances = table._native.settings().view(0)
        assert (chances.alpha, chances.eps) == ((0.5, 3.0) if new else (1.0, 0.0))
        table.verify()
        assert table.info().total_priority == pytest.approx(5.0 if new else 7.0)
        assert table.info().limiter_cursor == 2.0


@pytest.mark.parametrize("point", ["use_counted", "use_ended", "use_counts", "draw_done"])
def test_no_row_is_delivered_too_often_after_a_death_in_a_draw(point: str) -> None:
    """A draw that died keeps what it had counted: at most so many deliveries, never more."""
    with fresh_store() as store:
        table = plain_table(store, 50, max_times_sampled=1, sampler=prioritized())
        table.extend({"x": np.arange(20)})
        killed(SAMPLE, store.name, point)
        table.verify()
        left = len(table)
        assert 17 <= left <= 20
        seen = table.sample(left, timeout=0)["x"].tolist()
        assert len(set(seen)) == left
        assert len(table) == 0
        info = table.info()
        assert info.appended - info.evicted == 0
        table.extend({"x": np.arange(100, 150)})
        assert sorted(table.sample(50, timeout=0)["x"].tolist()) == list(range(100, 150))
        table.verify()


def blocked_append(name: str) -> None:
    from conduit import Store

    with Store.attach(name) as store, store["t"].writer(timeout=60) as writer:
        writer.append(x=7)


def test_a_writer_killed_while_it_waits_has_inserted_nothing() -> None:
    with fresh_store() as store, worker() as doomed, worker() as other:
        table = ratio_table(store, buffer=1)
        table.extend({"x": np.arange(2)})
        for one in (doomed, other):
            one.start(blocked_append, store.name)
        while table._native.info(0)["limited_append_ns"] == 0:  # both have waited for a slice by then
            pass
        doomed.kill()
        table.sample(1, timeout=0)
        other.result()
        assert column_of(table).tolist() == [0, 1, 7]
        assert table.info().limiter_inserts == 3


@pytest.mark.parametrize("point", ["draw_done", "announce_begin", "announce_cleared", "announce_signalled"])
def test_a_writer_goes_on_though_whoever_made_room_died_before_waking_it(point: str) -> None:
    with fresh_store() as store, worker() as other:
        table = ratio_table(store, buffer=2)
        table.extend({"x": np.arange(3)})
        other.start(blocked_append, store.name)
        while table.info().limiter_append_wait_s == 0:
            pass
        killed(HEAD + "table.sample(1)\n", store.name, point)
        if point == "draw_done":  # what it had reserved came back: a delivered sample makes room
            table.sample(1, timeout=0)
        else:
            assert table.info().limiter_samples == 0  # the batch was on its way
            table.sample(1, timeout=0)
        other.result()
        assert len(table) == 4


def test_a_sampler_goes_on_though_the_writer_died_before_waking_it() -> None:
    with fresh_store() as store:
        table = ratio_table(store, buffer=5)
        for _ in range(2):
            child = subprocess.Popen(
                [sys.executable, "-c", _PRINT_ONE, store.name],
                cwd=ROOT, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            while table.info().sample_wait_s == 0:
                pass
            killed(INSERT, store.name, "append_published")
            out, _ = child.communicate(timeout=60)
            assert out.split() == ["[99]"]
        assert table.info().limiter_inserts == 2


