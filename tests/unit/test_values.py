"""Values into columns: what converts without loss, what is refused, and what is not copied."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from conduit_store import Column, DtypeMismatch, SchemaError, ShapeMismatch, ValueOutOfRange, as_row, as_rows


def column(dtype: Any, shape: tuple[int, ...] = (), name: str = "x") -> Column:
    return Column(name, np.dtype(dtype), shape)


def check(array: npt.NDArray[Any], dtype: Any, values: Any) -> None:
    assert array.dtype == np.dtype(dtype)
    assert array.dtype.isnative
    assert array.flags.c_contiguous
    assert array.flags.aligned
    np.testing.assert_array_equal(array, np.asarray(values, dtype))


# ---------------------------------------------------------------- no copy


def test_a_fitting_array_is_returned_itself() -> None:
    rows = np.zeros((5, 3), np.float32)
    assert as_rows(column("f4", (3,)), rows, 5) is rows
    assert as_rows(column("f4", (3,)), rows) is rows
    assert as_row(column("f4", (3,)), rows[0]).base is rows


def test_read_only_arrays_are_not_copied() -> None:
    rows = np.zeros((5, 3), np.float32)
    rows.flags.writeable = False
    assert np.shares_memory(as_rows(column("f4", (3,)), rows, 5), rows)


# ---------------------------------------------------------------- strides and byte order (C65)


def test_transposed_broadcast_reversed_fortran_and_big_endian() -> None:
    matrix = np.arange(6).reshape(2, 3)
    check(as_rows(column("i8", (2,)), matrix.T), "i8", [[0, 3], [1, 4], [2, 5]])
    five = as_rows(column("i8", (3,)), np.broadcast_to(np.arange(3), (5, 3)), 5)
    check(five, "i8", [[0, 1, 2]] * 5)
    assert five.sum() == 15
    check(as_rows(column("i8"), np.arange(5)[::-1]), "i8", [4, 3, 2, 1, 0])
    check(as_rows(column("i8", (3,)), np.asfortranarray(matrix)), "i8", matrix)
    check(as_rows(column("i4"), np.array([1, -2, 2**31 - 1], ">i4")), "i4", [1, -2, 2**31 - 1])
    check(as_rows(column("M8[ns]"), np.array([1, 2], ">M8[ns]")), "M8[ns]", [1, 2])


def test_unaligned_arrays_are_copied_to_alignment() -> None:
    raw = np.frombuffer(b"\0" + np.arange(4, dtype="f8").tobytes(), np.uint8)[1:].view("f8")
    assert not raw.flags.aligned
    check(as_rows(column("f8"), raw), "f8", [0, 1, 2, 3])
    check(as_row(column("f8", (4,)), raw), "f8", [0, 1, 2, 3])


# ---------------------------------------------------------------- dtypes (C59)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(
            ("u1", np.full((84, 84, 4), 200, np.uint8)),
            ("i8", np.int64(2**40 + 1)),
            ("f8", 0.1),
            ("f2", 65504.0),
        ),
        *(
            ("?", True),
            ("i1", -128),
            ("u8", 2**64 - 1),
            ("i8", 2**40 + 1),
            ("M8[ns]", np.datetime64(5, "ns")),
        ),
    ],
)
def test_extremes_stay_bit_equal(dtype: str, value: Any) -> None:
    row = as_row(column(dtype, np.shape(value)), value)
    check(row, dtype, value)
    assert row.tobytes() == np.asarray(value, dtype).tobytes()


LOSSLESS = {
    *(
        ("i1", "i2"),
        ("i1", "f2"),
        ("u1", "i2"),
        ("u1", "f2"),
        ("i2", "f4"),
        ("u2", "i4"),
        ("i4", "f8"),
        ("u4", "i8"),
    ),
    *(("u4", "f8"), ("f2", "f4"), ("f4", "f8"), ("?", "u1"), ("?", "f4"), ("i4", "i8"), ("u4", "u8")),
}
LOSSY = {
    *(
        ("i8", "f8"),
        ("u8", "f8"),
        ("i8", "f4"),
        ("i4", "f4"),
        ("u2", "f2"),
        ("f8", "f4"),
        ("f4", "f2"),
        ("f4", "i8"),
    ),
    *(
        ("i8", "i4"),
        ("u1", "i1"),
        ("i1", "u1"),
        ("u8", "i8"),
        ("i8", "u8"),
        ("u1", "?"),
        ("f4", "?"),
        ("i8", "m8[s]"),
    ),
    *(("M8[s]", "M8[ns]"), ("M8[ns]", "i8"), ("m8[s]", "M8[s]"), ("c8", "f4"), ("g", "f8"), ("i8", "M8[s]")),
}


@pytest.mark.parametrize(("source", "target"), sorted(LOSSLESS))
def test_lossless_conversions(source: str, target: str) -> None:
    check(as_rows(column(target), np.ones(3, source), 3), target, [1, 1, 1])


@pytest.mark.parametrize(("source", "target"), sorted(LOSSY))
def test_lossy_conversions_are_refused_and_name_the_cast(source: str, target: str) -> None:
    with pytest.raises(DtypeMismatch) as caught:
        as_rows(column(target, name="speed"), np.ones(3, "i8").astype(source), 3)
    if np.dtype(source).kind not in "c":
        assert f"column 'speed' is {np.dtype(target)}; not every {np.dtype(source)} value" in str(
            caught.value
        )
        assert f"value.astype('{np.dtype(target)}')" in str(caught.value)


# ---------------------------------------------------------------- Python numbers


@pytest.mark.parametrize(("dtype", "value"), [("u1", 255), ("i1", -128), ("i8", -(2**63)), ("u8", 2**64 - 1)])
def test_ints_up_to_the_edge(dtype: str, value: int) -> None:
    check(as_row(column(dtype), value), dtype, value)
    check(as_rows(column(dtype), [0, value], 2), dtype, [0, value])


@pytest.mark.parametrize(
    ("dtype", "value"), [("u1", 300), ("u1", -1), ("i1", 128), ("i8", 2**63), ("u8", 2**64)]
)
def test_ints_out_of_range_are_refused_not_wrapped(dtype: str, value: int) -> None:
    limits = np.iinfo(dtype)
    with pytest.raises(ValueOutOfRange, match=f"from {limits.min} to {limits.max}; {value} does not fit"):
        as_row(column(dtype), value)
    with pytest.raises(ValueOutOfRange, match=f"from {limits.min} to {limits.max}; {value} does not fit"):
        as_rows(column(dtype), [1, value, 2], 3)


def test_numbers_into_float_columns() -> None:
    check(as_row(column("f4"), 0.1), "f4", np.float32(0.1))
    check(as_row(column("f4"), 3), "f4", 3)
    check(as_row(column("f2"), 65519.0), "f2", 65504)  # rounds down to the largest
    check(as_rows(column("f4"), [1, 2.5], 2), "f4", [1, 2.5])
    for special in (math.inf, -math.inf, math.nan):
        check(as_row(column("f2"), special), "f2", special)
        check(as_rows(column("f4"), [special, 1.0]), "f4", [special, 1])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("f4", 1e39), ("f4", -1e39), ("f2", 65520.0), ("f2", 10**6), ("f4", 10**400), ("f8", 10**400)],
)
def test_finite_numbers_never_become_infinite(dtype: str, value: float) -> None:
    with pytest.raises(ValueOutOfRange, match=r"does not fit. Clip the value"):
        as_row(column(dtype), value)
    with pytest.raises(ValueOutOfRange, match=r"does not fit. Clip the value"):
        as_rows(column(dtype), [math.inf, math.nan, value], 3)


def test_the_number_named_is_the_one_that_does_not_fit() -> None:
    with pytest.raises(ValueOutOfRange, match=r"; 70000\.0 does not fit"):
        as_rows(column("f2"), [1.0, 65505.0, 70000.0])


@pytest.mark.parametrize(
    ("dtype", "value", "kind"),
    [
        *(
            ("i8", 1.0, "float"),
            ("f4", True, "bool"),
            ("i8", True, "bool"),
            ("?", 1, "int"),
            ("?", 0.0, "float"),
        ),
        *(
            ("M8[s]", 3, "int"),
            ("m8[s]", 3, "int"),
            ("i8", np.float64(1), "float"),
            ("f4", np.bool_(True), "bool"),
        ),
    ],
)
def test_python_kinds_that_are_refused(dtype: str, value: Any, kind: str) -> None:
    with pytest.raises(DtypeMismatch, match=f"a Python {kind} "):
        as_row(column(dtype), value)
    with pytest.raises(DtypeMismatch, match=f"a Python {kind} "):
        as_rows(column(dtype), [value], 1)


def test_a_list_that_mixes_bools_and_numbers_is_refused() -> None:
    with pytest.raises(DtypeMismatch, match="a Python bool"):
        as_rows(column("i8"), [1, True])


def test_float64_scalars_count_as_python_floats_and_other_scalars_keep_their_dtype() -> None:
    check(as_row(column("f4"), np.float64(0.1)), "f4", np.float32(0.1))
    check(as_row(column("f4"), np.array(0.1)), "f4", np.float32(0.1))
    check(as_rows(column("f4"), [np.float64(0.1), 1], 2), "f4", [0.1, 1])
    check(as_rows(column("i8"), [np.int32(3), 4], 2), "i8", [3, 4])
    with pytest.raises(DtypeMismatch, match="not every int64 value"):
        as_row(column("i4"), np.int64(3))
    with pytest.raises(DtypeMismatch, match="not every int64 value"):
        as_row(column("f4"), np.int64(3))


def test_int_enums_are_ints() -> None:
    move = enum.IntEnum("move", ["left", "right"])
    check(as_row(column("u1"), move.right), "u1", 2)
    check(as_rows(column("u1"), [move.left, move.right]), "u1", [1, 2])


# ---------------------------------------------------------------- lists


def test_nested_lists_and_lists_of_arrays() -> None:
    check(as_rows(column("i4", (2,)), [[1, 2], (3, 4)], 2), "i4", [[1, 2], [3, 4]])
    check(as_rows(column("f4", (2,)), [np.zeros(2, "f4"), np.ones(2, "f2")], 2), "f4", [[0, 0], [1, 1]])
    check(as_rows(column("f4", (2,)), [[np.float32(1), 2], [3, 4.5]], 2), "f4", [[1, 2], [3, 4.5]])
    with pytest.raises(DtypeMismatch, match="not every float64 value"):
        as_rows(column("f4", (2,)), [np.zeros(2, "f4"), np.zeros(2, "f8")])


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="is ragged"):
        as_rows(column("i4", (2,)), [[1, 2], [3]])
    with pytest.raises(ShapeMismatch, match=r"shapes \[\(2,\), \(3,\)\]"):
        as_rows(column("f8", (2,)), [np.zeros(2), np.zeros(3)])


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize("value", [[], (), np.zeros((0, 3), "f4"), pa.array([], pa.list_(pa.float32(), 3))])
def test_no_rows_keep_shape_and_dtype(value: Any) -> None:
    for n in (0, None):
        rows = as_rows(column("f4", (3,)), value, n)
        assert rows.shape == (0, 3)
        assert rows.dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "value", "n", "message"),
    [
        ((3,), np.zeros((4, 3), "f4"), 5, r"expects shape \(5, 3\), got \(4, 3\)"),
        ((3,), np.zeros((4, 2), "f4"), None, r"expects shape \(n, 3\), got \(4, 2\)"),
        ((3,), np.zeros(3, "f4"), None, r"expects shape \(n, 3\), got \(3,\). Add a leading axis"),
        ((), np.zeros((4, 1), "f4"), 4, r"expects shape \(4,\), got \(4, 1\)"),
        ((), np.float32(1), 1, r"expects shape \(1,\), got \(\). Add a leading axis"),
        ((), 1.0, None, r"expects shape \(n,\), got \(\)"),
        ((3,), [], 2, r"expects shape \(2, 3\), got \(0, 3\)"),
        ((3,), [[]], None, r"got \(1, 0\)"),
        ((3,), np.zeros((0,), "f4"), 0, r"expects shape \(0, 3\), got \(0,\)"),
    ],
)
def test_wrong_shapes_of_rows(shape: tuple[int, ...], value: Any, n: int | None, message: str) -> None:
    with pytest.raises(ShapeMismatch, match=message):
        as_rows(column("f4", shape), value, n)


@pytest.mark.parametrize(
    ("shape", "value", "message"),
    [
        ((3,), np.zeros(2, "f4"), r"expects shape \(3,\), got \(2,\)"),
        ((3,), 1.0, r"expects shape \(3,\), got \(\)"),
        ((), [1.0], r"expects shape \(\), got \(1,\)"),
        ((3,), np.zeros((1, 3), "f4"), r"got \(1, 3\)"),
    ],
)
def test_wrong_shapes_of_one_row(shape: tuple[int, ...], value: Any, message: str) -> None:
    with pytest.raises(ShapeMismatch, match=message):
        as_row(column("f4", shape), value)


# ---------------------------------------------------------------- nulls and things that are no numbers


@pytest.mark.parametrize(
    ("value", "row"),
    [
        ([1.0, None], 1),
        ([[1.0], [2.0], [None]], 2),
        ([[[1.0]], [[2.0], [None]]], 1),
        (None, 0),
        (np.ma.array([1.0, 2.0, 3.0], mask=[False, False, True]), 2),
        (np.ma.array(1.0, mask=True), 0),
        (pa.array([1.0, None]), 1),
        (pa.chunked_array([[1.0, 2.0], [3.0, None]]), 3),
    ],
)
def test_nulls_are_refused_with_their_row(value: Any, row: int) -> None:
    with pytest.raises(SchemaError, match=f"row {row} is (or holds a )?null"):
        as_rows(column("f8"), value)


def test_masked_arrays_without_masked_values_are_taken() -> None:
    check(as_rows(column("f8"), np.ma.array([1.0, 2.0], mask=[False, False])), "f8", [1, 2])


@pytest.mark.parametrize(
    "value",
    [
        *("text", b"bytes", object(), {"a": 1}, {1, 2}, ["a"], [object()], [{"a": 1}], iter([1.0]), 1j),
        *(np.array(["a"]), np.array([1.0, None]), np.array([1.0, 2.0], object), pa.array(["a"])),
    ],
)
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(DtypeMismatch, match="column 'x'"):
        as_rows(column("f8"), value)


class Unreadable:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")


def test_objects_that_refuse_to_be_arrays() -> None:
    with pytest.raises(DtypeMismatch, match=r"Unreadable cannot be read as an array .*Give a NumPy array"):
        as_rows(column("f8"), Unreadable())


class Frames:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(6, dtype=np.uint8).reshape(2, 3)


def test_objects_that_are_arrays_by_protocol() -> None:
    check(as_rows(column("u1", (3,)), Frames(), 2), "u1", [[0, 1, 2], [3, 4, 5]])


# ---------------------------------------------------------------- arrow and torch


def test_arrow_values() -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [3, 4])
    flat = pa.array(np.arange(1200, dtype="f4"))
    rows = pa.ExtensionArray.from_storage(tensor, pa.FixedSizeListArray.from_arrays(flat, 12))
    check(as_rows(column("f4", (3, 4)), rows[2:4], 2), "f4", np.arange(24, 48).reshape(2, 3, 4))
    check(
        as_rows(column("f8", (3, 4)), pa.chunked_array([rows[2:4][1:]])),
        "f8",
        [np.arange(36, 48).reshape(3, 4)],
    )
    with pytest.raises(DtypeMismatch, match="not every int64 value"):
        as_rows(column("f4"), pa.array([1, 2]))


def test_torch_values() -> None:
    torch = pytest.importorskip("torch")
    rows = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    check(as_rows(column("f4", (2,)), rows.T, 3), "f4", [[0, 3], [1, 4], [2, 5]])
    check(as_rows(column("f4", (3,)), rows.requires_grad_(), 2), "f4", [[0, 1, 2], [3, 4, 5]])
    check(as_row(column("f4"), torch.tensor(0.1, dtype=torch.float64)), "f4", np.float32(0.1))
    check(as_rows(column("f4"), [torch.tensor(1.0), torch.tensor(2.0)]), "f4", [1, 2])
    for bad in (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2).to_sparse()):
        with pytest.raises(DtypeMismatch, match="has no NumPy form"):
            as_rows(column("f4"), bad)
