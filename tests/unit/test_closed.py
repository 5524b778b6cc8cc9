"""After close every call raises StoreClosed, also those that are waiting; nothing else changes."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conduit import Store, StoreClosed, Table
from tests.entries import STEP, steps
from tests.shm_support import holders_of, no_new_descriptors
from tests.store_support import (
    fresh_store,
    keys_of,
    plain_table,
    prioritized,
    scalar_writer,
    schema,
    unchanged,
    vector_writer,
)
from tests.waiting import until

BLOCK = 8

STORE_CALLS: dict[str, Callable[[Store], Any]] = {
    "tables": lambda s: s.tables(),
    "table": lambda s: s.table("t"),
    "unknown table": lambda s: s["nothing"],
    "create_table": lambda s: s.create_table("more", STEP, 8),
    "create_table exist_ok": lambda s: s.create_table("t", STEP, 64, exist_ok=True),
    "metrics": lambda s: s.metrics(),
}
TABLE_CALLS: dict[str, Callable[[Table], Any]] = {
    "len": len,
    "writer": lambda t: t.writer(),
    "vector writer": lambda t: t.writer(2),
    "extend": lambda t: t.extend(steps((2,))),
    "sample": lambda t: t.sample(1),
    "sample with no wait": lambda t: t.sample(1, timeout=0),
    "rows": lambda t: t.rows([1]),
    "update_priorities": lambda t: t.update_priorities([1], [1.0]),
    "priorities": lambda t: t.priorities([1]),
    "configure": lambda t: t.reconfigure(beta=0.5),
    "clear": lambda t: t.clear(),
    "blocks": lambda t: t.blocks(),
    "block": lambda t: t.block(0),
    "info": lambda t: t.info(),
    "verify": lambda t: t.verify(),
    "describe": lambda t: t.describe(),
}


@pytest.mark.parametrize("call", STORE_CALLS)
def test_a_closed_store(call: str) -> None:
    with fresh_store() as store:
        store.create_table("t", STEP, 64)
        store.close()
        with pytest.raises(StoreClosed, match=f"store '{store.name}' is closed in this process: attach again"):
            STORE_CALLS[call](store)
        assert store.closed
        assert repr(store) == f"<Store '{store.name}' closed, up to 16 MiB>"
        store.close()


@pytest.mark.parametrize("call", TABLE_CALLS)
def test_a_table_of_a_closed_store(call: str) -> None:
    with fresh_store() as store, Store.attach(store.name) as other:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        table.extend(steps((5,)))
        table.sample(1)  # a sampler and a batch format are there
        store.close()
        assert repr(table) == "<Table 't' of a closed store>"
        assert (table.name, table.max_size, table.schema) == ("t", 64, STEP)
        with (
            unchanged(other["t"]),
            pytest.raises(StoreClosed, match=f"store '{store.name}'.*closed.*attach again"),
        ):
            TABLE_CALLS[call](table)


def test_a_closed_writer() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        scalar, vector = scalar_writer(table), vector_writer(table, 3)
        scalar.append(**steps(()))
        vector.append(**steps((3,)))
        for writer in (scalar, vector):
            writer.close()
            writer.close()
            assert writer.closed
            assert "closed" in repr(writer)
        calls: list[Callable[[], Any]] = [
            lambda: scalar.append(**steps(())),
            lambda: scalar.append(**steps((), action=np.int8(1))),  # the careful path
            lambda: scalar.end(np.zeros(2, np.float32)),
            lambda: vector.append(**steps((3,))),
            lambda: vector.end(np.zeros((3, 2), np.float32)),
            lambda: vector.end(np.zeros((3, 2), np.float32), np.ones(3, bool)),
        ]
        for call in calls:
            with unchanged(table), pytest.raises(StoreClosed, match=r"writer .*closed: call table\.writer\(\)"):
                call()


def test_a_writer_of_a_closed_store() -> None:
    with fresh_store() as store, Store.attach(store.name) as other:
        table = store.create_table("t", STEP, 64)
        scalar, vector = scalar_writer(table), vector_writer(table, 3)
        scalar.append(**steps(()))
        store.close()
        with unchanged(other["t"]):
            calls: list[Callable[[], Any]] = [
                lambda: scalar.append(**steps(())),
                lambda: vector.append(**steps((3,))),
            ]
            for call in calls:
                with pytest.raises(StoreClosed):
                    call()
        assert scalar.closed
        assert vector.closed
        assert other["t"].info().open_writers == 0


class Waiting:
    """A call in a thread of its own, and how it ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the call is still waiting"
        return self.error


