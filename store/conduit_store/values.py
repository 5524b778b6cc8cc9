"""Values a caller gives -> arrays that can be copied into a column byte by byte. Lossless, or refused.

A value that carries a dtype (array, tensor, Arrow array) converts only if every value of that dtype exists in
the column's dtype. Python numbers carry none, nor do lists of them, and float64 and bool scalars count as
such: they are checked by value (`scalars`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .arrays import Array
from .column import Column
from .errors import DtypeMismatch, ShapeMismatch
from .scalars import from_python, leaf_kinds, null_error

__all__ = ["as_row", "as_rows", "example_array"]

# Floats of at most this size need no overflow check on their way into float32 and float64 columns.
_SMALL_FLOAT = 1e38


def as_rows(column: Column, value: object, n: int | None = None) -> Array:
    """Return `value` as rows of `column`: its dtype, shape (n, *column.shape), C-contiguous and aligned.

    `value`: an array of any strides and byte order, nested lists, a torch tensor, or an Arrow array, with `n`
    rows (any number if None). The result is the value itself where it fits already, so it may share the
    caller's memory.

    An array converts only without loss for any value of its dtype. Python ints go into integer columns that
    can hold them and into float columns; Python floats into float columns, rounded as always but never to
    infinity; bools into bool columns only.

    Raises:
        DtypeMismatch: a dtype that would lose information, a null, or not numbers at all; says which cast to
            write.
        ShapeMismatch: not n rows of the column's shape. ValueOutOfRange: a Python number that the column
            cannot hold.
    """
    if type(value) is np.ndarray:
        # What fits already must cost next to nothing: each attribute is read once, and `carray` stands for
        # C-contiguous, aligned and writeable (a read-only array takes the long way to the same result).
        dtype, shape, target = value.dtype, value.shape, column.dtype
        if (
            (dtype is target or dtype == target)
            and shape
            and shape[1:] == column.shape
            and (n is None or shape[0] == n)
            and value.flags.carray
        ):
            return value
    array = _converted(column, value)
    if array.shape == (0,) and isinstance(value, list | tuple):
        array = array.reshape((0, *column.shape))  # [] is no rows of any shape
    if array.ndim == 0 or array.shape[1:] != column.shape or (n is not None and array.shape[0] != n):
        raise _shape_error(column, array.shape, "n" if n is None else str(n))
    return array


def as_row(column: Column, value: object) -> Array:
    """Return `value` as one row of `column`: an array of its dtype and shape, by the rules of `as_rows`.

    Raises:
        DtypeMismatch, ShapeMismatch, ValueOutOfRange: as `as_rows`.
    """
    if type(value) is np.ndarray:
        dtype, target = value.dtype, column.dtype
        if (dtype is target or dtype == target) and value.shape == column.shape and value.flags.carray:
            return value
    elif column.shape == () and (scalar := _plain_scalar(column.dtype, value)) is not None:
        return scalar
    array = _converted(column, value)
    if array.shape != column.shape:
        raise _shape_error(column, array.shape, None)
    return array


def example_array(name: str, value: object) -> Array:
    """Return one row's example value with the dtype it would have as a column; for `Schema.from_example`.

    Raises:
        DtypeMismatch, ShapeMismatch, ValueOutOfRange: no column can hold it.
    """
    array = _carried(name, value)
    if array is not None:
        return array
    kinds = leaf_kinds(name, value)
    if kinds <= {bool, int, float}:
        if len(kinds) > 1 and bool in kinds:
            raise DtypeMismatch(
                f"column {name!r}: the example mixes bools and numbers. Give an array of the dtype meant"
            )
        dtype = np.dtype(np.bool_ if bool in kinds else np.float64 if float in kinds else np.int64)
        return from_python(Column(name, dtype), value, kinds)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ShapeMismatch(f"column {name!r}: the example is ragged ({error}). Give rows of equal length") from error


def _plain_scalar(target: np.dtype[Any], value: object) -> Array | None:
    """Return the usual scalars of a step without a detour, or None for others."""
    if type(value) is target.type and target.kind not in "mM":  # a time's unit is not in its type
        return np.array(value, target)
    if isinstance(value, float):
        fits = target.kind == "f" and target.itemsize >= 4 and -_SMALL_FLOAT < float(value) < _SMALL_FLOAT
        return np.array(value, target) if fits else None
    if type(value) is bool:
        return np.array(value, target) if target.kind == "b" else None
    if type(value) is int and target.kind in "iu":
        try:
            return np.array(value, target)
        except OverflowError:
            return None  # the long way says why
    return None


@lru_cache(maxsize=1024)
def _is_lossless(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether every value of `source` exists in `target`."""
    if source.newbyteorder("=") == target:
        return True
    if source.kind not in "biuf" or target.kind not in "biuf":
        return False  # among others ints to timedelta64, and time units: seconds overflow in nanoseconds
    if source.kind in "iu" and source.itemsize == 8 and target.kind == "f":
        return False  # NumPy calls it safe, but a float64 has 53 bits
    return np.can_cast(source, target, "safe")


