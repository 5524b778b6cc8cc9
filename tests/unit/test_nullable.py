"""Rows without a value: nullable columns, by every way in and out."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import conduit
import conduit.offline
from conduit import Column, Schema, samplers, windows
from conduit.checkpoints import Changes
from tests.checkpoint_support import restored
from tests.disk_support import settled, tier
from tests.exchange_support import STEPS, steps_table
from tests.queue_support import queue_in
from tests.store_support import fresh_store, schema

GOAL = Column("goal", "float32", (3,), nullable=True)
SCHEMA = Schema(
    (
        Column("x", "int64"),
        GOAL,
        Column("score", "float64", nullable=True, mutable=True),
        Column("when", "datetime64[s]", nullable=True),
        Column("flags", "bool", (2,), nullable=True),
        Column("tokens", "int32", (None,), mean_length=3, nullable=True),
        Column("prompt", "string", mean_length=5, nullable=True),
        Column("blob", "binary", mean_length=5, nullable=True),
    )
)
NULLABLE = [column.name for column in SCHEMA.nullable]


def row(x: int) -> dict[str, Any]:
    """A row of which, by its number, each column has a value or none."""
    values = {
        "goal": np.full(3, x, np.float32), "score": x / 4, "when": np.datetime64(x, "s"), "flags": [x % 2 == 0, True],
        "tokens": list(range(x % 4)), "prompt": "é" * (x % 3), "blob": bytes([x % 256]),
    }  # fmt: skip
    return {"x": x, **{name: value if x >> k & 1 else None for k, (name, value) in enumerate(values.items())}}


def columns(n: int, first: int = 0) -> dict[str, list[Any]]:
    rows = [row(x) for x in range(first, first + n)]
    return {name: [one[name] for one in rows] for name in rows[0]}


def listed(x: int) -> dict[str, Any]:
    """A row as Arrow lists it."""
    made = row(x)
    if made["goal"] is not None:
        made["goal"] = made["goal"].tolist()
    if made["when"] is not None:
        made["when"] = made["when"].astype(object)
    return made


def faults(batch: Any) -> list[str]:
    wrong: list[str] = []
    for i, x in enumerate(batch["x"].tolist()):
        for name, value in row(x).items():
            valid = name == "x" or bool(batch.valid[name][i])
            found = batch[name][i]
            zeros = not np.any(found) if isinstance(found, np.ndarray) else found in ("", b"", 0, np.datetime64(0, "s"))
            same = np.array_equal(found, value) if valid and value is not None else zeros
            wrong += [] if valid == (value is not None) and same else [f"row {x}: {name} is {found!r}, {valid}"]
    return wrong


def test_a_schema_says_which_rows_have_a_value_right_before_the_values() -> None:
    of = Schema((Column("x", "i8"), GOAL))
    assert of.names == ("x", "goal:valid", "goal")
    assert of.valued == (of.column("x"), of.column("goal"))
    assert of.nullable == (GOAL,)
    assert of.column("goal:valid") == GOAL.validity == Column("goal:valid", "bool")
    assert Schema(of.columns) == of == Schema.from_json(of.to_json()) == pickle.loads(pickle.dumps(of))
    assert Schema((GOAL, GOAL.validity)).names == ("goal:valid", "goal")
    assert Column("goal", "float32", (3,)) != GOAL
    assert of.row_bytes == 8 + 12 + 1


@pytest.mark.parametrize(
    "given",
    [
        lambda: Schema((Column("goal:valid", "bool"), Column("goal", "f4"))),
        lambda: Schema((Column("goal:valid", "bool"),)),
        lambda: Column("goal:valid", "f4"),
        lambda: Column("goal:valid", "bool", nullable=True),
        lambda: Column("goal:other", "bool"),
        lambda: Column("goal", "f4", nullable=1),  # type: ignore[arg-type]
    ],
)
def test_columns_that_cannot_be(given: Any) -> None:
    with pytest.raises(conduit.SchemaError):
        given()


def test_rows_go_in_and_come_out_by_every_way() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 600, max_writers=2)
        table.extend(columns(128))
        with table.writer() as writer:
            for x in range(128, 256):
                writer.append(**row(x))
        table.extend(pa.Table.from_batches([block.to_arrow() for block in table.blocks()]).slice(3, 100))
        for batch in (table.sample(300), next(iter(table.loader(200)))):
            assert faults(batch) == []
            assert set(batch.valid) == set(NULLABLE)
            assert batch.valid["goal"].dtype == np.bool_
            arrow = batch.to_arrow()
            arrow.validate(full=True)
            assert arrow.to_pylist() == [listed(x) for x in batch["x"].tolist()]
        stored = [block.to_arrow() for block in table.blocks()]
        for block in stored:
            block.validate(full=True)
        rows = [one for block in stored for one in block.to_pylist()]
        assert rows == [listed(one["x"]) for one in rows]
        assert sorted({one["x"] for one in rows}) == list(range(256))
        assert len(rows) == 356
        assert table.blocks()[0].to_arrow().slice(3, 5).to_pylist() == [listed(x) for x in range(3, 8)]
        tensors = table.sample(8).torch()
        assert {"goal:valid", "tokens:valid", "tokens.offsets"} <= set(tensors)


def test_what_a_batch_looks_like_does_not_depend_on_the_values() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 600)
        kinds = []
        for first in (0, 127):  # of the first row nothing is there, of the other everything
            table.clear()
            table.extend(columns(1, first))
            batch = table.sample(4)
            arrow = batch.to_arrow()
            arrays = {name: batch[name] for name in batch.names}
            kinds.append((batch.names, {n: (a.values if hasattr(a, "values") else a).dtype for n, a in arrays.items()},
                          arrow.schema, [array.buffers()[0] is None for array in arrow.columns]))  # fmt: skip
        assert kinds[0] == kinds[1]


NONE_OF_1 = np.array([[0, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
PART_OF_2 = np.array([[0, 0, 0], [1, 1, 1], [1, 0, 0]], bool)
GIVEN: dict[str, Any] = {
    "list": [[1, 2, 3], None, [4, 5, 6]],
    "arrays": [np.arange(1, 4, dtype="f4"), None, np.arange(4, 7, dtype="f4")],
    "objects": np.array([[1.0, 2.0, 3.0], None, [4.0, 5.0, 6.0]], object),
    "masked": np.ma.array([[1, 2, 3], [7, 7, 7], [4, 5, 6]], mask=NONE_OF_1, dtype="f4"),
    "arrow": pa.array([[1, 2, 3], None, [4, 5, 6]], pa.list_(pa.float32(), 3)),
    "slice": pa.array([None, [9, 9, 9], [1, 2, 3], None, [4, 5, 6]], pa.list_(pa.float32(), 3)).slice(2),
    "chunked": pa.chunked_array([[[1, 2, 3], None], [[4, 5, 6]]], pa.list_(pa.float32(), 3)),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_values_with_nulls(kind: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", Schema((Column("x", "i8"), GOAL)), 10)
        table.extend({"x": [0, 1, 2], "goal": GIVEN[kind]})
        assert table.to_numpy()["goal"].tolist() == [[1, 2, 3], [0, 0, 0], [4, 5, 6]]
        assert table.to_numpy()["goal:valid"].tolist() == [True, False, True]


def test_numbers_and_lists_of_others() -> None:
    import pandas as pd
    import polars as pl

    of = Schema(
        (
            Column("a", "f4", nullable=True),
            Column("b", "i8", nullable=True),
            Column("s", "string", mean_length=3, nullable=True),
        )
    )
    words = [None, "x", "y"]
    mixed = np.ma.array([1.5, 2.5, 3.5], mask=[True, False, False], dtype="f4")
    given = [
        {"a": mixed, "b": pd.array([None, 5, 6], "Int64"), "s": np.array(words, object)},
        {"a": pd.Series([None, 2.5, 3.5], dtype="Float32"), "b": pd.Series([None, 5, 6], dtype="Int64"),
         "s": pd.Series(words)},
        {"a": pl.Series([None, 2.5, 3.5], dtype=pl.Float32), "b": pl.Series([None, 5, 6]), "s": pl.Series(words)},
        pa.table({"a": pa.array([None, 2.5, 3.5], pa.float32()), "b": [None, 5, 6], "s": [None, "x", "y"]}),
    ]  # fmt: skip
    with fresh_store() as store:
        table = store.create_table("t", of, 100)
        for one in given:
            table.extend(one)
        rows = table.to_arrow().read_all().to_pylist()
        assert (
            rows == [{"a": None, "b": None, "s": None}, {"a": 2.5, "b": 5, "s": "x"}, {"a": 3.5, "b": 6, "s": "y"}] * 4
        )
        table.extend({"a": [float("nan")], "b": [1], "s": [""]})  # numbers and texts like others
        assert table.to_arrow().read_all().slice(12).column("a").null_count == 0


def test_a_mask_by_itself_hides_what_lies_there() -> None:
    with fresh_store() as store:
        table = store.create_table("t", Schema((GOAL,)), 10)
        keys = table.extend({"goal": np.ones((3, 3), "f4"), "goal:valid": [True, False, True]}, return_keys=True)
        batch = table.rows(keys)
        assert batch["goal"].any(axis=1).tolist() == batch.valid["goal"].tolist() == [True, False, True]
        copied = {name: batch[name] for name in batch.names}
        table.extend(copied)  # a batch goes in as it came out
        with table.writer() as writer:
            writer.append(**{"goal": np.ones(3, "f4"), "goal:valid": False})
        assert table.to_numpy()["goal:valid"].tolist() == [True, False, True, True, False, True, False]
        with pytest.raises(conduit.ShapeMismatch):
            table.extend({"goal": np.ones((3, 3), "f4"), "goal:valid": [True]})


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        ([[1, 2, 3], None, [1, None, 3]], conduit.DtypeMismatch, "row 2 is or holds a null"),
        (
            pa.array([[1, 2, 3], None, [1, None, 3]], pa.list_(pa.float32(), 3)),
            conduit.DtypeMismatch,
            "row 2 is or holds",
        ),
        (np.ma.array(np.ones((3, 3), "f4"), mask=PART_OF_2), conduit.DtypeMismatch, "row 2 is or"),
        ([None, [1, 2], None], conduit.ShapeMismatch, "expects shape"),
        ([None, None], conduit.ShapeMismatch, "has 2 rows, others have 3"),
        ([None, ["a", "b", "c"], None], conduit.DtypeMismatch, "goal"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_row(value: Any, error: type[Exception], match: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", Schema((Column("x", "i8"), GOAL)), 10)
        with pytest.raises(error, match=match):
            table.extend({"x": [1, 2, 3], "goal": value})
        with pytest.raises(conduit.DtypeMismatch, match=r"row 1 is or holds a null.*nullable=True"):
            table.extend({"x": [1, None, 3], "goal": [None] * 3})
        assert len(table) == 0


def test_a_masked_value_is_no_value_of_a_plain_column() -> None:
    hidden = np.ma.array(np.ones(3, "f4"), mask=[False, True, False])
    with fresh_store() as store:
        plain = store.create_table("plain", schema(goal=("f4", (3,))), 10)
        table = store.create_table("t", Schema((GOAL,)), 10)
        with plain.writer() as one, table.writer() as other:
            with pytest.raises(conduit.DtypeMismatch, match="null"):
                one.append(goal=hidden)
            with pytest.raises(conduit.DtypeMismatch, match="null"):
                other.append(goal=hidden)
            other.append(goal=np.ma.array(np.ones(3, "f4"), mask=True))
        assert (len(plain), table.to_numpy()["goal:valid"].tolist()) == (0, [False])


def test_a_number_that_comes_late_is_null_until_then() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100)
        keys = table.extend(columns(8), return_keys=True)
        assert table.rows(keys).valid["score"].tolist() == [bool(x & 2) for x in range(8)]
        held = table.blocks()[0].to_arrow()
        assert table.update(keys[:6], score=np.arange(6.0)) == (6, 0)
        batch = table.rows(keys)
        assert batch.valid["score"].tolist() == [True] * 8
        assert batch["score"].tolist() == [0, 1, 2, 3, 4, 5, 1.5, 1.75]
        assert held.column("score").null_count == 4, "a view does not change while somebody holds it"
        assert table.blocks()[0].to_arrow().column("score").null_count == 0
        for wrong in ({"score": [None] * 8}, {"score:valid": [False] * 8}):
            with pytest.raises(conduit.ConduitError):
                table.update(keys, wrong)
        table.verify()


def test_windows_have_masks_of_every_step() -> None:
    of = Schema((*(c for c in STEPS if c.name != "mask"), Column("goal", "f4", (2,), nullable=True)))
    views: dict[str, Any] = {
        "one": windows.Transition(),
        "n": windows.NStep(3, 0.9),
        "seq": windows.Sequence(4, next_obs=True),
    }
    with fresh_store() as store:
        table = store.create_table("t", of, 100, window=views, sampler=samplers.Uniform())
        obs = np.arange(30, dtype="f4").reshape(10, 3)
        flags = np.zeros(10, bool)
        table.extend({
            "obs": obs, "action": np.arange(10), "reward": np.ones(10, "f4"), "terminated": flags, "truncated": flags,
            "goal": [None if i % 3 == 0 else [i, i] for i in range(10)],
        })  # fmt: skip
        for name in ("one", "n"):
            batch = table.sample(40, window=name)
            assert (batch.valid["goal"] == (batch["action"] % 3 != 0)).all()
            assert (batch["goal"][:, 0] == np.where(batch.valid["goal"], batch["action"], 0)).all()
        batch = table.sample(40, window="seq")
        assert batch.valid["goal"].shape == (40, 4)
        assert (batch.valid["goal"] == (batch["action"] % 3 != 0) & batch["mask"]).all()


@pytest.mark.parametrize("name", ["terminated", "obs", "reward"])
def test_what_a_table_acts_on_has_a_value(name: str) -> None:
    of = Schema(tuple(Column(c.name, c.dtype, c.shape, nullable=c.name == name) for c in STEPS))
    with fresh_store() as store, pytest.raises(conduit.ConfigError, match="nullable"):
        store.create_table("t", of, 100, window=windows.NStep(3, 0.9))


@pytest.mark.parametrize("format", ["parquet", "arrow", "arrow-stream"])
def test_files_and_back(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 300)
        table.extend(columns(256))
        table.export(tmp_path / "x", format)
        again = store.import_table("again", tmp_path / "x", format=format)
        assert again.schema == SCHEMA
        assert again.to_arrow().read_all().to_pylist() == [listed(x) for x in range(256)]


@pytest.mark.parametrize("format", ["parquet", "arrow", "numpy", "minari", "rllib", "tensordict"])
def test_steps_of_episodes_and_back(tmp_path: Path, format: str) -> None:
    of = Schema((*STEPS.columns, Column("goal", "f4", (2,), nullable=True), Column("level", "i8", nullable=True)))
    with fresh_store() as store:
        table = steps_table(store, schema=of, num_envs=1)
        table.export(tmp_path / "x", format)
        again = store.create_table("again", of, 5_000, window=windows.Transition(), mean_episode_length=3)
        n = again.import_from(tmp_path / "x", format)
        rows, expected = again.to_arrow().read_all(), table.to_arrow().read_all().slice(0, n)
        assert n >= len(table) - 1
        for name in ("level", "goal"):
            assert str(rows.column(name).to_pylist()) == str(expected.column(name).to_pylist())  # with their NaNs
            assert 0 < rows.column(name).null_count < n


def test_offline_batches_have_masks(tmp_path: Path) -> None:
    of = Schema((Column("x", "i8"), GOAL))
    with fresh_store() as store:
        table = store.create_table("t", of, 100)
        table.extend({"x": range(50), "goal": [None if x % 3 else [x, x, x] for x in range(50)]})
        table.export(tmp_path / "x.parquet")
    data = conduit.offline.open(tmp_path / "x.parquet", window=windows.Row(), buffer="1MiB")
    seen = [x for batch in data.loader(8) for x in batch["x"][batch.valid["goal"]].tolist()]
    assert sorted(seen) == list(range(0, 50, 3))


def test_nulls_in_a_file_need_a_table_that_takes_them(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1, 2, 3], "y": [1.0, None, 3.0]}), tmp_path / "x.parquet")
    with fresh_store() as store:
        with pytest.raises(conduit.DtypeMismatch, match=r"row 1 of .* column 'y' is null"):
            store.import_table("t", tmp_path / "x.parquet")
        fields = pq.read_schema(tmp_path / "x.parquet")
        assert Schema.from_arrow(fields) == Schema((Column("x", "i8"), Column("y", "f8")))
        of = Schema.from_arrow(fields, nullable=["y"])
        table = store.import_table("u", tmp_path / "x.parquet", schema=of)
        assert table.to_arrow().read_all().column("y").to_pylist() == [1.0, None, 3.0]
        with pytest.raises(conduit.UnknownColumn):
            Schema.from_arrow(fields, nullable=["z"])


def test_checkpoints_keep_nulls_and_columns_become_nullable(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 300)
        keys = table.extend(columns(256), return_keys=True)
        plain = store.create_table("plain", schema(x="i8", y="f4"), 50)
        plain.extend({"x": range(20), "y": np.ones(20, "f4")})
        table.update(keys[:4], score=np.ones(4))
        expected = table.to_arrow().read_all()
        store.checkpoint(tmp_path)
        table.update(keys[4:], score=np.ones(252))
    with restored(tmp_path) as again:
        assert again["t"].schema == SCHEMA
        assert again["t"].to_arrow().read_all().equals(expected)
    after = Schema((Column("x", "i8"), Column("y", "f4", nullable=True), GOAL, Column("z", "i8", nullable=True)))
    changes = Changes(schema=after, defaults={"goal": None, "z": 7}, max_size=100)
    with restored(tmp_path, tables={"plain": changes}) as again:
        again["plain"].extend({"x": [99], "y": [None], "goal": [[1, 2, 3]], "z": [None]})
        rows = again["plain"].to_arrow().read_all().to_pylist()
        assert rows[:20] == [{"x": x, "y": 1.0, "goal": None, "z": 7} for x in range(20)]
        assert rows[20] == {"x": 99, "y": None, "goal": [1, 2, 3], "z": None}
        again.checkpoint(tmp_path / "more")
    back = Changes(schema=schema(x="i8", y="f4"))
    with (
        pytest.raises(conduit.ConfigError, match="cannot become values"),
        restored(tmp_path / "more", tables={"plain": back}),
    ):
        pass


def test_queues_deliver_masks() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 100, schema=SCHEMA)
        queue.extend(columns(64))
        batch = queue.sample(64)
        assert faults(batch) == []
        batch.ack()


def test_lists_of_choices_are_of_columns_with_values() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100)
        with pytest.raises(conduit.ConfigError, match="nullable"):
            table.histogram("score")
        assert table.histogram("score:valid", bins=2).counts.sum() == 0
        with pytest.raises(conduit.MissingColumn, match="goal"):
            table.extend({name: values for name, values in columns(3).items() if name != "goal"})
        with pytest.raises(conduit.UnknownColumn, match="x:valid"):
            table.extend({**columns(3), "x:valid": [True] * 3})


def test_rows_on_disk_keep_nulls_and_categories(tmp_path: Path) -> None:
    of = Schema(
        (
            Column("x", "int64"), Column("goal", "float32", (30,), nullable=True),
            Column("env", "category", nullable=True), Column("late", "float32", nullable=True, mutable=True),
        )
    )  # fmt: skip
    with fresh_store() as store:
        table = store.create_table("t", of, 2_000, max_writers=1, disk=conduit.Disk(tmp_path, "80KB"))
        for first in range(0, 3_000, 100):
            x = range(first, first + 100)
            goals = [None if i % 3 == 0 else np.full(30, i, np.float32) for i in x]
            envs = [None if i % 5 == 0 else f"env {i // 500}" for i in x]
            table.extend({"x": list(x), "goal": goals, "env": envs, "late": [None] * 100})
        settled(table)
        assert tier(table)["blocks_on_disk"] > 0
        for _ in range(20):
            batch = table.sample(100)
            x = batch["x"]
            assert (batch.valid["goal"] == (x % 3 != 0)).all()
            assert (batch["goal"] == np.where(x % 3 != 0, x, 0)[:, None]).all()
            assert batch.decode("env").tolist() == [None if i % 5 == 0 else f"env {i // 500}" for i in x.tolist()]
            table.update(batch.keys, late=x.astype(np.float32))
            again = table.rows(batch.keys)
            assert again.valid["late"].all()
            assert (again["late"] == x).all()
        batch = table.sample(500)
        assert (batch["late"] == np.where(batch.valid["late"], batch["x"], 0)).all()
        table.verify()


def test_who_finds_a_late_number_valid_has_it() -> None:
    of = Schema((Column("x", "int64"), Column("late", "float32", nullable=True, mutable=True)))
    with fresh_store() as store:
        table = store.create_table("t", of, 4_000)
        keys = table.extend({"x": range(4_000), "late": [None] * 4_000}, return_keys=True)

        def update() -> None:
            for first in range(0, 4_000, 20):
                table.update(keys[first : first + 20], late=np.arange(first, first + 20, dtype=np.float32) + 1)

        updating = threading.Thread(target=update)
        updating.start()
        while updating.is_alive():
            batch = table.sample(2_000)
            valid = batch.valid["late"]
            assert (batch["late"][valid] == batch["x"][valid] + 1).all()
        updating.join()
        assert table.sample(2_000).valid["late"].all()
