"""What a mapping may hold beside arrays of numbers: objects, text and lists, as the arrays that columns are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conduit.exchange import npz_members as members
from conduit_store.arrays import Array
from conduit_store.errors import DtypeMismatch, ShapeMismatch
from conduit_store.ragged import Ragged
from conduit_store.ragged_values import as_ragged
from conduit_store.scalars import null_error
from conduit_store.schema import Column

__all__ = ["check_plain", "plain"]


def plain(given: Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays by name, with none of objects or text: such rows vary in length, see npz.py for how they come.

    Raises:
        DtypeMismatch: objects of several kinds, or of none that a column holds; bytes whose ends are not known.
        ShapeMismatch: rows of other shapes.
    """
    found: dict[str, Array] = {}
    kinds = {name: (np.dtype(np.uint8), ()) for name in given}
    for name, value in given.items():
        array = value if isinstance(value, np.ndarray | Ragged) else _as_array(value)
        if members.base_of(name, kinds) is not None:  # the strings of categories
            found[name] = np.asarray(array)
        elif isinstance(array, Ragged):
            shape = None if array.text is not None else (None, *array.values.shape[1:])
            column = Column(name, array.text or array.values.dtype, shape or ())
            found.update(members.parts_of(name, column, array))
        elif array.dtype.kind in "OU":
            found.update(_of_objects(name, array))
        else:
            check_plain(name, array.dtype, "this mapping")
            found[name] = array
    return found


def check_plain(name: str, dtype: np.dtype[Any], what: object) -> None:
    """Refuse dtypes that hold no numbers, with what to do.

    Raises:
        DtypeMismatch: objects, text or bytes.
    """
    if dtype.kind == "S":
        raise DtypeMismatch(
            f"column {name!r} of {what} is {dtype}, which cannot tell the zero bytes that end a value from padding. "
            "Give an object array of bytes; array.astype(object) if there are none"
        )
    if dtype.kind in "OU":
        held = "text" if dtype.kind == "U" else "Python objects, which are not unpickled"
        raise DtypeMismatch(
            f"column {name!r} of {what} holds {held}. Load it where you trust it, and import the mapping: "
            "store.import_table(name, dict(numpy.load(path, allow_pickle=True)))"
        )


def _as_array(value: Any) -> Array:
    """As NumPy sees it; lists of other lengths as an array of objects."""
    try:
        return np.asarray(value)
    except ValueError:
        made = np.empty(len(value), object)
        for row, inner in enumerate(value):
            made[row] = inner
        return made


def _of_objects(name: str, array: Array) -> dict[str, Array]:
    if array.ndim != 1 or len(array) == 0:
        raise ShapeMismatch(f"column {name!r} is {array.dtype} of shape {array.shape}: give one value a row, and a row")
    rows = array.tolist() if array.dtype.kind == "U" else list(array)
    kinds = {type(row) for row in rows}
    if type(None) in kinds:
        raise null_error(name, next(at for at, row in enumerate(rows) if row is None))
    if kinds <= {str, np.str_} or kinds <= {bytes, np.bytes_}:
        text = Column(name, "string" if isinstance(rows[0], str) else "binary")
        encoded = as_ragged(text, rows)
        return dict(members.parts_of(name, text, [np.frombuffer(row, np.uint8) for row in encoded]))
    first = _as_array(rows[0])
    if first.ndim == 0 or first.dtype.kind not in "biufMm":
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DtypeMismatch(
            f"column {name!r} is an array of objects ({names}): give rows that are all arrays of numbers, all str or "
            "all bytes; and numbers as an array of their own dtype, array.astype('float32')"
        )
    column = Column(name, first.dtype.newbyteorder("="), (None, *first.shape[1:]))
    return dict(members.parts_of(name, column, as_ragged(column, rows)))
