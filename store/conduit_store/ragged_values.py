"""Values a caller gives for a column whose rows vary in length -> elements that can be copied byte by byte.

Each row's elements go by the rules of `values.as_rows`: lossless, or refused.
"""

from __future__ import annotations

import codecs
import sys
from typing import Any

import numpy as np

from .arrays import Array
from .column import Column, shown
from .errors import DtypeMismatch, ShapeMismatch, ValueOutOfRange
from .native import native
from .ragged import Ragged
from .scalars import null_error
from .values import as_rows

__all__ = ["as_ragged", "as_ragged_row"]

Rows = Ragged | list[Any]  # packed, or one contiguous buffer a row

_PIECE = 1 << 20  # bytes of text that are looked at together


def as_ragged(column: Column, value: object, n: int | None = None) -> Rows:
    """Return `value` as `n` rows of `column` (any number if None): packed, or a list with one buffer of bytes a row.

    `value`: a Ragged, a list of rows (arrays, tensors or lists; str or bytes of text), an Arrow array of lists or of
    text, a nested torch tensor, or one array (n, length, *inner) of rows that happen to be equally long.

    Raises:
        DtypeMismatch, ShapeMismatch, ValueOutOfRange: as `as_rows`, of elements; not n rows.
    """
    rows = _rows(column, value)
    if n is not None and len(rows) != n:
        raise ShapeMismatch(f"column {column.name!r} has {len(rows)} rows, others have {n}. Give as many of each")
    return rows


def as_ragged_row(column: Column, value: object) -> Any:
    """Return one row's elements as an array (length, *inner), or as bytes where the column is text.

    Raises:
        DtypeMismatch, ShapeMismatch, ValueOutOfRange: as `as_ragged`.
    """
    if column.text is not None:
        return _text(column, value, 0)
    return as_rows(column.elements, value)


def _rows(column: Column, value: Any) -> Rows:
    if isinstance(value, Ragged):
        return _packed(column, value)
    if (pa := sys.modules.get("pyarrow")) is not None and isinstance(value, pa.Array | pa.ChunkedArray):
        from .arrow import ragged_chunks

        parts = [_packed(column, part) for part in ragged_chunks(column.name, value)]
        # several chunks stay apart: together they may be more than there is room for
        return parts[0] if len(parts) == 1 else [row for part in parts for row in part.pieces()]
    if (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor) and value.is_nested:
        value = list(value.unbind())
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
        value = list(value)
    if column.text is not None:
        if isinstance(value, np.ndarray) and value.dtype.kind == "S":
            raise DtypeMismatch(
                f"column {column.name!r}: an array of {value.dtype} cannot tell the zero bytes that end a value from "
                "padding. Give a list of bytes, or an object array of them; value.tolist() if there are none"
            )
        if not isinstance(value, list | tuple):
            value = np.asarray(value).tolist()
        if not isinstance(value, list | tuple):
            raise DtypeMismatch(f"column {column.name!r}: give a list of {column.text} values, got {shown(value)}")
        return [_text(column, row, i) for i, row in enumerate(value)]
    if isinstance(value, list | tuple):
        return _listed(column, list(value))
    return _regular(column, value)


def _listed(column: Column, value: list[Any]) -> list[Array]:
    if native.rows_fit(value, column.dtype.str[1:], column.shape[1:]):
        return value  # what fits already must cost next to nothing, as in as_rows
    rows: list[Array] = []
    for i, row in enumerate(value):
        if row is None:
            raise null_error(column.name, i)
        try:
            elements = as_rows(column.elements, row)
            rows.append(elements.view(np.int64) if elements.dtype.kind in "mM" else elements)  # times have no buffers
        except (DtypeMismatch, ShapeMismatch, ValueOutOfRange) as error:
            raise type(error)(f"row {i} of {len(value)}: {error}") from error
    return rows


def _regular(column: Column, value: Any) -> Ragged:
    """One array of rows that are equally long."""
    array = value if hasattr(value, "reshape") else np.asarray(value)
    if array.ndim < 2 or array.shape[2:] != column.shape[1:]:
        raise ShapeMismatch(
            f"column {column.name!r}: rows vary in length, got an array of shape {array.shape}. Give a list of arrays, "
            f"a Ragged, or shape (n, length{''.join(f', {size}' for size in column.shape[1:])})"
        )
    n, length = array.shape[:2]
    elements = as_rows(column.elements, array.reshape(n * length, *array.shape[2:]))
    return Ragged(elements, np.arange(n + 1, dtype=np.int64) * length, text=column.text)


def _packed(column: Column, given: Ragged) -> Ragged:
    if len(given.shape) > 1:
        raise ShapeMismatch(
            f"column {column.name!r}: a Ragged of {' x '.join(map(str, given.shape))} rows. Give those that are steps: "
            "ragged[batch['mask']]"
        )
    if given.text != column.text:
        held, got = column.text or f"{column.dtype} arrays", given.text or f"{given.values.dtype} arrays"
        raise DtypeMismatch(f"column {column.name!r} holds {held}, got rows of {got}. Encode or decode them first")
    if column.text == "string":
        _check_text(column, given)
    elements = as_rows(column.elements, given.values)
    return given if elements is given.values else Ragged(elements, given.offsets, text=given.text)


def _check_text(column: Column, given: Ragged) -> None:
    """Refuse rows of bytes that are no UTF-8, each by itself."""
    starts = given.offsets[:-1][given.lengths > 0]
    try:
        text = codecs.getincrementaldecoder("utf-8")()  # by pieces: no copy of all
        for at in range(int(given.offsets[0]), int(given.offsets[-1]), _PIECE):
            text.decode(given.values[at : min(at + _PIECE, int(given.offsets[-1]))].tobytes())
        text.decode(b"", final=True)
        split = np.flatnonzero((given.values[starts] & 0xC0) == 0x80)
        if len(split) == 0:
            return
    except UnicodeDecodeError:
        pass
    for row in range(len(given)):  # which
        try:
            given[row]
        except UnicodeDecodeError as error:
            raise ValueOutOfRange(f"column {column.name!r}: row {row} is no valid text ({error})") from error


def _text(column: Column, value: object, row: int) -> bytes:
    if value is None:
        raise null_error(column.name, row)
    if column.text == "string" and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise ValueOutOfRange(
                f"column {column.name!r}: row {row}, {shown(value)}, is no valid text ({error})"
            ) from error
    if column.text == "binary" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise DtypeMismatch(
        f"column {column.name!r} holds {'str' if column.text == 'string' else 'bytes'}, got {shown(value)} in row {row}"
    )
