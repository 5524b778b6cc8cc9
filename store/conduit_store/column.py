"""One column of a schema: its name, dtype and shape, checked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import DtypeMismatch, SchemaError, ShapeMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["VALID", "Column", "shown"]

VALID = ":valid"  # ends the names of validity columns, and no others'

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_./-]*({VALID})?")
_TIME_UNITS = ("s", "ms", "us", "ns")
_TEXTS = ("string", "binary")
_CATEGORY = "category"
_MAX_VALUES, _VALUE_BYTES = 1024, 64  # of a column of categories, unless told
_MOST_VALUES = 1 << 20
# Arrow counts the elements of one fixed-shape tensor with 32 signed bits.
_MAX_ELEMENTS = 2**31 - 1
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `name`, native-endian `dtype`, and the `shape` of one row's value (() for a number).

    The first dimension, and no other, may be None: rows then vary in length. `mean_length` is what a table is planned
    for: the elements along that dimension that its rows have in the mean (bytes, of text). The dtypes "string" (str,
    kept as UTF-8) and "binary" (bytes) are of that kind too; their `dtype` is uint8, and `text` says which it is.

    `mutable`: one number a row, which may be rewritten after it was appended, see `Table.update`.
    `nullable`: a row may have no value, given as None, as a masked row or as an Arrow null. A schema adds a bool column
    to each such one, `validity`, named "goal:valid", False where "goal" is null; the value itself is zeros there (empty
    where rows vary in length).

    The dtype "category" is for few distinct strings (names of environments, tasks, policies): rows hold int32 numbers,
    and the strings lie once in the store, numbered in the order in which they are first appended, for every process
    alike. `dtype` is int32. `max_values` and `max_bytes`: room for so many, 1,024 and 64 bytes for each unless told.
    `values`: those that it begins with, so with the numbers 0, 1, ...

    `places`: of columns of batches alone. Where a window has several rows that vary in length, so many of them, each of
    its own length, are one row of the batch.

    Example:
        >>> Column("tokens", "int32", (None,), mean_length=512)
        >>> Column("frames", "uint8", (None, 84, 84, 3), mean_length=16)
        >>> Column("prompt", "string", mean_length=200)
        >>> Column("advantage", "float32", mutable=True)
        >>> Column("goal", "float32", (3,), nullable=True)
        >>> Column("env_id", "category", max_values=64)

    Raises:
        SchemaError: the name is not allowed, or `mean_length` is not a number above 0 of rows that vary in length, or
            `mutable` or `nullable` is no bool, or `mutable` of a column that is not one number a row, or `values` that
            are not distinct str, or more than `max_values` or `max_bytes`, or these of another dtype than "category",
            or `places` that are no whole number above 0 of rows that vary in length.
        DtypeMismatch: the dtype is not a fixed-width number, bool, datetime64 or timedelta64 of s, ms, us or
            ns, "string" or "binary".
        ShapeMismatch: a dimension is not a positive integer, or a row (where rows vary in length: an element) has
            more than 2**31 - 1 elements.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Any, ...] = ()
    mean_length: float | None = field(default=None, compare=False, kw_only=True)
    mutable: bool = field(default=False, kw_only=True)
    nullable: bool = field(default=False, kw_only=True)
    max_values: int | None = field(default=None, kw_only=True)
    max_bytes: int | None = field(default=None, compare=False, kw_only=True)
    values: tuple[str, ...] = field(default=(), compare=False, kw_only=True)
    text: str | None = field(default=None, kw_only=True)  # given by the dtype; here for `dataclasses.replace`
    places: int | None = field(default=None, kw_only=True)  # in batches of windows of several rows that vary in length

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            dtype: npt.DTypeLike,
            shape: Sequence[Any] = (),
            *,
            mean_length: float | None = None,
            mutable: bool = False,
            nullable: bool = False,
            max_values: int | None = None,
            max_bytes: int | None = None,
            values: Sequence[str] = (),
            text: str | None = None,
            places: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise SchemaError(
                f"column name {self.name!r} is not allowed. Use letters, digits and _ . / -, and begin with "
                "a letter, a digit or _"
            )
        put = object.__setattr__
        given: object = self.dtype
        if isinstance(given, str) and given in _TEXTS:
            if not isinstance(self.shape, list | tuple) or tuple(self.shape) not in ((), (None,)):
                raise ShapeMismatch(f"column {self.name!r}: one row of {given!r} is one value. Leave the shape out")
            put(self, "text", given)
            put(self, "shape", (None,))
            given = np.uint8
        elif self.text is not None and (self.text not in _TEXTS or given != np.uint8 or tuple(self.shape) != (None,)):
            raise DtypeMismatch(f"column {self.name!r}: text={self.text!r} goes with its dtype: give that, 'string'")
        if isinstance(given, str) and given == _CATEGORY:
            put(self, "max_values", _MAX_VALUES if self.max_values is None else self.max_values)
            given = np.int32
        put(self, "dtype", np.dtype(str(_checked_dtype(self.name, given))))
        put(self, "shape", _checked_shape(self.name, self.shape))
        put(self, "mean_length", _checked_length(self.name, self.mean_length, self.ragged))
        if self.places is not None and not (self.ragged and type(self.places) is int and self.places > 0):
            raise SchemaError(
                f"column {self.name!r}: places is {self.places!r}, of shape {self.shape}. Leave it out: windows of "
                "several rows give it to columns of their batches"
            )
        if self.max_values is not None or self.max_bytes is not None or not _empty(self.values):
            _check_categories(self)
        if not isinstance(self.mutable, bool) or (self.mutable and self.shape != ()):
            raise SchemaError(
                f"column {self.name!r}: mutable is {self.mutable!r}, of shape {self.shape}. Give True or False; only "
                "one number a row, of shape (), can be rewritten"
            )
        if not isinstance(self.nullable, bool) or (
            self.name.endswith(VALID) and (self.nullable or self.dtype != np.bool_)
        ):
            raise SchemaError(
                f"column {self.name!r}: nullable is {self.nullable!r}, dtype {self.dtype}. Give True or False; a "
                f"column whose name ends in {VALID!r} says which rows of another are null: it is bool, and not "
                "nullable itself"
            )

    def __reduce__(self) -> tuple[Any, tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
        # By dtype name: an unpickled dtype object is equal to NumPy's own but not the same, and `is` is the
        # fast check.
        return _column, (self.name, self.dtype_name, self.shape, self.options)

    @property
    def options(self) -> dict[str, Any]:
        """What a column is made with beside name, dtype and shape, as far as it is not as usual."""
        given = {name: getattr(self, name) for name in ("mean_length", "max_values", "max_bytes", "places")}
        made = {name: value for name, value in given.items() if value is not None}
        made |= {name: True for name in ("mutable", "nullable") if getattr(self, name)}
        return made | ({"values": list(self.values)} if self.values else {})

    @property
    def categorical(self) -> bool:
        """Whether rows hold the numbers of few distinct strings."""
        return self.max_values is not None

    @property
    def ragged(self) -> bool:
        """Whether rows vary in length."""
        return bool(self.shape) and self.shape[0] is None

    @property
    def validity(self) -> Column:
        """Of a nullable column: the one that says of each row whether it has a value. Rewritten where its column is."""
        return Column(self.name + VALID, np.dtype(np.bool_), mutable=self.mutable)

    @property
    def values_name(self) -> str | None:
        """Of a validity column: the name of the column it belongs to; else None."""
        return self.name.removesuffix(VALID) if self.name.endswith(VALID) else None

    @property
    def dtype_name(self) -> str:
        """The dtype as it is given: "string" and "binary" of text, "category" of categories."""
        return self.text or (_CATEGORY if self.categorical else str(self.dtype))

    @property
    def elements(self) -> Column:
        """Where rows vary in length: the column of their elements, as rows."""
        return _elements(self)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's value; where rows vary in length, of the offset that each has, or each of its places."""
        return _OFFSET_BYTES * (self.places or 1) if self.ragged else self.dtype.itemsize * math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Where rows vary in length, bytes of one element; else 0."""
        return self.dtype.itemsize * math.prod(self.shape[1:]) if self.ragged else 0

    @property
    def mean_bytes(self) -> float:
        """Where rows vary in length, bytes of a row's elements in the mean, as planned (0 if nobody said); else 0."""
        return self.element_bytes * (self.mean_length or 0.0) * (self.places or 1)