def _converted(column: Column, value: object) -> Array:
    """Return `value` with the column's dtype, C-contiguous and aligned, whatever its shape."""
    array = _carried(column.name, value)
    if array is None:
        kinds = leaf_kinds(column.name, value)
        if kinds <= {bool, int, float}:
            return from_python(column, value, kinds)
        assert isinstance(value, Sequence)
        return _stacked(column, value)
    if array.ndim == 0 and array.dtype in (np.float64, np.bool_) and array.dtype != column.dtype:
        number = array.item()
        return from_python(column, number, {type(number)})
    if not _is_lossless(array.dtype, column.dtype):
        raise DtypeMismatch(
            f"column {column.name!r} is {column.dtype}; not every {array.dtype} value exists in it. Write "
            f"value.astype('{column.dtype}') if the loss is meant, or make the column {array.dtype}"
        )
    array = array.astype(column.dtype, order="C", copy=False)
    return array if array.flags.aligned else array.copy()


def _carried(name: str, value: object) -> Array | None:
    """Return a value that carries a dtype as an array of it, or None for Python numbers, lists and tuples."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        row = int(np.argwhere(np.ma.getmaskarray(value))[0][0]) if value.ndim else 0
        raise null_error(name, row)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
    elif isinstance(value, bool | int | float | list | tuple):
        return None
    elif (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        array = _from_torch(name, value)
    elif (pa := sys.modules.get("pyarrow")) is not None and isinstance(value, pa.Array | pa.ChunkedArray):
        from .arrow import to_numpy

        array = to_numpy(name, value)
    else:
        array = _from_anything(name, value)
    if array.dtype.kind not in "biufMm":
        raise DtypeMismatch(
            f"column {name!r}: an array of dtype {array.dtype} holds no plain numbers. Give numbers, bools, "
            "datetime64 or timedelta64; np.stack(list(value)) opens an object array of equal arrays"
        )
    return array


def _from_torch(name: str, tensor: Any) -> Array:
    try:
        array: Array = tensor.numpy(force=True)
    except (TypeError, RuntimeError) as error:
        raise DtypeMismatch(
            f"column {name!r}: a torch tensor of {tensor.dtype} and layout {tensor.layout} has no NumPy form "
            f"({error}). Write value.float() or value.to_dense() first"
        ) from error
    return array


def _from_anything(name: str, value: object) -> Array:
    if value is None:
        raise null_error(name, 0)
    if isinstance(value, Mapping):
        raise DtypeMismatch(f"column {name!r} is one array, got a mapping with {list(value)}. Schema.flatten opens it")
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeMismatch(
            f"column {name!r}: a {type(value).__module__}.{type(value).__name__} cannot be read as an array "
            f"({error}). Give a NumPy array"
        ) from error


def _stacked(column: Column, value: Sequence[object]) -> Array:
    """Convert a list that holds arrays or tensors, each by its own dtype."""
    arrays = [_converted(column, element) for element in value]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ShapeMismatch(
            f"column {column.name!r}: the list holds arrays of the shapes {sorted(shapes)}. Give "
            f"{column.shape} for each row"
        )
    return np.stack(arrays)


def _shape_error(column: Column, shape: tuple[int, ...], n: str | None) -> ShapeMismatch:
    lead = [] if n is None else [n]
    expected = ", ".join(lead + [str(size) for size in column.shape])
    expected += "," if len(lead) + len(column.shape) == 1 else ""
    one_row = n is not None and shape == column.shape
    hint = "Add a leading axis of rows: value[None]" if one_row else "Reshape or select before storing"
    return ShapeMismatch(f"column {column.name!r} expects shape ({expected}), got {shape}. {hint}")
