"""Python numbers, which carry no dtype, on their way into a column: each is checked by its value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .arrays import Array
from .column import Column, shown
from .errors import DtypeMismatch, ShapeMismatch, ValueOutOfRange

__all__ = ["from_python", "leaf_kinds", "null_error", "null_row"]

_PYTHON_KINDS: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({int, float}),
}


def leaf_kinds(name: str, value: object) -> set[type]:
    """Return the types of all that `value`, a number or nested lists, holds.

    Subclasses of Python numbers (np.float64, IntEnum) count as those numbers.

    Raises:
        DtypeMismatch: there is a None; says in which row.
    """
    if not isinstance(value, list | tuple):
        return {_plain(type(value))}
    kinds = set(map(type, value))
    if type(None) in kinds:
        raise null_error(name, next(row for row, element in enumerate(value) if element is None))
    if nested := kinds & {list, tuple}:
        for row, element in enumerate(value):
            if type(element) in nested:
                kinds |= _kinds_of_row(name, row, element)
    return {_plain(kind) for kind in kinds - {list, tuple}}


def _kinds_of_row(name: str, row: int, element: object) -> set[type]:
    try:
        return leaf_kinds(name, element)
    except DtypeMismatch:
        raise null_error(name, row) from None


def _plain(kind: type) -> type:
    return next((number for number in (bool, int, float) if issubclass(kind, number)), kind)


def from_python(column: Column, value: object, kinds: set[type]) -> Array:
    """Return a Python number, or nested lists of them, with the column's dtype and whatever shape they have.

    `kinds` is what `leaf_kinds` says of the value, at most {bool, int, float}. Each number is checked.

    Raises:
        DtypeMismatch: a kind that the column does not take. ValueOutOfRange: a number that it cannot hold.
        ShapeMismatch: lists of unequal length.
    """
    target = column.dtype
    allowed = _PYTHON_KINDS.get(target.kind, frozenset())
    if not kinds <= allowed:
        wrong = " and ".join(sorted(kind.__name__ for kind in kinds - allowed))
        raise DtypeMismatch(
            f"column {column.name!r} is {target}; a Python {wrong} ({shown(value)}) does not go into it. "
            f"Write np.asarray(value).astype('{target}') if that is meant"
        )
    try:
        if target.kind != "f":
            return np.array(value, target)
        wide = np.array(value, np.float64)
    except OverflowError as error:
        raise _range_error(column, value) from error
    except ValueError as error:
        raise ShapeMismatch(f"column {column.name!r}: {shown(value)} is ragged. Give rows of equal length") from error
    with np.errstate(over="ignore", under="ignore"):
        narrow = wide.astype(target)
    if np.isinf(narrow).any() and not np.array_equal(np.isinf(narrow), np.isinf(wide)):
        raise _range_error(column, value)
    return narrow


def _range_error(column: Column, value: object) -> ValueOutOfRange:
    low, high = _limits(column.dtype)
    outside = [x for x in _numbers(value) if not low <= x <= high and abs(x) != math.inf]
    # A float just above the limit still rounds down to it: name the first that does not.
    first = next((x for x in outside if column.dtype.kind != "f" or _overflows(column.dtype, x)), outside[0])
    return ValueOutOfRange(
        f"column {column.name!r} is {column.dtype}, from {low} to {high}; {shown(first)} does not fit. Clip "
        "the value, or make the column wider"
    )


def _overflows(dtype: np.dtype[Any], number: Any) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isinf(np.float64(number).astype(dtype)))
    except OverflowError:
        return True  # an int beyond float64


def _limits(dtype: np.dtype[Any]) -> tuple[int, int] | tuple[float, float]:
    if dtype.kind == "f":
        info = np.finfo(dtype)
        return float(info.min), float(info.max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _numbers(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [number for element in value for number in _numbers(element)]
    return [value]


def null_error(name: str, row: int) -> DtypeMismatch:
    """Return the error for a null in row `row` of a value for column `name`."""
    error = DtypeMismatch(
        f"column {name!r}: row {row} is or holds a null. Fill or drop such rows first; whole rows may be null where "
        "the column is declared nullable=True"
    )
    error.row = row  # type: ignore[attr-defined]
    return error


def null_row(error: BaseException) -> int | None:
    """Return the row that `null_error` named; None of other errors."""
    return getattr(error, "row", None)
