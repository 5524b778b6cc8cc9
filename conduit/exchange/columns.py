"""Columns of the exported form as rows that a table takes, and back: nulls apart, categories as their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conduit.exchange.frame import arrow_array, as_stored
from conduit_store.arrays import Array
from conduit_store.arrow import arrow_type, with_nulls
from conduit_store.errors import DtypeMismatch, ExchangeError
from conduit_store.nulls import Convert, scattered
from conduit_store.ragged import Ragged
from conduit_store.ragged_values import as_ragged
from conduit_store.scalars import null_error
from conduit_store.schema import Column, Schema
from conduit_store.values import as_rows

__all__ = [
    "arrow_columns", "arrow_rows", "blank", "columns_of", "indexable", "nullable_rows_of", "numbers_of", "packed",
    "rows_of",
]  # fmt: skip


def rows_of(column: Column, data: pa.Array | pa.ChunkedArray, n: int | None = None) -> Any:
    """Return Arrow values without nulls as rows of `column`, as `extend` takes them.

    Raises:
        DtypeMismatch, ShapeMismatch, ValueOutOfRange: see `as_stored`, `as_rows` and `as_ragged`.
    """
    if column.categorical:
        return as_rows(column, numbers_of(column, data), n)
    return as_ragged(column, data, n) if column.ragged else as_rows(column, as_stored(column, data), n)


def numbers_of(column: Column, data: pa.Array | pa.ChunkedArray) -> Array:
    """Return the numbers of strings, by the values of a column of categories.

    Raises:
        DtypeMismatch: a null, or no strings. ExchangeError: a string that is none of its values.
    """
    if not (pa.types.is_dictionary(data.type) or pa.types.is_string(data.type) or pa.types.is_large_string(data.type)):
        raise DtypeMismatch(f"column {column.name!r} holds categories, which are strings, got {data.type}")
    if data.null_count:
        raise null_error(column.name, int(data.is_null().to_numpy(zero_copy_only=False).argmax()))
    strings = data.cast(pa.string())
    known = pc.SetLookupOptions(value_set=pa.array(column.values, pa.string()))
    numbers = pc.call_function("index_in", [strings], known)
    if numbers.null_count:
        row = int(numbers.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ExchangeError(
            f"column {column.name!r}: row {row} is {strings[row].as_py()!r}, none of the {len(column.values)} "
            "categories that its metadata names. Write the file again"
        )
    found: Array = numbers.to_numpy(zero_copy_only=False).astype(np.int32)
    return found


def nullable_rows_of(
    column: Column, data: pa.ChunkedArray, told: pa.ChunkedArray | None, convert: Convert | None = None
) -> tuple[Any, Array]:
    """Return Arrow values as rows of a nullable column, and bool (n,) of which are not null.

    `told`: a column that says so, as formats have that know no nulls. `convert`: instead of `rows_of`.
    """
    valid: Array = data.is_valid().to_numpy(zero_copy_only=False)
    if told is not None:
        valid = valid & rows_of(column.validity, told)
    return scattered(column, data, valid, convert or rows_of), valid


def columns_of(schema: Schema, table: pa.Table) -> dict[str, Any]:
    """Return the columns of a schema, validity columns too, from Arrow data."""
    found: dict[str, Any] = {}
    for column in schema.valued:
        data = table.column(column.name)
        if not column.nullable:
            found[column.name] = rows_of(column, data)
            continue
        told = column.validity.name
        found[column.name], found[told] = nullable_rows_of(
            column, data, table.column(told) if told in table.column_names else None
        )
    return found


def indexable(column: Column, rows: Any) -> Array:
    """Return rows as one array (n, ...). Where they vary in length as an array of arrays, each in memory of its own: so
    they outlive what they were read from, and are chosen and joined as others are."""
    if not column.ragged:
        return np.asarray(rows)
    made = np.empty(len(rows), object)
    for i, row in enumerate(rows.pieces() if isinstance(rows, Ragged) else rows):
        made[i] = np.frombuffer(row, np.uint8).copy() if isinstance(row, bytes) else np.array(row)
    return made


def blank(column: Column, n: int) -> Array:
    """Return `n` rows of zeros, or of no elements, `indexable`."""
    if column.ragged:
        return indexable(column, [np.zeros((0, *column.shape[1:]), column.dtype)] * n)
    return np.zeros((n, *column.shape), column.dtype)


def packed(column: Column, rows: Array | list[Array]) -> Ragged:
    """Return rows that vary in length as Ragged, from an array of arrays as `indexable` makes them, or a list."""
    kind = np.int64 if column.dtype.kind in "mM" else column.dtype  # as integers, in which they were taken apart
    values = np.concatenate([np.zeros((0, *column.shape[1:]), kind), *rows])
    return Ragged(values.view(column.dtype), np.cumsum([0, *map(len, rows)]), text=column.text)


def arrow_columns(schema: Schema, arrays: Mapping[str, Array]) -> dict[str, pa.Array]:
    """The way back of `columns_of`, of rows that are `indexable`."""
    return {
        column.name: arrow_rows(
            column, arrays[column.name], ~arrays[column.validity.name] if column.nullable else None
        )
        for column in schema.valued
    }


def arrow_rows(column: Column, rows: Array, nulls: Array | None = None) -> pa.Array:
    """Return `indexable` rows as an Arrow array of the exported type; null where `nulls`, bool (n,), says so.

    Raises:
        ArrowInvalid: text that is none. For use within `reading`.
    """
    if not column.ragged:
        return arrow_array(column, rows, nulls)
    given, kind = packed(column, rows), arrow_type(column, pa.bool_())
    if column.text is None:
        elements = arrow_array(column.elements, given.values)
        made = pa.LargeListArray.from_arrays(pa.array(given.offsets), elements, type=kind)
    else:
        buffers = [None, pa.py_buffer(given.offsets), pa.py_buffer(np.ascontiguousarray(given.values))]
        made = pa.Array.from_buffers(kind, len(rows), buffers)
        made.validate(full=True)
    return made if nulls is None else with_nulls(made, ~nulls)
