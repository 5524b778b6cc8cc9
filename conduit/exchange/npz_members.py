"""Which arrays a column is in a .npz file, and back: one, or two where rows vary in length or are categories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from conduit.exchange.columns import packed
from conduit.exchange.frame import arrow_array
from conduit_store.arrays import Array
from conduit_store.arrow import arrow_type
from conduit_store.ragged import Ragged
from conduit_store.schema import Column

__all__ = [
    "LENGTHS", "VALUES", "Kinds", "Member", "base_of", "members_of", "names_of", "parts_of", "rows_of", "type_of",
    "whole_of",
]  # fmt: skip

VALUES = ":values"  # the strings of categories, by number
LENGTHS = {None: ":lengths", "string": ":characters", "binary": ":bytes"}  # of each row, by the column's `text`
_TEXT_OF = {suffix: text for text, suffix in LENGTHS.items()}

Kinds = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape of arrays by name


class Member(NamedTuple):
    """An array: its name, dtype, and the shape of one entry."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def members_of(name: str, column: Column) -> list[Member]:
    """Return the arrays that grow with a column's rows."""
    if not column.ragged:
        return [Member(name, column.dtype, column.shape)]
    lengths = Member(name + LENGTHS[column.text], np.dtype(np.int64), ())
    return [Member(name, column.dtype, column.shape[1:]), lengths]


def parts_of(name: str, column: Column, rows: Any) -> Iterator[tuple[str, Array]]:
    """Iterate over the arrays of rows, by their names."""
    if not column.ragged:
        yield name, rows
        return
    whole = packed(column, list(rows.pieces() if isinstance(rows, Ragged) else rows))
    yield name, whole.values
    yield name + LENGTHS[column.text], whole.lengths


def base_of(name: str, kinds: Kinds) -> str | None:
    """Return the column that an array belongs to as its second one; None of other arrays."""
    base, colon, kind = name.rpartition(":")
    return base if f"{colon}{kind}" in (*_TEXT_OF, VALUES) and base in kinds else None


def names_of(name: str, kinds: Kinds) -> list[str]:
    """Return the arrays of a column, its second one first."""
    return [*(name + suffix for suffix in (*_TEXT_OF, VALUES) if name + suffix in kinds), name]


def rows_of(name: str, kinds: Kinds) -> int:
    """Return how many rows a column has; -1: none, its array has no axis of rows."""
    second, *_ = names_of(name, kinds)
    _, shape = kinds[name if second.endswith(VALUES) else second]
    return shape[0] if shape else -1


def _column(name: str, kinds: Kinds) -> Column:
    dtype, shape = kinds[name]
    native = dtype.newbyteorder("=")
    second, *_ = names_of(name, kinds)
    if second.endswith(VALUES):
        return Column("x", "category", max_values=1 << 20)
    if second == name:
        return Column("x", native, shape[1:])
    text = _TEXT_OF[second.removeprefix(name)]
    return Column("x", text) if text is not None else Column("x", native, (None, *shape[1:]))


def type_of(name: str, kinds: Kinds) -> pa.DataType:
    """Return the Arrow type of a column.

    Raises:
        ConduitError: arrays that no column holds. For use within `reading`.
    """
    return arrow_type(_column(name, kinds), pa.bool_())


def whole_of(name: str, kinds: Kinds, part: Callable[[str, int], Array], n: int) -> pa.Array:
    """Return the next `n` rows of a column; `part` returns so many entries of one of its arrays.

    Raises:
        ValueError: lengths that cannot be. For use within `reading`.
    """
    column = _column(name, kinds)
    second, *_ = names_of(name, kinds)
    if second.endswith(VALUES):
        values = pa.array(part(second, 0).tolist(), pa.string())
        numbers = np.ascontiguousarray(part(name, n), np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(numbers), values)
    if second == name:
        array = part(name, n)
        return arrow_array(column, array.astype(array.dtype.newbyteorder("="), copy=False))
    lengths = part(second, n)
    if lengths.dtype.kind not in "iu" or lengths.ndim != 1 or (lengths < 0).any():
        raise ValueError(f"{second} are {lengths.dtype} {lengths.shape}: whole numbers, one a row, were due")
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    elements = part(name, int(offsets[-1]))
    if len(elements) != offsets[-1]:
        raise ValueError(f"{name} has {len(elements)} elements, its lengths are {offsets[-1]} together")
    kind = arrow_type(column, pa.bool_())
    if column.text is not None:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(elements, np.uint8))]
        made = pa.Array.from_buffers(kind, n, buffers)
        made.validate(full=True)  # that it is text
        return made
    native = elements.astype(elements.dtype.newbyteorder("="), copy=False)
    return pa.LargeListArray.from_arrays(pa.array(offsets), arrow_array(column.elements, native), type=kind)
