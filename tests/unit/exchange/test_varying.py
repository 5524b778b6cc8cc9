"""Rows that vary in length go out and come in: lists, lists of images, bools, strings, bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conduit
import conduit.offline
from conduit import Column, ConduitError, DtypeMismatch, Ragged, Schema, SchemaError, ShapeMismatch, Table
from tests.store_support import fresh_store, keys_of

SCHEMA = Schema((
    Column("x", np.dtype("i8")),
    Column("tokens", "i4", (None,), mean_length=10),
    Column("frames", "u1", (None, 2, 3), mean_length=2),
    Column("flags", "?", (None,), mean_length=3),
    Column("prompt", "string", mean_length=8),
    Column("blob", "binary", mean_length=8),
))  # fmt: skip


def fill(table: Table, n: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for x in range(n):
        row = {
            "x": x, "tokens": rng.integers(0, 99, rng.integers(0, 20)).astype("i4"),
            "frames": rng.integers(0, 255, (rng.integers(0, 4), 2, 3)).astype("u1"),
            "flags": rng.random(rng.integers(0, 6)) < 0.5, "prompt": "é" * int(rng.integers(0, 6)),
            "blob": rng.bytes(int(rng.integers(0, 12))),
        }  # fmt: skip
        rows.append(row)
    table.extend({name: [row[name] for row in rows] for name in table.schema.names})
    return rows


def lists_of(table: Table) -> list[list[Any]]:
    batches = [block.to_arrow() for block in table.blocks()]
    columns = [
        pa.chunked_array([batch.column(name) for batch in batches]).to_pylist()
        for name in ("x", "tokens", "prompt", "blob")
    ]
    return sorted(map(list, zip(*columns, strict=True)))


@pytest.mark.parametrize("format", ["parquet", "arrow", "arrow-stream"])
def test_there_and_back(tmp_path: Path, format: str) -> None:
    with fresh_store("64MiB") as store:
        table = store.create_table("t", SCHEMA, 200)
        rows = fill(table, 150)
        assert table.export(tmp_path / "x", format) == 150
        again = store.import_table("again", tmp_path / "x", format=format)
        assert again.schema == table.schema
        assert len(again) == 150
        assert lists_of(again) == lists_of(table)
        batch = again.sample(400)
        for i in range(400):
            row = rows[int(batch["x"][i])]
            for name in ("tokens", "frames", "flags"):
                assert np.array_equal(batch[name][i], row[name]), name
            assert (batch["prompt"][i], batch["blob"][i]) == (row["prompt"], row["blob"])


def test_lists_of_others(tmp_path: Path) -> None:
    """How long they are in the mean is found by reading them once, and a tenth is added."""
    tokens = [list(range(i % 50)) for i in range(500)]
    columns = {"x": np.arange(500), "tokens": tokens, "text": [str(i) * 3 for i in range(500)]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with fresh_store("64MiB") as store:
        table = store.import_table("t", tmp_path / "x.parquet")
        assert table.schema.column("tokens").mean_length == pytest.approx(1.1 * 24.5)
        assert len(table) == 500
        batch = table.sample(100)
        assert all(batch["tokens"][i].tolist() == tokens[batch["x"][i]] for i in range(100))
        assert all(batch["text"][i] == columns["text"][batch["x"][i]] for i in range(100))


def test_rows_longer_than_they_were_planned_for_are_all_there(tmp_path: Path) -> None:
    """An export says what its table was planned for; what counts is how long its rows are."""
    long = Schema((Column("x", "int64"), Column("tokens", "int32", (None,), mean_length=10)))
    lengths = np.random.default_rng(1).geometric(1 / 50, 1_000)
    tokens = [np.full(n, i, np.int32) for i, n in enumerate(lengths)]
    with fresh_store() as store:
        table = store.create_table("t", long, 8_000)
        table.extend({"x": np.arange(1_000), "tokens": tokens})
        assert table.export(tmp_path / "t.parquet") == 1_000
        again = store.import_table("again", tmp_path / "t.parquet")
        assert len(again) == 1_000
        assert (again.schema.column("tokens").mean_length or 0) >= 50


def test_columns_stay_mutable(tmp_path: Path) -> None:
    late = Schema((Column("x", "int64"), Column("reward", "float32", mutable=True)))
    with fresh_store() as store:
        store.create_table("t", late, 10).extend({"x": np.arange(3), "reward": np.zeros(3, np.float32)})
        for suffix in ("parquet", "arrow", "arrows"):
            store["t"].export(tmp_path / f"t.{suffix}")
            again = store.import_table(suffix, tmp_path / f"t.{suffix}")
            assert again.schema.column("reward").mutable


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.arrow"])
def test_a_place_that_cannot_be_written(name: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", Schema((Column("x", "int64"),)), 10)
        table.extend({"x": np.arange(3)})
        with pytest.raises(ConduitError):
            table.export(Path("/proc") / name)


def test_arrays_and_back(tmp_path: Path) -> None:
    """In a .npz file rows that vary in length are all elements, and the length of each row."""
    with fresh_store("64MiB") as store:
        table = store.create_table("t", SCHEMA, 200)
        rows = fill(table, 150)
        table.export(tmp_path / "x.npz")
        again = store.import_table("again", tmp_path / "x.npz")
        assert [column.dtype_name for column in again.schema] == [column.dtype_name for column in SCHEMA]
        assert again.to_arrow().read_all().to_pylist() == table.to_arrow().read_all().to_pylist()
        arrays = table.to_numpy()
        lengths = arrays["tokens:lengths"]
        found = np.split(arrays["tokens"], np.cumsum(lengths)[:-1])
        assert [part.tolist() for part in found] == [row["tokens"].tolist() for row in rows]
        assert arrays["prompt:characters"].sum() == len(arrays["prompt"])
        more = store.create_table("more", again.schema, 200)
        more.import_from(arrays)
        assert more.to_arrow().read_all().equals(again.to_arrow().read_all())
        arrays["tokens:lengths"] = lengths + 1
        with pytest.raises(conduit.ExchangeError, match="elements"):
            more.import_from(arrays)


def test_offline_batches_have_rows_that_vary_in_length(tmp_path: Path) -> None:
    with fresh_store("64MiB") as store:
        table = store.create_table("t", SCHEMA, 200)
        rows = fill(table, 150)
        table.export(tmp_path / "x.parquet")
    seen = 0
    for batch in conduit.offline.open(tmp_path / "x.parquet", buffer="1MiB").loader(16):
        for i, x in enumerate(batch["x"].tolist()):
            row = rows[x]
            assert np.array_equal(batch["tokens"][i], row["tokens"])
            assert np.array_equal(batch["frames"][i], row["frames"])
            assert (batch["prompt"][i], batch["blob"][i]) == (row["prompt"], row["blob"])
            seen += 1
        assert batch["frames"].values.shape[1:] == (2, 3)
        assert {"tokens", "tokens.mask"} <= set(batch.torch(ragged="padded"))
    assert seen == 150


def objects(*rows: Any) -> Any:
    made = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        made[i] = row
    return made


def test_objects_text_and_lists_in_a_mapping() -> None:
    """Rows vary in length where an array says nothing else, also when they happen to be equally long."""
    with fresh_store() as store:
        given = {
            "equal": objects(*np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
            "listed": [np.arange(2), np.arange(3)],
            "text": np.array(["é", "bb"]),
            "words": objects("", "a\0"),
            "raw": objects(b"a\0", b""),
            "packed": Ragged(np.arange(3), [0, 1, 3]),
        }
        table = store.import_table("t", given)
        shapes = {column.name: (column.text or str(column.dtype), column.shape) for column in table.schema}
        assert shapes == {
            "equal": ("float32", (None, 3)), "listed": ("int64", (None,)), "text": ("string", (None,)),
            "words": ("string", (None,)), "raw": ("binary", (None,)), "packed": ("int64", (None,)),
        }  # fmt: skip
        batch = table.rows(keys_of(table))
        assert [list(batch[name]) for name in ("text", "words", "raw")] == [["é", "bb"], ["", "a\0"], [b"a\0", b""]]
        assert [row.tolist() for row in batch["listed"]] == [[0, 1], [0, 1, 2]]
        assert np.array_equal(batch["equal"][1], given["equal"][1])
        whole = Schema((Column("equal", "float32", (2, 3)),))  # told to be of one shape
        fixed = store.import_table("fixed", {"equal": given["equal"]}, schema=whole)
        assert np.array_equal(fixed.to_numpy()["equal"], np.stack(list(given["equal"])))


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        (np.array([b"a\0", b"b"]), DtypeMismatch, r"\|S2, .*padding. Give an object array of bytes"),
        (objects(1, 2), DtypeMismatch, r"objects \(int\): .*array.astype"),
        (objects("a", b"a"), DtypeMismatch, r"objects \(bytes, str\)"),
        (objects({}, {}), DtypeMismatch, r"objects \(dict\)"),
        (objects("a", None), DtypeMismatch, "null"),
        (objects(np.zeros(2), np.zeros((2, 2))), ShapeMismatch, "row 1"),
        (np.zeros((2, 2), object), ShapeMismatch, "one value a row"),
    ],
)
def test_objects_that_are_no_rows(values: Any, error: type[Exception], says: str) -> None:
    with fresh_store() as store, pytest.raises(error, match=says):
        store.import_table("t", {"x": values})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([b"a\0", b"b"]), "padding"),
        (np.array(["a", "b"]), "holds text. Load it"),
        (objects(np.zeros(2)), "holds Python objects, which are not unpickled"),
    ],
)
def test_members_that_are_no_numbers(tmp_path: Path, values: Any, says: str) -> None:
    np.savez(tmp_path / "x.npz", x=values)
    with fresh_store() as store, pytest.raises(DtypeMismatch, match=rf"column 'x' of .*x\.npz.*{says}"):
        store.import_table("t", tmp_path / "x.npz")


def test_shapes_that_pandas_loses() -> None:
    pandas = pytest.importorskip("pandas")
    images = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    whole = Schema((Column("x", "float32", (2, 3)),))
    with fresh_store() as store:
        table = store.import_table("t", pandas.DataFrame({"x": [image.ravel() for image in images]}), schema=whole)
        assert np.array_equal(table.to_numpy()["x"], images)
        with pytest.raises(SchemaError, match=r"numpy.stack\(frame\['x'\].*pandas keeps no inner shapes"):
            store.import_table("u", pandas.DataFrame({"x": list(images)}))
