"""Tables whose rows leave one by one: the newest, or the one of the lowest priority."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from conduit import (
    CapacityError,
    ConfigError,
    StaleKey,
    Store,
    Table,
    UpdateResult,
    removers,
    samplers,
    windows,
)
from conduit.spec import TableSpec
from tests.store_support import EPISODIC, PLAIN, fresh_store, plain_table, prioritized, scalar_writer, schema
from tests.worker import worker

BOTH = [removers.Lifo(), removers.LowestPriority()]


def slots(store: Store, max_size: int, remover: removers.Remover, **options: object) -> Table:
    options.setdefault("sampler", samplers.Fifo())
    return plain_table(store, max_size, remover=remover, **options)


def live(table: Table) -> list[int]:
    """Rows in the order in which they came."""
    table.verify()
    return table.sample(len(table))["x"].tolist() if len(table) else []


def test_lifo_the_newest_row_makes_room() -> None:
    with fresh_store() as store:
        table = slots(store, 3, removers.Lifo())
        expected = [[0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 4]]
        for i, rows in enumerate(expected):
            table.extend({"x": [i]})
            assert live(table) == rows
        table.extend({"x": [5, 6, 7]})
        assert live(table) == [0, 1, 7]
        assert table.info().evicted == 5
        with pytest.raises(CapacityError):
            table.extend({"x": [1, 2, 3, 4]})


def test_the_lowest_priority_leaves_and_of_equal_ones_the_oldest() -> None:
    with fresh_store() as store:
        table = slots(store, 4, removers.LowestPriority())
        table.extend({"x": [0, 1, 2, 3]}, priorities=[2, 1, 0, 1])
        table.extend({"x": [4]}, priorities=[9])
        assert live(table) == [0, 1, 3, 4]
        table.extend({"x": [5]}, priorities=[0])
        assert live(table) == [0, 3, 4, 5]
        table.extend({"x": [6]}, priorities=[0])  # the row of priority 0 that is in goes, the new one stays
        assert live(table) == [0, 3, 4, 6]
        batch = table.sample(4)
        assert table.priorities(batch.keys).tolist() == [2, 1, 9, 0]
        assert table.update_priorities(batch.keys[[3, 2]], [5, 0.5]) == UpdateResult(2, 0)
        table.extend({"x": [7]})
        assert live(table) == [0, 3, 6, 7]
        assert table.priorities(table.sample(4).keys)[3] == 5  # the default: the largest there is
        assert table.priorities(batch.keys[2:3]).tolist() == [np.nan] or np.isnan(table.priorities(batch.keys[2:3]))[0]
        with pytest.raises(StaleKey):
            table.rows(batch.keys)
        assert table.update_priorities(batch.keys, np.ones(4)) == UpdateResult(3, 1)


def test_the_priorities_of_the_first_prioritized_window_decide() -> None:
    three = {"order": samplers.Fifo(), "one": prioritized(), "two": prioritized()}
    with fresh_store() as store:
        table = store.create_table(
            "t", PLAIN, 3, window=dict.fromkeys(three, windows.Row()), sampler=three, remover=removers.LowestPriority()
        )
        table.extend({"x": [0, 1, 2]}, priorities=[1, 2, 3])
        keys = table.sample(3).keys
        table.update_priorities(keys, [3, 2, 1], window="two")
        table.extend({"x": [3]}, priorities=[9])
        assert live(table) == [1, 2, 3]
        table.update_priorities(keys[1:], [1, 0.5], window="one")
        table.extend({"x": [4]}, priorities=[9])
        assert live(table) == [1, 3, 4]


@pytest.mark.parametrize("sampler", [samplers.Uniform(), samplers.WithoutReplacement(), samplers.Lifo()])
def test_priorities_for_the_remover_alone_do_not_change_the_draws(sampler: samplers.Sampler) -> None:
    with fresh_store() as store:
        table = slots(store, 8, removers.LowestPriority(), sampler=sampler)
        table.extend({"x": np.arange(8)}, priorities=np.arange(8))
        batch = table.sample(8)
        if sampler == samplers.Uniform():
            assert set(table.sample(1000)["x"].tolist()) == set(range(8))  # priority 0 too
            assert (batch.probabilities == 1 / 8).all()
            assert (batch.weights == 1).all()
        else:
            assert sorted(batch["x"].tolist()) == list(range(8))
        table.update_priorities(batch.keys, np.zeros(8))
        assert table.info().total_priority == (0 if sampler == samplers.WithoutReplacement() else 8)
        table.verify()
        with pytest.raises(ConfigError, match="not sampled by priority"):
            table.reconfigure(alpha=0.5)


@pytest.mark.parametrize("remover", BOTH)
def test_what_such_tables_cannot_do_is_refused(remover: removers.Remover) -> None:
    with fresh_store() as store:
        table = slots(store, 8, remover)
        table.extend({"x": [1]})
        for look in (table.blocks, lambda: table.block(0)):
            with pytest.raises(ConfigError, match=r"takes rows out one by one.*table\.rows"):
                look()
        with pytest.raises(ConfigError, match=r"follows episodes.*windows\.Row\(\)"):
            store.create_table("e", EPISODIC, 8, remover=remover)
        with pytest.raises(ConfigError, match=r"remover is 'lifo'.*removers\.Fifo or"):
            plain_table(store, 8, name="f", remover="lifo")
        if remover == removers.Lifo():
            with pytest.raises(ConfigError, match="not sampled by priority"):
                table.extend({"x": [1]}, priorities=[1])


@pytest.mark.parametrize("remover", [removers.Fifo(), *BOTH])
def test_the_remover_survives_the_store(remover: removers.Remover) -> None:
    with fresh_store() as store:
        table = plain_table(store, 5, remover=remover)
        assert TableSpec.from_json(table.spec.to_json()) == table.spec
        assert table.spec.remover == remover
        assert plain_table(store, 5, remover=remover, exist_ok=True) is table
        assert ("slots" in table.describe()) == (remover != removers.Fifo())


@pytest.mark.parametrize("remover", BOTH)
def test_rows_are_kept_byte_by_byte(remover: removers.Remover) -> None:
    columns = {
        "a": np.arange(300, dtype=np.uint8),
        "b": np.arange(900, dtype=np.float32).reshape(300, 3),
        "c": np.arange(300),
    }
    with fresh_store() as store:
        kinds = schema(a="u1", b=("f4", (3,)), c="i8")
        table = store.create_table("t", kinds, 100, remover=remover, sampler=samplers.Fifo())
        for start in range(0, 300, 50):
            table.extend({name: column[start : start + 50] for name, column in columns.items()})
        batch = table.sample(100)
        for name, column in columns.items():
            np.testing.assert_array_equal(batch[name], column[batch["c"]])


def append_many(store_name: str, first: int, n: int) -> None:
    with Store.attach(store_name) as store, scalar_writer(store.table("t")) as writer:
        for i in range(first, first + n):
            writer.append(x=i)


@pytest.mark.parametrize("remover", BOTH)
def test_a_reader_and_two_writers_share_the_table(remover: removers.Remover) -> None:
    """Rows leave and their memory is used again thousands of times while batches are copied from it."""
    with fresh_store() as store, worker() as one, worker() as two:
        table = slots(store, 64, remover, max_writers=2, sampler=samplers.Uniform())
        table.extend({"x": np.arange(64)})
        one.start(append_many, store.name, 1_000, 5_000)
        two.start(append_many, store.name, 10_000, 5_000)
        for _ in range(2_000):
            x = table.sample(32)["x"]
            assert (((x >= 0) & (x < 64)) | ((x >= 1_000) & (x < 6_000)) | ((x >= 10_000) & (x < 15_000))).all()
            assert len(table) == 64
        one.result()
        two.result()
        info = table.info()
        assert (info.appended, info.evicted, info.evicted_early) == (10_064, 10_000, 0)
        assert info.blocks_open == 64
        table.verify()


@pytest.mark.parametrize("remover", BOTH)
def test_clear_and_close(remover: removers.Remover) -> None:
    with fresh_store() as store:
        table = slots(store, 10, remover)
        writer = scalar_writer(table)
        for i in range(30):
            writer.append(x=i)
        table.clear()
        assert live(table) == []
        for i in range(4):
            writer.append(x=i)
        writer.close()
        assert live(table) == [0, 1, 2, 3]
        assert table.info().append_s > 0
        assert table.info().open_writers == 0


def test_a_loader_goes_on_while_rows_leave() -> None:
    with fresh_store() as store:
        table = slots(store, 50, removers.Lifo(), sampler=samplers.Uniform())
        table.extend({"x": np.arange(50)})
        stop = threading.Event()

        def append() -> None:
            with scalar_writer(table) as writer:
                while not stop.is_set():
                    writer.append(x=99)

        thread = threading.Thread(target=append)
        thread.start()
        try:
            with table.loader(16, prefetch=4) as loader:
                seen = {int(x) for _ in range(300) for x in next(loader)["x"]}
        finally:
            stop.set()
            thread.join()
        assert seen <= {*range(50), 99}
        table.verify()