def crowded(store: Store) -> tuple[Table, list[Any]]:
    """A table in which nobody finds a block: all that hold rows are pinned, by the views that are returned."""
    table = plain_table(store, 4 * BLOCK, max_writers=1)
    table.extend({"x": np.zeros(4 * BLOCK, int)})
    views = [np.asarray(block.to_arrow().column("x")) for block in table.blocks()]
    for _ in range(2):
        table.extend({"x": np.ones(BLOCK, int)})
    return table, views


@pytest.mark.parametrize("timeout", [None, 600.0])
def test_a_sample_that_waits(timeout: float | None) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        waiting = Waiting(lambda: table.sample(1, timeout=timeout))
        until(lambda: table.info().sample_wait_s > 0)
        store.close()
        assert isinstance(waiting.end(), StoreClosed)


@pytest.mark.parametrize("way", ["extend", "append", "vector"])
@pytest.mark.parametrize("timeout", [None, 600.0])
def test_an_append_that_waits(way: str, timeout: float | None) -> None:
    with fresh_store() as store:
        table, views = crowded(store)
        if way == "vector":
            table = store.create_table("v", schema(obs="i8", action="i8", reward="f4", terminated="?", truncated="?"),
                                       4 * BLOCK, max_writers=1, mean_episode_length=1e9)  # fmt: skip
            columns = {"action": np.zeros(BLOCK, int), "reward": np.zeros(BLOCK, np.float32),
                       "terminated": np.zeros(BLOCK, bool), "truncated": np.zeros(BLOCK, bool)}  # fmt: skip
            vector = vector_writer(table, BLOCK, timeout=timeout)
            for _ in range(2):
                vector.append(obs=np.zeros(BLOCK, int), **columns)
            views += [np.asarray(block.to_arrow().column("obs")) for block in table.blocks()]

            def fill() -> None:
                while True:
                    vector.append(obs=np.ones(BLOCK, int), **columns)

            holders = vector._native
        elif way == "append":
            writer = scalar_writer(table, timeout=timeout)

            def fill() -> None:
                while True:
                    writer.append(x=7)

            holders = writer._native
        else:

            def fill() -> None:
                while True:
                    table.extend({"x": np.full(BLOCK, 7)}, timeout=timeout)

            native = table._extender._writer
            assert native is not None
            holders = native
        waiting = Waiting(fill)
        until(lambda: holders.holders[0] >= 2)  # it has looked for a block and found them pinned
        store.close()
        assert isinstance(waiting.end(), StoreClosed)
        assert all((view == 0).all() for view in views)


def test_closing_a_writer_while_it_waits_in_another_thread() -> None:
    with fresh_store() as store:
        table, views = crowded(store)
        writer = scalar_writer(table, timeout=None)

        def fill() -> None:
            while True:
                writer.append(x=7)

        waiting = Waiting(fill)
        until(lambda: writer._native.holders[0] >= 2)
        writer.close()
        error = waiting.end()
        assert isinstance(error, StoreClosed)
        assert "closed by another thread; 0 of 1 rows are in" in str(error)
        views.clear()
        table.extend({"x": np.full(BLOCK, 8)})
        table.verify()


def test_closing_lets_go_of_everything_though_handles_are_kept() -> None:
    with no_new_descriptors(), fresh_store() as store, Store.attach(store.name) as again:
        table = plain_table(again, 100, sampler=prioritized())
        table.extend({"x": np.arange(50)})
        writer = scalar_writer(table)
        writer.append(x=1)
        batch = table.sample(8)
        kept = [table, writer, batch, batch["x"], batch.keys, keys_of(table), table.blocks()[:0]]
        assert store.metrics().processes == 2
        before = holders_of(f"conduit-{store.name}-")
        again.close()
        gc.collect()
        assert store.metrics().processes == 1
        assert holders_of(f"conduit-{store.name}-") < before
        assert [bool(entry) for *_, entry in store._native.processes()] == [True, False]
        store.close()
        assert holders_of(f"conduit-{store.name}-") == 0
        assert len(kept) == 7
        np.testing.assert_array_equal(batch["x"], kept[3])


_UNCLOSED = """
import numpy as np
import conduit
store = conduit.Store.create("unclosed", "128MiB")
store.create_table("t", conduit.Schema.from_example({"x": np.zeros(1_000, np.float32)}), 25_000)
"""


def test_a_process_that_ends_without_closing_while_pages_are_touched() -> None:
    done = subprocess.run([sys.executable, "-c", _UNCLOSED], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
