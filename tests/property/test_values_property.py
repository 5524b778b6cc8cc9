"""Any dtype, byte order and strides into any column, against a plain model of what is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from conduit_store import Column, DtypeMismatch, ValueOutOfRange, as_row, as_rows

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "M8[ns]", "M8[s]", "m8[us]")
dtypes = st.sampled_from(DTYPES)


@st.composite
def strided(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Return an array of at least one axis: either byte order, any axis order, steps, reversals, broadcasts,
    offsets.
    """
    dtype = np.dtype(draw(dtypes))
    dtype = dtype.newbyteorder("<") if draw(st.booleans()) else dtype.newbyteorder(">")
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
    array: npt.NDArray[Any] = draw(arrays.arrays(dtype, shape))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = draw(st.lists(st.sampled_from([1, 2, -1, -2]), min_size=array.ndim, max_size=array.ndim))
    array = array[tuple(slice(None, None, step) for step in steps)]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    if draw(st.booleans()):  # unaligned
        raw = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
        array = raw.view(dtype).reshape(array.shape) if array.size else array
    return array


def exact(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Say whether the extremes of `source`, and the integers where precision ends, survive a trip through
    `target`.
    """
    if source.kind in "Mm" or target.kind in "Mm":
        return source.newbyteorder("=") == target
    if target.kind == "b" and source.kind != "b":
        return False
    if source.kind == "b":
        return True
    if source.kind == "f":
        return target.kind == "f" and target.itemsize >= source.itemsize
    low, high = int(np.iinfo(source).min), int(np.iinfo(source).max)
    if target.kind == "f":
        precise: bool = max(high, -low - 1) <= 2 ** (int(np.finfo(target).nmant) + 1)
        return precise
    return int(np.iinfo(target).min) <= low and high <= int(np.iinfo(target).max)


@given(strided(), dtypes)
def test_arrays_convert_exactly_or_are_refused(value: npt.NDArray[Any], name: str) -> None:
    column = Column("x", np.dtype(name), value.shape[1:] if all(value.shape[1:]) else (1,))
    if not exact(value.dtype, column.dtype):
        with pytest.raises(DtypeMismatch):
            as_rows(column, value)
        return
    rows = as_rows(column, value, len(value))
    assert rows.dtype == column.dtype
    assert rows.dtype.isnative
    assert rows.flags.c_contiguous
    assert rows.flags.aligned
    assert rows.shape == value.shape
    np.testing.assert_array_equal(rows.astype(value.dtype), value)
    if value.dtype == column.dtype and len(value):
        assert rows.tobytes() == value.tobytes()
        assert as_row(column, value[0]).tobytes() == value[0].tobytes()


integers = st.integers(-(2**70), 2**70)


@given(st.one_of(integers, st.lists(integers, min_size=1, max_size=5)), dtypes)
def test_python_ints_fit_by_value_or_are_refused(value: int | list[int], name: str) -> None:
    dtype = np.dtype(name)
    column = Column("x", dtype)
    values = value if isinstance(value, list) else [value]

    def convert() -> list[Any]:
        return (
            as_rows(column, value, len(values)).tolist() if isinstance(value, list) else [as_row(column, value).item()]
        )

    if dtype.kind not in "iuf":
        with pytest.raises(DtypeMismatch):
            convert()
    elif dtype.kind == "f":
        with np.errstate(over="ignore"):
            expected = np.array(values, np.float64).astype(dtype)
        if np.isinf(expected).any():
            with pytest.raises(ValueOutOfRange):
                convert()
        else:
            assert convert() == expected.tolist()
    elif all(np.iinfo(dtype).min <= number <= np.iinfo(dtype).max for number in values):
        assert convert() == values
    else:
        with pytest.raises(ValueOutOfRange):
            convert()


@given(st.lists(st.floats(), min_size=1, max_size=5), dtypes)
def test_python_floats_round_but_stay_finite(values: list[float], name: str) -> None:
    dtype = np.dtype(name)
    column = Column("x", dtype)
    if dtype.kind != "f":
        with pytest.raises(DtypeMismatch):
            as_rows(column, values)
        return
    with np.errstate(over="ignore"):
        expected = np.array(values).astype(dtype)
    if (np.isinf(expected) & np.isfinite(values)).any():
        with pytest.raises(ValueOutOfRange):
            as_rows(column, values)
        return
    rows = as_rows(column, values, len(values))
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal([as_row(column, value) for value in values], expected)
