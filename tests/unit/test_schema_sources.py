"""Where a schema can come from: gymnasium spaces, an example row, Arrow types; and what each refuses."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

from conduit_store import (
    Column,
    DtypeMismatch,
    MissingExtra,
    Schema,
    SchemaError,
    ShapeMismatch,
    ValueOutOfRange,
)


def make(name: str, dtype: Any, shape: tuple[int, ...] = ()) -> Column:
    return Column(name, np.dtype(dtype), shape)


# ---------------------------------------------------------------- gymnasium


def test_spaces_of_every_fixed_width() -> None:
    observation = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "arm": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.Box(-1, 1, (), np.float64)}))),
        }
    )
    action = spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.MultiBinary((2, 2)), spaces.Discrete(5)))
    schema = Schema.from_spaces(observation, action, reward_dtype="float64")
    assert {c.name: (str(c.dtype), c.shape) for c in schema} == {
        "obs/arm/0": ("int64", ()),
        "obs/arm/1/x": ("float64", ()),
        "obs/camera": ("uint8", (8, 8, 3)),
        "action/0": ("int64", (2,)),
        "action/1": ("int8", (2, 2)),
        "action/2": ("int64", ()),
        "reward": ("float64", ()),
        "terminated": ("bool", ()),
        "truncated": ("bool", ()),
    }
    assert schema.is_episodic


def test_plain_spaces_and_the_default_reward() -> None:
    schema = Schema.from_spaces(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    assert schema.names == ("obs", "action", "reward", "terminated", "truncated")
    assert [str(c.dtype) for c in schema] == ["float32", "int64", "float32", "bool", "bool"]


def test_samples_of_nested_spaces_flatten_to_the_columns() -> None:
    space = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,))))})
    schema = Schema.from_spaces(space, spaces.Discrete(2))
    assert tuple(Schema.flatten({"obs": space.sample()})) == tuple(c.name for c in schema.obs)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(2)),
        spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
    ],
)
def test_spaces_without_a_fixed_width_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(
        SchemaError, match=f"space 'obs/a' is a {type(space).__name__}, whose elements have no fixed"
    ):
        Schema.from_spaces(spaces.Dict({"a": space}), spaces.Discrete(2))


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(SchemaError, match="'obs' is an empty Dict"):
        Schema.from_spaces(spaces.Dict({}), spaces.Discrete(2))


def test_what_is_no_space_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"'action' is a builtins.int, not a gymnasium space"):
        Schema.from_spaces(spaces.Discrete(2), 4)


def test_missing_gymnasium_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match="pip install gymnasium"):
        Schema.from_spaces(None, None)


# ---------------------------------------------------------------- example


def test_example_keeps_dtypes_and_flattens() -> None:
    example = {
        "obs": {"camera": np.zeros((2, 2), np.uint8), "arm": (np.float16(1), 3)},
        "reward": 0.5,
        "action": [1, 2, 3],
        "terminated": False,
        "mixed": [1, 2.5],
    }
    assert {c.name: (str(c.dtype), c.shape) for c in Schema.from_example(example)} == {
        "obs/camera": ("uint8", (2, 2)),
        "obs/arm/0": ("float16", ()),
        "obs/arm/1": ("int64", ()),
        "reward": ("float64", ()),
        "action": ("int64", (3,)),
        "terminated": ("bool", ()),
        "mixed": ("float64", (2,)),
    }


def test_example_of_a_number_that_no_column_holds() -> None:
    with pytest.raises(ValueOutOfRange, match="'a' is int64"):
        Schema.from_example({"a": 2**63})


@pytest.mark.parametrize(
    "value", ["text", b"bytes", None, object(), [None], ["a"], [True, 2], np.zeros(2, ">f4")]
)
def test_examples_that_no_column_holds(value: object) -> None:
    with pytest.raises(DtypeMismatch, match="'a'"):
        Schema.from_example({"a": value})


@pytest.mark.parametrize("value", [[[1, 2], [3]], [np.zeros(2), np.zeros(3)], np.zeros((0, 2))])
def test_examples_of_no_shape(value: object) -> None:
    with pytest.raises(ShapeMismatch, match="'a'"):
        Schema.from_example({"a": value})


def test_example_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    schema = Schema.from_example({"a": torch.zeros(3, dtype=torch.float16), "b": torch.tensor(True)})
    assert [(str(c.dtype), c.shape) for c in schema] == [("float16", (3,)), ("bool", ())]


# ---------------------------------------------------------------- arrow


def test_arrow_types_of_every_fixed_width() -> None:
    fields = {
        "packed": pa.bool_(),
        "bool8": pa.bool8(),
        "list": pa.list_(pa.list_(pa.float32(), 3), 2),
        "tensor": pa.fixed_shape_tensor(pa.uint8(), [4, 5]),
        "permuted": pa.fixed_shape_tensor(pa.uint8(), [4, 5], permutation=[1, 0]),
        "list_of_tensors": pa.list_(pa.fixed_shape_tensor(pa.bool8(), [4, 5]), 2),
        "half": pa.float16(),
        "time": pa.timestamp("us"),
        "span": pa.duration("s"),
    }
    assert {c.name: (str(c.dtype), c.shape) for c in Schema.from_arrow(pa.schema(fields))} == {
        "packed": ("bool", ()),
        "bool8": ("bool", ()),
        "list": ("float32", (2, 3)),
        "tensor": ("uint8", (4, 5)),
        "permuted": ("uint8", (5, 4)),
        "list_of_tensors": ("bool", (2, 4, 5)),
        "half": ("float16", ()),
        "time": ("datetime64[us]", ()),
        "span": ("timedelta64[s]", ()),
    }


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.binary(4), pa.list_(pa.string()), pa.large_list(pa.list_(pa.int8())), pa.null()),
        *(
            pa.dictionary(pa.int8(), pa.date32()),
            pa.struct({"x": pa.int8()}),
            pa.decimal128(10, 2),
            pa.date32(),
        ),
        *(pa.time64("ns"), pa.timestamp("s", "UTC"), pa.list_(pa.string(), 2), pa.month_day_nano_interval()),
    ],
)
def test_arrow_types_that_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(DtypeMismatch, match=r"column 'a': .*(no fixed-width NumPy form. Cast it|time zone)"):
        Schema.from_arrow(pa.schema({"a": kind}))


def test_arrow_lists_of_no_elements_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="lists of 0 elements"):
        Schema.from_arrow(pa.schema({"a": pa.list_(pa.int8(), 0)}))


def test_to_arrow_types() -> None:
    schema = Schema((make("b", "?"), make("x", "f4", (3, 4)), make("flags", "?", (2,)), make("n", "u2")))
    arrow = schema.to_arrow()
    assert [str(field.type) for field in arrow] == [
        "extension<arrow.bool8>",
        "extension<arrow.fixed_shape_tensor[value_type=float, shape=[3,4]]>",
        "extension<arrow.fixed_shape_tensor[value_type=extension<arrow.bool8>, shape=[2]]>",
        "uint16",
    ]
    assert not any(field.nullable for field in arrow)
