"""Columns and schemas: where they come from, what they refuse, and that they come back equal."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from conduit_store import (
    Column,
    DtypeMismatch,
    Schema,
    SchemaError,
    ShapeMismatch,
    UnknownColumn,
)

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *(
        "float16",
        "float32",
        "float64",
        "datetime64[ns]",
        "datetime64[s]",
        "timedelta64[us]",
        "timedelta64[ms]",
    ),
)


def column(name: str, dtype: Any, shape: tuple[int, ...] = ()) -> Column:
    return Column(name, np.dtype(dtype), shape)


EVERY = Schema(
    tuple(
        column(f"c{i}{'t' * bool(shape)}", d, shape) for i, d in enumerate(DTYPES) for shape in ((), (2, 3))
    )
)


def test_column_and_schema_bytes_and_names() -> None:
    schema = Schema((column("obs", "uint8", (84, 84, 4)), column("reward", "float32")))
    assert schema.names == ("obs", "reward")
    assert schema.column("obs").row_bytes == 28_224
    assert schema.row_bytes == 28_228
    assert [c.name for c in schema] == ["obs", "reward"]
    assert len(schema) == 2
    assert "obs" in schema
    assert "next_obs" not in schema


def test_unknown_column_names_the_closest() -> None:
    with pytest.raises(
        UnknownColumn, match=r"no column 'rewards'; the schema has obs, reward. Did you mean 'reward'"
    ):
        Schema((column("obs", "f4"), column("reward", "f4"))).column("rewards")


@pytest.mark.parametrize("name", ["", "-a", ".a", "/a", "a b", "é", "a\n", "a:b"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(SchemaError, match=r"is not allowed. Use letters"):
        column(name, "f4")


@pytest.mark.parametrize("name", ["a", "_a", "0", "obs/camera.left-1"])
def test_names_that_are_taken(name: str) -> None:
    assert column(name, "f4").name == name


def test_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(SchemaError, match="column name 3"):
        column(3, "f4")  # type: ignore[arg-type]


def test_duplicate_names_are_refused() -> None:
    with pytest.raises(SchemaError, match="'a' is given 2 times"):
        Schema((column("a", "f4"), column("b", "f4"), column("a", "i8")))


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(SchemaError, match="0 columns"):
        Schema(())


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">M8[ns]"])
def test_foreign_byte_order_is_refused_and_names_the_native_dtype(dtype: str) -> None:
    with pytest.raises(
        DtypeMismatch, match=f"byte order. Use '{np.dtype(dtype).newbyteorder('=').name}'".replace("[", r"\[")
    ):
        column("a", dtype)


@pytest.mark.parametrize("dtype", ["O", "U4", "S4", "V8", "f4,i4", "c8", "c16", "g"])
def test_dtypes_that_cannot_be_stored_are_refused(dtype: str) -> None:
    with pytest.raises(DtypeMismatch, match=r"'a': dtype .* cannot be stored; bool, integers and floats"):
        column("a", dtype)


@pytest.mark.parametrize("dtype", ["M8", "m8", "M8[D]", "M8[25s]", "M8[ps]"])
def test_time_units_that_are_refused(dtype: str) -> None:
    with pytest.raises(DtypeMismatch, match="has no unit of s, ms, us or ns"):
        column("a", dtype)


def test_what_is_no_dtype_is_refused() -> None:
    with pytest.raises(DtypeMismatch, match="'float31' is not a dtype"):
        Column("a", "float31", ())  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (-1,), (1.5,), ("x",), 3, None])
def test_shapes_that_are_refused(shape: Any) -> None:
    with pytest.raises(ShapeMismatch, match="is not a tuple of integers of at least 1"):
        column("a", "f4", shape)


def test_a_row_of_too_many_elements_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="2,147,483,648 elements, the limit is 2,147,483,647"):
        column("a", "u1", (2**16, 2**15))


def test_schemas_are_values() -> None:
    again = pickle.loads(pickle.dumps(EVERY))
    assert again == EVERY
    assert hash(again) == hash(EVERY)
    assert again.columns[0].dtype is np.dtype(
        np.bool_
    )  # the fast check of values.as_rows needs the very object
    assert Schema(tuple(reversed(EVERY.columns))) != EVERY


def test_json_round_trip_is_exact() -> None:
    assert Schema.from_json(EVERY.to_json()) == EVERY


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "[]",
            "3",
            "{}",
            '{"columns": []}',
            '{"columns": 3}',
            '{"columns": [3]}',
            '{"columns": [], "x": 1}',
        ),
        '{"columns": [{"name": "a", "dtype": "f4"}]}',
        '{"columns": [{"name": "a", "dtype": "f4", "shape": [], "unit": 1}]}',
        '{"columns": [{"name": "a", "dtype": "nope", "shape": []}]}',
        '{"columns": [{"name": "a", "dtype": "f4", "shape": [0]}]}',
    ],
)
def test_json_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(text)


def test_arrow_round_trip_is_exact() -> None:
    assert Schema.from_arrow(EVERY.to_arrow()) == EVERY


# ---------------------------------------------------------------- roles

STEP = (column("reward", "f4"), column("terminated", "?"), column("truncated", "?"))


def test_obs_columns_are_obs_and_what_is_below_it() -> None:
    names = ["obs", "obs/a", "obs2", "next_obs", "xobs/a"]
    assert [c.name for c in Schema(tuple(column(n, "f4") for n in names)).obs] == ["obs", "obs/a"]


@pytest.mark.parametrize(
    ("columns", "episodic"),
    [
        ((column("obs", "f4"), *STEP), True),
        ((column("obs/a", "f4"), *STEP), True),
        (STEP, False),
        ((column("obs", "f4"), *STEP[:2]), False),
        ((column("obs", "f4"), *STEP[1:]), False),
        ((column("obs", "f4"), *STEP, column("next_obs", "f4")), False),
        ((column("obs/a", "f4"), *STEP, column("next_obs/a", "f4")), False),
        ((column("obs", "f4"), *STEP[:2], column("truncated", "f4")), False),
        ((column("obs", "f4"), *STEP[:2], column("truncated", "?", (1,))), False),
    ],
)
def test_is_episodic(columns: tuple[Column, ...], episodic: bool) -> None:
    assert Schema(columns).is_episodic is episodic


# ---------------------------------------------------------------- flatten


def test_flatten_keeps_lists_and_order() -> None:
    assert Schema.flatten({"b": {"x": 1, "y": (2, {"z": 3})}, "a": [4]}) == {
        "b/x": 1,
        "b/y/0": 2,
        "b/y/1/z": 3,
        "a": [4],
    }


def test_flatten_refuses_two_values_of_one_name() -> None:
    with pytest.raises(SchemaError, match="'a/b' is given 2 times, once nested"):
        Schema.flatten({"a/b": 1, "a": {"b": 2}})


def test_flatten_refuses_keys_that_are_no_strings() -> None:
    with pytest.raises(SchemaError, match="name 1 is a int"):
        Schema.flatten({"a": {1: 2}})


def test_import_is_light() -> None:
    code = (
        "import sys, conduit_store; "
        "print([m for m in ('pyarrow', 'gymnasium', 'torch', 'conduit_store._native') if m in sys.modules])"
    )
    path = [p for p in sys.path if p]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
