"""Handles in other processes: by pickle they attach again by name, by fork they take a process slot of their own."""

from __future__ import annotations

import multiprocessing
import multiprocessing.resource_tracker
import pickle
from typing import Any

import numpy as np
import pytest

from conduit import ForkedHandle, Store, StoreNotFound, Table, VectorWriter, Writer
from tests.entries import STEP, steps
from tests.shm_support import no_new_descriptors, private_runtime_dir
from tests.store_support import (
    EPISODIC,
    column_of,
    fresh_store,
    plain_table,
    prioritized,
    scalar_writer,
    unchanged,
    vector_writer,
    windows_of,
)
from tests.worker import forked, worker


def copied(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


# ---- pickle


def test_within_a_process_a_pickle_is_the_same_store_and_table() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        assert copied(store) is store
        assert copied(table) is table


def test_a_closed_store_attaches_anew_where_it_still_lives() -> None:
    with fresh_store() as store, Store.attach(store.name) as other:
        table = plain_table(store, 8)
        data = pickle.dumps(table)
        other.close()
        store_2 = Store.attach(store.name)
        store.close()
        again = pickle.loads(data)
        assert isinstance(again, Table)
        again.extend({"x": np.arange(3)})
        assert len(store_2["t"]) == 3
        again._store.close()
        store_2.close()


def test_a_store_that_is_gone_says_so() -> None:
    with private_runtime_dir(), no_new_descriptors():
        with Store.create("gone", "1MiB") as store:
            data = pickle.dumps(store)
        with pytest.raises(StoreNotFound, match="gone"):
            pickle.loads(data)


def test_a_read_only_handle_stays_read_only() -> None:
    with fresh_store() as store, Store.attach(store.name, read_only=True) as reader:
        plain_table(store, 8)
        assert copied(reader) is reader
        assert copied(reader["t"]) is reader["t"]
        assert copied(store).read_only is False


def fill(writer: Writer | VectorWriter, n: int) -> tuple[type, int]:
    """In another process: append through an unpickled writer."""
    with writer:
        for _ in range(n):
            writer.append(**steps((3,) if isinstance(writer, VectorWriter) else ()))
    table = writer._table
    rows = len(table)
    table._store.close()
    return type(writer), rows


def draw(table: Table, n: int) -> tuple[list[int], int]:
    drawn = table.sample(n)["x"].tolist()
    same = pickle.loads(pickle.dumps(table)) is table
    table._store.close()
    return drawn, same


def test_a_table_in_another_process() -> None:
    with fresh_store() as store, worker() as other:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        drawn, same = other.call(draw, table, 50)
        assert set(drawn) == {0, 1, 2}
        assert same


def test_a_writer_in_another_process_is_a_new_writer() -> None:
    with fresh_store() as store, worker() as other:
        table = store.create_table("t", STEP, 64)
        with scalar_writer(table, timeout=7.0) as scalar, vector_writer(table, 3, autoreset="disabled") as vector:
            scalar.append(**steps(()))
            vector.append(**steps((3,)))
            assert other.call(fill, scalar, 2) == (Writer, 6)
            assert other.call(fill, vector, 2) == (VectorWriter, 12)
            scalar.append(**steps(()))
            again = copied(scalar)
            assert again is not scalar
            assert again._timeout == 7.0
            again.close()
            vector_again = copied(vector)
            assert (vector_again._n, vector_again._mode) == (3, "disabled")
            vector_again.close()
        table.verify()


def in_a_pool(table: Table, first: int) -> int:
    return table.extend({"x": np.arange(first, first + 10)})


@pytest.fixture(scope="module")
def resource_tracker() -> None:
    """Python's own, started before descriptors are counted; it stays."""
    multiprocessing.resource_tracker.ensure_running()


@pytest.mark.usefixtures("resource_tracker")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing(method: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 100)
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.starmap(in_a_pool, [(table, first) for first in (0, 10, 20)]) == [10, 10, 10]
            pool.close()
            pool.join()
        assert sorted(column_of(table).tolist()) == list(range(30))
        assert store.metrics().processes == 1


# ---- fork


def test_a_forked_child_goes_on_with_store_and_table() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, sampler=prioritized())
        table.extend({"x": np.arange(10)})
        parent = store._native.slot

        def child() -> tuple[bool, int, int, int]:
            batch = table.sample(8)
            applied = table.update_priorities(batch.keys, np.full(8, 2.0)).applied
            table.extend({"x": np.arange(10, 15)})
            made = store.create_table("child", STEP, 8)
            made.extend(steps((3,)))
            return store._native.slot != parent, applied, len(table), store.metrics().processes

        assert forked(child) == (True, 8, 15, 2)
        assert store.metrics().processes == 1
        assert len(table) == 15
        assert len(store["child"]) == 3
        table.extend({"x": np.arange(15, 20)})
        assert sorted(column_of(table).tolist()) == list(range(20))  # in the order of blocks
        table.verify()


def test_a_child_that_closes_leaves_the_parent_alone() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100)
        table.extend({"x": np.arange(10)})
        with scalar_writer(table) as writer:
            writer.append(x=10)
            forked(store.close)
            forked(writer.close)
            writer.append(x=11)
        assert column_of(table).tolist() == list(range(12))
        with Store.attach(store.name) as again:  # the parent still answers
            assert len(again["t"]) == 12


def test_a_child_makes_writers_of_its_own() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        with scalar_writer(table) as writer:
            writer.append(**steps((), obs=np.zeros(2, np.float32)))

            def child() -> int:
                with scalar_writer(table) as own:
                    own.append(**steps(()))
                    own.append(**steps(()))
                return len(table)

            assert forked(child) == 3
            with unchanged(table), pytest.raises(ForkedHandle):
                forked(lambda: writer.append(**steps(())))
            writer.append(**steps((), obs=np.ones(2, np.float32)))
            assert len(table) == 4
        table.verify()


def test_an_extension_goes_on_in_a_child_by_a_chain_of_its_own() -> None:
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 64)

        def columns(first: int) -> dict[str, Any]:
            return {**steps((2,)), "obs": np.arange(first, first + 2)}

        table.extend(columns(0))
        assert forked(lambda: table.extend(columns(100))) == 2
        table.extend(columns(2))
        found = windows_of(table)
        assert {obs: window["next_obs"] for obs, window in found.items()} == {0: 1, 1: 2, 2: 3, 100: 101}


def test_a_killed_childs_slot_is_free_again() -> None:
    with fresh_store(max_processes=2) as store:
        table = plain_table(store, 100)
        for _ in range(3):
            assert forked(lambda: table.extend({"x": np.arange(2)})) == 2  # leaves by _exit, closing nothing
        assert len(table) == 6
        assert store.metrics().processes == 1
