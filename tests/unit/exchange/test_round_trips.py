"""What is exported and imported again is the same to the bit: values, dtypes, shapes, episodes, priorities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit import Column, Schema, Store, Table, removers, samplers, windows
from tests.exchange_support import (
    EVERY_DTYPE,
    NESTED,
    SETTINGS,
    STEPS,
    TIMES,
    file_of,
    random_values,
    steps_table,
    windows_of_rows,
)
from tests.store_support import column_of, fresh_store, scalar_writer

FORMATS = ("parquet", "parquet folder", "arrow", "arrow-stream", "numpy")


def there_and_back(table: Table, store: Store, path: Path, format: str, name: str = "again", **options: Any) -> Table:
    target = path / file_of(format)
    assert table.export(target, "parquet" if " " in format else format, overwrite=True) == len(table)
    again = store.import_table(name, target, **options)
    again.verify()
    assert len(again) == len(table)
    assert again.schema == table.schema
    return again


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("schema", [STEPS, NESTED], ids=["flat", "nested"])
def test_every_window_of_episodes_survives(tmp_path: Path, format: str, schema: Schema) -> None:
    with fresh_store() as store:
        table = steps_table(store, schema=schema)
        again = there_and_back(table, store, tmp_path, format, **SETTINGS)
        assert windows_of_rows(again) == windows_of_rows(table)
        assert any(window[-1] for window in windows_of_rows(again))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("num_envs", [1, 64])
def test_episodes_over_many_blocks(tmp_path: Path, format: str, num_envs: int) -> None:
    """Rows of an episode, and its final observation, lie in different blocks."""
    with fresh_store() as store:
        table = steps_table(store, num_envs=num_envs, steps=2 + 300 // num_envs, max_size=300, max_writers=1)
        assert table.info().blocks_open > 3
        again = there_and_back(table, store, tmp_path, format, **SETTINGS)
        assert windows_of_rows(again) == windows_of_rows(table)


def test_what_was_evicted_is_left_out(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = steps_table(store, steps=200, max_size=150)
        assert table.info().evicted
        again = there_and_back(table, store, tmp_path, "parquet", **SETTINGS)
        assert windows_of_rows(again) == windows_of_rows(table)


def test_an_open_episode_goes_out_as_far_as_it_is(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEPS, 100, window=windows.Transition())
        row = {"reward": 0.0, "terminated": False, "truncated": False, "mask": np.ones((2, 2), bool)}
        with scalar_writer(table) as writer:
            for i in range(5):
                writer.append(obs=np.full(3, i, "f4"), action=i, **row)
            arrays = table.to_numpy()
            assert arrays["step"].tolist() == [0, 1, 2, 3, 4]
            assert len(arrays["final_row"]) == 0
            again = there_and_back(table, store, tmp_path, "arrow", window=windows.Transition())
            assert windows_of_rows(again) == windows_of_rows(table)


@pytest.mark.parametrize("format", FORMATS)
def test_every_dtype_keeps_its_bits(tmp_path: Path, format: str) -> None:
    columns = [Column(f"{kind}{shape}".translate(str.maketrans("?[], ()", "b______")).strip("_"), np.dtype(kind), shape)
               for kind in (*EVERY_DTYPE, *TIMES) for shape in ((), (1,), (2, 3))]  # fmt: skip
    schema = Schema(tuple(columns))
    with fresh_store() as store:
        table = store.create_table("t", schema, 200)
        table.extend({c.name: random_values(c, 200, np.random.default_rng(1)) for c in schema})
        again = there_and_back(table, store, tmp_path, format)
        for column in schema:
            assert column_of(again, column.name).tobytes() == column_of(table, column.name).tobytes(), column


@pytest.mark.parametrize("format", FORMATS)
def test_no_rows(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        for name, table in (
            ("steps", store.create_table("t", STEPS, 10, **SETTINGS)),
            ("rows", store.create_table("u", STEPS, 10, window=windows.Row())),
        ):
            assert len(there_and_back(table, store, tmp_path, format, name=name)) == 0


_columns = st.lists(
    st.tuples(st.sampled_from((*EVERY_DTYPE, *TIMES)), st.lists(st.integers(1, 4), max_size=3).map(tuple)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_columns, st.integers(0, 70), st.sampled_from(FORMATS), st.integers(0, 2**32))
def test_any_schema(tmp_path: Path, kinds: list[Any], rows: int, format: str, seed: int) -> None:
    schema = Schema(tuple(Column(f"c{i}/x", np.dtype(kind), shape) for i, (kind, shape) in enumerate(kinds)))
    rng = np.random.default_rng(seed)
    with fresh_store() as store:
        table = store.create_table("t", schema, 50)
        for n in (rows // 2, rows - rows // 2):
            table.extend({column.name: random_values(column, n, rng) for column in schema})
        again = there_and_back(table, store, tmp_path, format)
        for column in schema:
            assert column_of(again, column.name).tobytes() == column_of(table, column.name).tobytes(), column


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 7), st.integers(0, 60), st.integers(0, 2**32), st.integers(20, 200), st.sampled_from(FORMATS))
def test_any_episodes(tmp_path: Path, num_envs: int, steps: int, seed: int, max_size: int, format: str) -> None:
    with fresh_store() as store:
        table = steps_table(store, num_envs=num_envs, steps=steps, seed=seed, max_size=max_size)
        again = there_and_back(table, store, tmp_path, format, **SETTINGS)
        assert windows_of_rows(again) == windows_of_rows(table)


@pytest.mark.parametrize("remover", [removers.Lifo(), removers.LowestPriority()])
def test_rows_that_leave_one_by_one(tmp_path: Path, remover: Any) -> None:
    schema = Schema((Column("x", np.dtype("i8")), Column("priority_of", np.dtype("f4"))))
    with fresh_store() as store:
        table = store.create_table("t", schema, 50, sampler=samplers.Prioritized(), remover=remover)
        for x in (np.arange(40), np.arange(40, 80)):
            table.extend({"x": x, "priority_of": (x % 7).astype("f4")}, priorities=x % 7)
        table.extend({"x": x, "priority_of": (x % 7).astype("f4")}, priorities=x % 7)
        arrays = table.to_numpy()
        assert len(arrays["x"]) == len(table)
        assert (arrays["priority"] == arrays["priority_of"]).all()
        again = there_and_back(table, store, tmp_path, "parquet", sampler=samplers.Prioritized())
        assert sorted(column_of(again).tolist()) == sorted(arrays["x"].tolist())


def test_rows_that_were_used_up_are_left_out() -> None:
    with fresh_store() as store:
        table = store.create_table("t", Schema((Column("x", np.dtype("i8")),)), 50, max_times_sampled=1)
        table.extend({"x": np.arange(50)})
        gone = set(table.sample(20)["x"].tolist())
        assert set(table.to_numpy()["x"].tolist()) == set(range(50)) - gone


def test_columns_named_as_the_links_are(tmp_path: Path) -> None:
    schema = Schema((*STEPS.columns, Column("episode", np.dtype("f4")), Column("step", np.dtype("i2"))))
    with fresh_store() as store:
        table = steps_table(store, schema=schema)
        again = there_and_back(table, store, tmp_path, "parquet", **SETTINGS)
        assert windows_of_rows(again) == windows_of_rows(table)
        assert {"episode", "episode_", "step", "step_"} <= set(table.to_numpy())
