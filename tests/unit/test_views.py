"""Several windows by name over the rows of one table: each with an index of its own."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import ConfigError, SampleTimeout, StaleKey, Store, Table, UnknownWindow, samplers, windows
from tests.store_support import (
    EPISODIC,
    PLAIN,
    episode,
    fresh_store,
    in_sigma,
    keys_of,
    prioritized,
    scalar_writer,
    step,
)  # fmt: skip

THREE = {"one": windows.Transition(0.9), "three": windows.NStep(3, 0.9), "rows": windows.Row()}


def make(store: Store, max_size: int = 100, sampler: object = None, **options: object) -> Table:
    chosen = {"one": prioritized(), "three": prioritized(0.5), "rows": samplers.Uniform()}
    return store.create_table("t", EPISODIC, max_size, window=THREE, sampler=sampler or chosen, **options)  # type: ignore[arg-type]


def test_each_window_has_its_own_eligible_rows() -> None:
    with fresh_store() as store:
        table = make(store)
        with scalar_writer(table) as writer:
            for i in range(3):
                step(writer, i, 1.0)
            assert {int(x) for x in table.sample(64)["obs"]} == {0, 1}
            assert {int(x) for x in table.sample(64, window="rows")["obs"]} == {0, 1, 2}
            with pytest.raises(SampleTimeout, match=r"NStep\(n=3"):
                table.sample(1, window="three", timeout=0.01)
            step(writer, 3, 1.0)
            assert {int(x) for x in table.sample(64, window="three")["obs"]} == {0}
            with pytest.raises(StaleKey):
                table.rows(keys_of(table)[1:2], window="three")
            step(writer, 4, 1.0, "terminated")
            writer.end(5)
            table.verify()
            assert table.info(window="three").ready_rows == 5
            assert table.info(window="rows").ready_rows == 5  # the final observation is no row of it
            assert set(table.sample(64, window="three")["obs"].tolist()) == {0, 1, 2, 3, 4}


def test_the_columns_are_those_of_each_window() -> None:
    with fresh_store() as store:
        table = make(store)
        assert list(table.batch_schemas) == ["one", "three", "rows"]
        assert table.batch_schema == table.batch_schemas["one"]
        assert table.batch_schemas["rows"] == EPISODIC
        with scalar_writer(table) as writer:
            episode(writer, [0, 1, 2], [1, 1, 1], "terminated", 9)
        keys = keys_of(table)[:3]
        assert table.rows(keys)["n_step"].tolist() == [1, 1, 1]
        assert table.rows(keys, window="three")["n_step"].tolist() == [3, 2, 1]
        assert table.rows(keys, window="rows").names == EPISODIC.names


def test_priorities_given_with_rows_go_into_every_prioritized_window() -> None:
    with fresh_store() as store:
        table = make(store)
        with scalar_writer(table) as writer:
            step(writer, 0, priority=4.0)
            for i in range(1, 5):
                step(writer, i)
        keys = keys_of(table)
        assert table.priorities(keys[:2]).tolist() == [4, 4]  # the second got the largest
        assert table.priorities(keys[:2], window="three").tolist() == [4, 4]
        assert table.priorities(keys[:2], window="rows").tolist() == [1, 1]
        assert table.info().total_priority == 16.0  # the last step of a writer that went has no successor
        assert table.info(window="three").total_priority == 8.0  # alpha is 0.5 there
        table.verify()


def test_updates_change_one_window() -> None:
    with fresh_store() as store:
        table = make(store)
        with scalar_writer(table) as writer:
            episode(writer, list(range(6)), [0.0] * 6, "truncated", 9)
        keys = keys_of(table)[:6]
        assert table.update_priorities(keys, np.arange(6), window="three") == (6, 0)
        assert table.priorities(keys).tolist() == [1] * 6
        assert table.priorities(keys, window="three").tolist() == [0, 1, 2, 3, 4, 5]
        drawn = np.bincount(table.sample(60_000, window="three")["obs"], minlength=6)
        masses = np.sqrt(np.arange(6))
        for i, p in enumerate(masses / masses.sum()):
            assert in_sigma(drawn[i], 60_000, p)
        np.testing.assert_allclose(table.sample(64).probabilities, 1 / 6)
        with pytest.raises(ConfigError, match="window 'rows' of table 't' is not sampled by priority"):
            table.update_priorities(keys, np.ones(6), window="rows")
        table.verify()


def test_settings_change_one_window() -> None:
    with fresh_store() as store:
        table = make(store)
        table.reconfigure(alpha=1.0, beta=0.25, window="three")
        chances = [table._native.settings().view(number) for number in (0, 1)]
        assert [(c.alpha, c.beta, c.eps) for c in chances] == [(1.0, 1.0, 0.0), (1.0, 0.25, 0.0)]
        with pytest.raises(ConfigError, match="window 'rows' of table 't' is not sampled by priority"):
            table.reconfigure(alpha=1.0, window="rows")
        table.reconfigure(min_size=7, window="rows")
        with pytest.raises(SampleTimeout, match=r"MinSize\(7\)"):
            table.sample(1, timeout=0.01)


def test_eviction_takes_rows_out_of_every_window() -> None:
    with fresh_store() as store:
        table = make(store, 20)
        with scalar_writer(table) as writer:
            for i in range(100):
                step(writer, i)
            for name, last in (("one", 98), ("three", 96), ("rows", 99)):
                assert set(table.sample(2_000, window=name)["obs"].tolist()) == set(range(80, last + 1))
        table.verify()
        table.clear()
        for name in THREE:
            assert table.info(window=name).total_priority == 0
        table.verify()


def test_draws_of_two_windows_are_independent_and_repeat() -> None:
    with fresh_store() as store:
        table, twin = (
            store.create_table(name, PLAIN, 1_000, window={"a": windows.Row(), "b": windows.Row()}, seed=5)
            for name in "tu"
        )
        other = store.create_table("v", PLAIN, 1_000, seed=5)
        for t in (table, twin, other):
            t.extend({"x": np.arange(1_000)})
        a, b = (table.sample(1_000, window=name, stream=3)["x"] for name in "ab")
        assert (a == other.sample(1_000, stream=3)["x"]).all()  # the first window draws what a single one would
        assert in_sigma(float((a == b).sum()), 1_000, 1 / 1_000)
        with table.loader(1_000, window="b", stream=7) as loader:
            assert (loader.next()["x"] == twin.sample(1_000, window="b", stream=7)["x"]).all()


def test_other_processes_read_the_windows_from_the_store() -> None:
    with fresh_store() as store:
        table = make(store)
        assert table.spec.from_json(table.spec.to_json()) == table.spec
        assert table.spec.from_json(table.spec.to_json()).views == table.spec.views
        with Store.attach(store.name) as other:
            assert other["t"].spec == table.spec
            assert other["t"].batch_schemas == table.batch_schemas
        assert make(store, exist_ok=True) is table
        kinds = store.create_table("k", PLAIN, 10, window={"kind": windows.Row()})  # a name that JSON uses too
        assert kinds.spec.from_json(kinds.spec.to_json()) == kinds.spec


def test_names_that_are_not_there() -> None:
    with fresh_store() as store:
        table = make(store)
        for call in (
            lambda: table.sample(1, window="thre"),
            lambda: table.loader(1, window="thre"),
            lambda: table.rows([], window="thre"),
            lambda: table.update_priorities([], [], window="thre"),
            lambda: table.priorities([], window="thre"),
            lambda: table.reconfigure(window="thre"),
            lambda: table.info(window="thre"),
        ):
            with pytest.raises(
                UnknownWindow, match=r"'t' has no window 'thre'; it has one, three, rows\. Did you mean 'three'"
            ):
                call()
        single = store.create_table("s", PLAIN, 10)
        single.extend({"x": [1]})
        assert single.sample(1, window="default")["x"] == [1]


@pytest.mark.parametrize(
    ("window", "sampler", "message"),
    [
        ({}, None, "window has 0 entries: give 1 to 4"),
        ({str(i): windows.Row() for i in range(5)}, None, "window has 5 entries"),
        ({"a b": windows.Row()}, None, "window name 'a b' is not allowed"),
        ({3: windows.Row()}, None, "window name 3 is not allowed"),
        ({"a": windows.Row()}, {"b": samplers.Uniform()}, "sampler names b, window names a: give the same names"),
        (windows.Row(), {"b": samplers.Uniform()}, "window is one without a name"),
        ({"a": "Row"}, None, "window 'a' is 'Row': give an instance of windows.Row or"),
        ({"a": windows.Row()}, {"a": 1}, "sampler 'a' is 1: give an instance of samplers.Uniform or"),
    ],
)
def test_settings_that_are_refused(window: object, sampler: object, message: str) -> None:
    with fresh_store() as store, pytest.raises(ConfigError, match=message):
        store.create_table("t", PLAIN, 10, window=window, sampler=sampler)  # type: ignore[arg-type]


def test_one_window_takes_no_more_memory_than_before() -> None:
    with fresh_store() as store:
        plain = {"a": windows.Row()}
        one = store.create_table("one", PLAIN, 10_000, sampler=prioritized())
        named = store.create_table("named", PLAIN, 10_000, window=plain, sampler=prioritized())
        two = store.create_table("two", PLAIN, 10_000, window=plain | {"b": windows.Row()}, sampler=prioritized())
        assert named._native.control_bytes == one._native.control_bytes
        slots = two._layout.rows * two._layout.blocks
        # of the second: a leaf with its sums, a priority, extremes; not the rest of the index
        assert 13 * slots < two._native.control_bytes - one._native.control_bytes < 13.5 * slots + 8_192
