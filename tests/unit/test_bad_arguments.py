"""Arguments of the wrong kind: refused at the call, by a typed error that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conduit import (
    Column,
    ConduitError,
    ConfigError,
    DtypeMismatch,
    Schema,
    SchemaError,
    ShapeMismatch,
    Store,
    checkpoints,
    samplers,
    windows,
)
from tests.store_support import EPISODIC, PLAIN, episodes, fresh_store, plain_table, prioritized, unchanged

Made = Callable[[], Any]
nothing: Any = None


@pytest.mark.parametrize("what", ["sampler", "limiter", "remover"])
@pytest.mark.parametrize("value", [0, {}, [], np.zeros(2)], ids=repr)
def test_a_setting_that_is_false_is_not_left_out(what: str, value: Any) -> None:
    with fresh_store() as store:
        with pytest.raises(ConfigError, match=what):
            plain_table(store, 8, **{what: value})
        assert store.tables() == []


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_exist_ok_is_a_bool(value: Any) -> None:
    with fresh_store() as store, pytest.raises(ConfigError, match=r"exist_ok is .*True or False"):
        plain_table(store, 8, exist_ok=value)


def test_attach_waits_as_others_do_and_takes_a_bool() -> None:
    with fresh_store() as store:
        with Store.attach(store.name, timeout=None) as again:
            assert again.tables() == []
        for wrong in ("10", -1.0, float("nan"), []):
            with pytest.raises(ConfigError, match="timeout is"):
                Store.attach(store.name, timeout=wrong)  # type: ignore[arg-type]
        for wrong in (None, "yes", 2):
            with pytest.raises(ConfigError, match="read_only is"):
                Store.attach(store.name, read_only=wrong)  # type: ignore[arg-type]


def test_a_mode_of_vector_environments_needs_some() -> None:
    with fresh_store() as store, episodes(store, 8).writer() as writer:
        writer.append(obs=1, action=1, reward=0.0, terminated=False, truncated=False)
        for mode in ("same_step", "next-step"):
            with pytest.raises(ConfigError, match=f"autoreset='{mode}' is of vector environments: give num_envs"):
                store["t"].writer(autoreset=mode)


def test_tokens_without_a_budget_of_them() -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", PLAIN, 8)
        queue.extend({"x": np.arange(4)})
        for call in (queue.sample, queue.loader):
            with pytest.raises(ConfigError, match="tokens='x' says what max_tokens counts"):
                call(2, tokens="x")  # type: ignore[operator]
        assert queue.info().consumers["default"].undelivered == 4


def test_priorities_that_are_no_array() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8, sampler=prioritized())
        keys = table.extend({"x": np.arange(2)}, return_keys=True)
        with unchanged(table), pytest.raises(ShapeMismatch, match="priorities are no array"):
            table.update_priorities(keys, [[1.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: Schema([("x", "float32")]), SchemaError, "a schema consists of Columns, got"),  # type: ignore[arg-type, list-item]
        (lambda: Schema(EPISODIC), SchemaError, "a schema consists of Columns, got Schema"),  # type: ignore[arg-type]
        (lambda: Schema.from_example([1, 2]), SchemaError, "got a list: give a mapping"),  # type: ignore[arg-type]
        (lambda: Column("x", nothing), DtypeMismatch, "None is not a dtype"),
        (lambda: Column("x", "float32", b"xy"), ShapeMismatch, "is not a tuple of integers"),
        (lambda: Column("x", "float32", {3: 4}), ShapeMismatch, "is not a tuple of integers"),  # type: ignore[arg-type]
        (lambda: Column("x", "string", np.zeros(2)), ShapeMismatch, "one row of 'string' is one value"),  # type: ignore[arg-type]
        (lambda: Column("x", "int8", values=np.zeros(2)), SchemaError, "go with the dtype 'category'"),  # type: ignore[arg-type]
        (lambda: samplers.Prioritized(normaliser=np.zeros(2)), ConfigError, "normaliser is"),  # type: ignore[arg-type]
        (lambda: windows.Hindsight("m:f", strategy=np.zeros(2)), ConfigError, "strategy is"),  # type: ignore[arg-type]
    ],
)
def test_settings_of_another_kind(make: Made, kind: type[ConduitError], said: str) -> None:
    with pytest.raises(kind, match=said):
        make()


def test_what_a_restore_is_given(tmp_path: Path) -> None:
    with fresh_store() as store:
        plain_table(store, 8).extend({"x": np.arange(3)})
        with pytest.raises(ConfigError, match="progress is True: give a function"):
            store.checkpoint(tmp_path / "a", progress=True)  # type: ignore[arg-type]
        assert not (tmp_path / "a").exists()
        store.checkpoint(tmp_path / "a")
        changes = {"tables": {"t": {"max_size": 9}}}, {"tables": [1]}, {"number": "1"}, {"number": 0}
        for given in (*changes, {"progress": True}):
            with pytest.raises(ConfigError, match=f"{next(iter(given))} is"):
                Store.restore(tmp_path / "a", "other", **given)  # type: ignore[arg-type]
        with Store.restore(tmp_path / "a", "other", tables={"t": checkpoints.Changes(max_size=9)}) as again:
            assert again["t"].max_size == 9


def test_what_a_histogram_and_an_import_are_given(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        assert table.histogram("x", bins=np.int64(3)).counts.tolist() == [1, 1, 1]  # type: ignore[arg-type]
        for bins in ("many", [[1], [1, 2]], None):
            with pytest.raises(ConfigError, match="bins"):
                table.histogram("x", bins=bins)  # type: ignore[arg-type]
        table.export(tmp_path / "x.parquet")
        with pytest.raises(SchemaError, match=r"give a conduit\.Schema"):
            store.import_table("again", tmp_path / "x.parquet", schema={"x": "i8"})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="progress is 1"):
            table.export(tmp_path / "y.parquet", progress=1)  # type: ignore[arg-type]
