"""Nulls among the values that a caller gives: apart from the values, as one bool a row.

A row is null as a whole or not at all: None in a list or an object array, a row of a masked array of which every
element is masked, an Arrow null. NaN is a number like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import Array
from .column import Column
from .errors import ConduitError, ShapeMismatch
from .ragged import Ragged
from .ragged_values import as_ragged
from .scalars import null_error, null_row
from .values import as_rows

__all__ = ["Convert", "as_nullable", "is_null", "zero"]


Convert = Callable[[Column, Any, "int | None"], Any]


def as_nullable(
    column: Column, value: Any, n: int | None = None, valid: Any = None, convert: Convert | None = None
) -> tuple[Any, Array]:
    """Return `value` as `n` rows of a nullable column, zeros where null, and bool (n,) of which rows are not.

    `value`: what `as_rows` or `as_ragged` take, with nulls. `valid`: bool (n,), for values that cannot say it
    themselves; what lies where it is False is not kept. `convert`: what takes rows without nulls, `as_rows` or
    `as_ragged` if None.

    Raises:
        DtypeMismatch: a row that is null in part, with its number.
        ShapeMismatch, ValueOutOfRange, DtypeMismatch: as `as_rows` and `as_ragged`.
    """
    if hasattr(value, "null_count") and hasattr(value, "to_arrow"):  # Polars, whose NumPy form of a null is NaN
        value = value.to_arrow()
    convert = convert or _rows
    found = _valid(column, value)
    if valid is not None:
        told = as_rows(column.validity, valid, None if found is None else len(found))
        if len(value) != len(told):
            raise ShapeMismatch(
                f"column {column.name!r} has {len(value)} rows, its validity {len(told)}. Give as many of each"
            )
        found = told if found is None else found & told
    if found is None or found.all():
        rows = convert(column, value, n)
        return rows, np.ones(len(rows), np.bool_)
    if n is not None and len(found) != n:
        raise ShapeMismatch(f"column {column.name!r} has {len(found)} rows, others have {n}. Give as many of each")
    return scattered(column, value, found, convert), found


def _rows(column: Column, value: Any, n: int | None) -> Any:
    return as_ragged(column, value, n) if column.ragged else as_rows(column, value, n)


def scattered(column: Column, value: Any, valid: Array, convert: Convert) -> Any:
    """Convert the rows of `value` that are `valid`; return all rows, with zeros for the others.

    Raises:
        ConduitError: what `convert` raises; a null within a row by the row's number among all.
    """
    there = np.flatnonzero(valid)
    try:
        rows = convert(column, _chosen(value, valid, there), len(there))
    except ConduitError as error:
        if (row := null_row(error)) is None:
            raise
        raise null_error(column.name, int(there[row])) from error
    if isinstance(rows, Ragged):
        lengths = np.zeros(len(valid), np.int64)
        lengths[valid] = rows.lengths
        ends = np.concatenate([rows.offsets[:1], rows.offsets[0] + np.cumsum(lengths)])
        return Ragged(rows.values, ends, text=rows.text)
    if isinstance(rows, list):
        whole: list[Any] = [zero(column) if column.text is None else b""] * len(valid)
        for at, row in zip(there.tolist(), rows, strict=True):
            whole[at] = row
        return whole
    made = np.zeros((len(valid), *column.shape), column.dtype)
    made[valid] = rows
    return made


def zero(column: Column) -> Any:
    """Return the value of a row that is null."""
    if column.text is not None:
        return "" if column.text == "string" else b""
    if column.ragged:
        return np.zeros((0, *column.shape[1:]), np.int64 if column.dtype.kind in "mM" else column.dtype)
    return np.zeros(column.shape, column.dtype)


def is_null(value: object) -> bool:
    """Whether one row's value is null: None, pandas.NA, or a masked array all of whose elements are masked."""
    if isinstance(value, np.ma.MaskedArray):
        return value.size > 0 and bool(np.ma.getmaskarray(value).all())
    return value is None or type(value).__name__ == "NAType"


def _valid(column: Column, value: Any) -> Array | None:
    """Which rows are not null; None: the value's kind knows no nulls."""
    if isinstance(value, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(value)
        elements = tuple(range(1, masked.ndim))
        whole = np.asarray(masked.all(axis=elements))
        if value.ndim and (odd := np.flatnonzero(masked.any(axis=elements) & ~whole)).size:
            raise null_error(column.name, int(odd[0]))
        return np.logical_not(whole) if value.ndim else None
    if _is_arrow(value):
        known: Array = value.is_valid().to_numpy(zero_copy_only=False)
        return known
    if _is_pandas(value):
        if isinstance(value.dtype, np.dtype) and value.dtype.kind != "O":
            return None
        return np.logical_not(np.asarray(value.isna(), np.bool_))
    if not isinstance(value, list | tuple) and not (
        isinstance(value, np.ndarray) and value.dtype == object and value.ndim
    ):
        return None
    nulls: Array = np.fromiter(map(is_null, value), np.bool_, len(value))
    return ~nulls


def _is_arrow(value: Any) -> bool:
    pa = sys.modules.get("pyarrow")
    return pa is not None and isinstance(value, pa.Array | pa.ChunkedArray)


def _is_pandas(value: Any) -> bool:
    return hasattr(value, "isna") and hasattr(value, "dtype")  # a Series, or one of its own arrays


def _chosen(value: Any, valid: Array, there: Array) -> Any:
    if _is_arrow(value):
        return value.filter(sys.modules["pyarrow"].array(valid))
    if isinstance(value, list | tuple):
        return [value[at] for at in there.tolist()]
    if isinstance(value, np.ma.MaskedArray):
        return np.asarray(value)[there]
    if _is_pandas(value):
        return list(value[valid])
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [value[at] for at in there.tolist()]
    return value[there]