def _column(name: str, dtype: Any, shape: tuple[Any, ...], options: dict[str, Any]) -> Column:
    return Column(name, dtype, shape if dtype not in _TEXTS else (), **options)


@lru_cache(maxsize=1024)
def _elements(column: Column) -> Column:
    return Column(column.name, column.dtype, column.shape[1:])


def shown(value: object, limit: int = 60) -> str:
    """Return `value` as text for a message, cut off after `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _checked_dtype(name: str, dtype: object) -> np.dtype[Any]:
    try:
        if dtype is None:  # NumPy reads it as float64
            raise TypeError("none is given")
        checked: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError) as error:  # NumPy parses text
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


def _empty(values: object) -> bool:
    return isinstance(values, list | tuple) and len(values) == 0


def _check_categories(column: Column) -> None:
    put = object.__setattr__
    most, size, values = column.max_values, column.max_bytes, column.values
    if most is None or column.dtype != np.int32:
        raise SchemaError(f"column {column.name!r}: max_values, max_bytes and values go with the dtype 'category'")
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MOST_VALUES:
        raise SchemaError(
            f"column {column.name!r}: max_values is {most!r}. Give a whole number from 1 to {_MOST_VALUES:,}"
        )
    size = most * _VALUE_BYTES if size is None else size
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MAX_ELEMENTS:
        raise SchemaError(
            f"column {column.name!r}: max_bytes is {size!r}. Give a whole number from 1 to {_MAX_ELEMENTS:,}"
        )
    try:
        known = () if isinstance(values, str) else tuple(values)
        taken = sum(len(value.encode()) for value in known)
    except (TypeError, AttributeError, UnicodeEncodeError):
        known, taken = (), size + 1
    if len(set(known)) != len(known) or len(known) > most or taken > size or (isinstance(values, str) and values):
        raise SchemaError(
            f"column {column.name!r}: values are {shown(values)}. Give distinct str, {most:,} at most, of {size:,} "
            "bytes at most"
        )
    put(column, "max_bytes", size)
    put(column, "values", known)


def _checked_length(name: str, length: Any, ragged: bool) -> float | None:
    if length is None:
        return None
    try:
        number = math.nan if isinstance(length, str | bytes) else float(length)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not ragged or not 0.0 < number <= _MAX_ELEMENTS:
        raise SchemaError(
            f"column {name!r}: mean_length is {length!r}. Give a number above 0, of a column whose rows vary in length "
            "(shape (None, ...))"
        )
    return number


def _checked_shape(name: str, shape: Any) -> tuple[Any, ...]:
    try:
        if not isinstance(shape, list | tuple):
            raise TypeError("a mapping or bytes have no order of dimensions, and a number is none")
        given: tuple[Any, ...] = tuple(shape)
        varies = given[:1] == (None,)
        given = given[1:] if varies else given
        checked = tuple(int(size) for size in given)
    except (TypeError, ValueError, OverflowError):
        given, checked, varies = (None,), (), False
    if checked != given or any(size < 1 for size in checked):
        raise ShapeMismatch(
            f"column {name!r}: shape {shown(shape)} is not a tuple of integers of at least 1. Use () for one "
            "number a row, None as the first dimension where rows vary in length, and leave out columns without "
            "elements"
        )
    if math.prod(checked) > _MAX_ELEMENTS:
        raise ShapeMismatch(
            f"column {name!r}: shape {checked} has {math.prod(checked):,} elements, the limit is "
            f"{_MAX_ELEMENTS:,} a row. Split it into several columns"
        )
    return (None, *checked) if varies else checked
