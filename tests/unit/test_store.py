"""Store: create, attach, open_or_create, tables, processes."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

from conduit import CapacityError, ConfigError, Store, StoreNotFound, Table, limiters, samplers, windows
from conduit_store import memory
from conduit_transport import forks, names
from tests import store_actions
from tests.shm_support import no_new_descriptors, private_runtime_dir
from tests.store_support import EPISODIC, PLAIN, fresh_store, plain_table
from tests.waiting import until
from tests.worker import workers


def test_a_new_store() -> None:
    with private_runtime_dir(), no_new_descriptors():
        store = Store.create("run-1.a_b", "2MiB")
        assert (store.name, store.read_only, store.closed, store.tables()) == ("run-1.a_b", False, False, [])
        assert repr(store) == "<Store 'run-1.a_b' 0 tables, up to 2 MiB>"
        assert names.list_names() == ["run-1.a_b"]
        store.close()
        assert store.closed
        assert names.list_names() == []


def test_without_a_size_it_may_take_half_of_what_there_is() -> None:
    with private_runtime_dir():
        before = memory.available_bytes().bytes // 2
        with Store.create("half") as store:
            metrics = store.metrics()
        assert 0.5 * before < metrics.host_memory < 1.5 * before
        assert metrics.reserved_bytes < 64 << 20


def test_leaving_the_block_closes_also_by_an_exception() -> None:
    with private_runtime_dir(), no_new_descriptors():
        with pytest.raises(ZeroDivisionError), Store.create("a", "1MiB") as store:
            raise ZeroDivisionError
        assert store.closed
        with pytest.raises(StoreNotFound):
            Store.attach("a")


def test_a_store_that_is_dropped_goes() -> None:
    with private_runtime_dir(), no_new_descriptors():
        plain_table(Store.create("a", "16MiB"), 8).extend({"x": np.arange(3)})
        gc.collect()
        assert names.list_names() == []


def test_attach_sees_the_same_rows_both_ways() -> None:
    with fresh_store() as store, Store.attach(store.name) as again:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        assert again.tables() == ["t"]
        again["t"].extend({"x": np.arange(3, 5)})
        assert len(table) == len(again["t"]) == 5
        assert again.metrics().host_memory == 16 << 20
        assert store.metrics().processes == 2


def test_open_or_create() -> None:
    with private_runtime_dir(), no_new_descriptors():
        with Store.open_or_create("a", "2MiB") as first:
            plain_table(first, 8).extend({"x": np.arange(3)})
            with Store.open_or_create("a", "4MiB") as second:
                assert len(second["t"]) == 3
                assert second.metrics().host_memory == 2 << 20
        with Store.open_or_create("a", "4MiB") as third:
            assert third.tables() == []


def test_many_threads_open_or_create_one_store() -> None:
    with private_runtime_dir(), no_new_descriptors():
        made: list[Store] = []
        start = threading.Barrier(6)

        def open_it() -> None:
            start.wait()
            made.append(Store.open_or_create("a", "2MiB"))

        threads = [threading.Thread(target=open_it) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 6
        plain_table(made[0], 8)
        assert [store.tables() for store in made] == [["t"]] * 6
        assert made[0].metrics().processes == 6
        for store in made:
            store.close()
        assert names.list_names() == []


def test_every_call_gives_the_same_table() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        assert store.table("t") is table
        assert store["t"] is table
        assert plain_table(store, 8, exist_ok=True) is table


def test_tables_keep_their_order_and_their_settings() -> None:
    settings: dict[str, dict[str, Any]] = {
        "b": {"schema": PLAIN, "max_size": 10},
        "a": {"schema": PLAIN, "max_size": 20, "sampler": samplers.Prioritized(0.5, 0.25, 1e-3), "seed": 9},
        "c": {"schema": EPISODIC, "max_size": 30, "window": windows.NStep(3, 0.5), "limiter": limiters.MinSize(7)},
        "d": {"schema": EPISODIC, "max_size": 40, "max_writers": 3, "mean_episode_length": 100.0},
    }
    with fresh_store() as store:
        for name, options in settings.items():
            store.create_table(name, **options)
        with Store.attach(store.name) as again:
            assert again.tables() == store.tables() == ["b", "a", "c", "d"]
            for name, options in settings.items():
                assert again[name].spec == store[name].spec
                for field, value in options.items():
                    assert getattr(again[name].spec, field) == value
        assert store["b"].spec.window == windows.Row()
        assert store["d"].spec.window == windows.Transition()


@pytest.mark.parametrize(
    "options",
    [
        {"max_size": 0}, {"max_size": 1.5}, {"max_size": True}, {"max_size": "8"}, {"max_size": 1 << 28},
        {"max_writers": 0}, {"mean_episode_length": 0.5}, {"mean_episode_length": np.nan}, {"seed": -1},
        {"sampler": "uniform"}, {"window": 3}, {"limiter": 5}, {"schema": {"x": 1}},
    ],
)  # fmt: skip
def test_settings_that_are_refused(options: dict[str, Any]) -> None:
    (field,) = options
    with fresh_store() as store:
        with pytest.raises(ConfigError, match="MAX|limit" if options == {"max_size": 1 << 28} else field):
            store.create_table(**{"name": "t", "schema": PLAIN, "max_size": 8, **options})
        assert store.tables() == []


def test_the_largest_number_of_tables() -> None:
    with fresh_store() as store:
        for i in range(64):
            plain_table(store, 8, f"t{i}")
        reserved = store.metrics().reserved_bytes
        with pytest.raises(ConfigError, match="largest number of tables, 64"):
            plain_table(store, 8, "more")
        assert len(store.tables()) == 64
        assert store.metrics().reserved_bytes == reserved


def test_the_largest_number_of_processes() -> None:
    with fresh_store(max_processes=2) as store, Store.attach(store.name) as second:
        with no_new_descriptors(), pytest.raises(CapacityError, match=r"all 2 are held by live .*max_processes"):
            Store.attach(store.name)
        second.close()
        with Store.attach(store.name) as third:
            assert third.metrics().processes == 2


@pytest.mark.parametrize("max_processes", [0, -1, 65_537, 2.0, True])
def test_numbers_of_processes_that_are_refused(max_processes: Any) -> None:
    with private_runtime_dir(), no_new_descriptors(), pytest.raises(ConfigError, match="max_processes"):
        Store.create("a", "1MiB", max_processes=max_processes)


def test_a_store_outlives_its_creator_and_answers_newcomers() -> None:
    with fresh_store() as store, workers(2) as (holder, late):
        plain_table(store, 8).extend({"x": np.arange(5)})
        assert holder.call(store_actions.total, store.name) == (5, 10)
        store.close()
        assert late.call(store_actions.total, store.name) == (5, 10)
        with Store.attach(store.name) as again:
            assert len(again["t"]) == 5
            assert again.metrics().processes == 3
        for worker in (holder, late):
            worker.call(store_actions.drop_all)
        assert names.list_names() == []


def test_threads_create_tables_at_the_same_time() -> None:
    with fresh_store() as store:
        start = threading.Barrier(4)
        made: list[Table] = []

        def create(i: int) -> None:
            start.wait()
            made.append(plain_table(store, 8, f"t{i % 2}", exist_ok=True))

        threads = [threading.Thread(target=create, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(store.tables()) == ["t0", "t1"]
        assert len({id(table) for table in made}) == 2


def test_a_view_holds_the_memory_but_not_the_name() -> None:
    """Its process slot lives on with the view; nobody answers newcomers any more."""
    with fresh_store() as store, Store.attach(store.name) as again:
        plain_table(store, 8).extend({"x": np.arange(5)})
        views = again["t"].blocks()
        again.close()
        store.close()
        assert names.list_names() == []
        assert views[0].to_arrow()["x"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_store_collected_while_a_fork_is_held_off_lets_go() -> None:
    """A collection may begin in a thread that holds the guard which the store's server thread needs to end."""
    with private_runtime_dir():
        name = f"collected-{os.getpid()}"
        store = Store.create(name, "1MiB")
        with forks.fork_guard:
            del store
            gc.collect()
        until(lambda: name not in names.list_names())
