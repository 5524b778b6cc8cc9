"""One column of a schema: its name, dtype and shape, checked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DtypeMismatch, SchemaError, ShapeMismatch

__all__ = ["Column", "shown"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
_TIME_UNITS = ("s", "ms", "us", "ns")
# Arrow counts the elements of one fixed-shape tensor with 32 signed bits.
_MAX_ELEMENTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `name`, native-endian `dtype`, and the `shape` of one row's value (() for a number).

    Raises:
        SchemaError: the name is not allowed.
        DtypeMismatch: the dtype is not a fixed-width number, bool, datetime64 or timedelta64 of s, ms, us or
            ns.
        ShapeMismatch: a dimension is not a positive integer, or a row has more than 2**31 - 1 elements.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise SchemaError(
                f"column name {self.name!r} is not allowed. Use letters, digits and _ . / -, and begin with "
                "a letter, a digit or _"
            )
        object.__setattr__(self, "dtype", np.dtype(str(_checked_dtype(self.name, self.dtype))))
        object.__setattr__(self, "shape", _checked_shape(self.name, self.shape))

    def __reduce__(self) -> tuple[type[Column], tuple[str, str, tuple[int, ...]]]:
        # By dtype name: an unpickled dtype object is equal to NumPy's own but not the same, and `is` is the
        # fast check.
        return Column, (self.name, str(self.dtype), self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's value."""
        return self.dtype.itemsize * math.prod(self.shape)


def shown(value: object, limit: int = 60) -> str:
    """Return `value` as text for a message, cut off after `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _checked_dtype(name: str, dtype: object) -> np.dtype[Any]:
    try:
        checked: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise DtypeMismatch(
            f"column {name!r}: {shown(dtype)} is not a dtype. Give a NumPy dtype such as 'float32'"
        ) from error
    if not checked.isnative:
        raise DtypeMismatch(
            f"column {name!r}: dtype {checked.str!r} is not in this machine's byte order. Use "
            f"{checked.newbyteorder('=').name!r}; values of either order can be stored in it"
        )
    if checked.kind in "Mm":
        if (np.datetime_data(checked)[0] in _TIME_UNITS) and np.datetime_data(checked)[1] == 1:
            return checked
        raise DtypeMismatch(
            f"column {name!r}: dtype {str(checked)!r} has no unit of s, ms, us or ns. Use '{checked.name[:-3]}[ns]'"
        )
    if checked.kind in "biu" or (checked.kind == "f" and checked.itemsize <= 8):
        return checked
    raise DtypeMismatch(
        f"column {name!r}: dtype {str(checked)!r} cannot be stored; bool, integers and floats of up to 64 "
        "bits, datetime64 and timedelta64 can. Split or encode the value into such columns"
    )


def _checked_shape(name: str, shape: Any) -> tuple[int, ...]:
    try:
        given = tuple(shape)
        checked = tuple(int(size) for size in given)
    except (TypeError, ValueError):
        given, checked = (None,), ()
    if checked != given or any(size < 1 for size in checked):
        raise ShapeMismatch(
            f"column {name!r}: shape {shown(shape)} is not a tuple of integers of at least 1. Use () for one "
            "number a row, and leave out columns without elements"
        )
    if math.prod(checked) > _MAX_ELEMENTS:
        raise ShapeMismatch(
            f"column {name!r}: shape {checked} has {math.prod(checked):,} elements, the limit is "
            f"{_MAX_ELEMENTS:,} a row. Split it into several columns"
        )
    return checked
