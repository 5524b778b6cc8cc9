"""Columns of categories: few distinct strings, of which rows keep the numbers.

The values lie in the store, numbered in the order in which they were first seen, so a number means the same in every
process. Each process remembers those that it has looked at.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit_store.arrays import Array
from conduit_store.column import Column, shown
from conduit_store.errors import CapacityError, DtypeMismatch, ShapeMismatch, ValueOutOfRange
from conduit_store.native import native
from conduit_store.scalars import null_error
from conduit_store.values import as_row, as_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit.spec import TableSpec

__all__ = ["Categories", "Values", "categories_of"]


class Values:
    """Strings by their numbers."""

    def __init__(self, values: Sequence[str] = ()) -> None:
        self._values: list[str] = list(values)
        self._arrow: pa.Array | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """All values that there are now, by number."""
        return tuple(self._values)

    def decode(self, numbers: Array, valid: Array | None = None) -> Array:
        """Return the values of numbers, an array of the same shape of str; None where `valid` is False."""
        known = self._upto(int(numbers.max(initial=-1)) + 1)
        if valid is None:
            return known[numbers] if len(known) else np.zeros(numbers.shape, object)
        made = np.full(numbers.shape, None, object)
        chosen = numbers[valid]
        made[valid] = known[chosen] if len(chosen) else chosen.astype(object)
        return made

    def to_arrow(self) -> pa.Array:
        """Return all values as an Arrow array of strings."""
        import pyarrow as pa

        values = self.values
        if len(values) != len(self._arrow or ()):
            self._arrow = pa.array(values, pa.string())
        return pa.array([], pa.string()) if self._arrow is None else self._arrow

    def _upto(self, count: int) -> Array:
        """The values as an array of objects, so many at least."""
        made = np.empty(len(self._values), object)
        made[:] = self._values
        return made


class Categories(Values):
    """The values of one column, as this process knows them. Safe in any thread."""

    def __init__(self, core: native.Table, index: int, column: Column, table: str) -> None:
        super().__init__()
        self._core = core
        self._index = index
        self.column = column
        self._table = table
        self._lock = threading.RLock()
        self.numbers: dict[str, int] = {}  # the native writer looks in here too

    @property
    def values(self) -> tuple[str, ...]:
        """All values that there are now, by number."""
        self._look()
        return tuple(self._values)

    def encode(self, value: Any, n: int | None = None) -> Array:
        """Return strings as numbers, int32 (n, *shape). Values that are new get the next ones, for every process.

        `value`: (nested) lists, arrays of strings or objects, pandas, or Arrow strings, dictionary-encoded or not.

        Raises:
            DtypeMismatch: what is not str, or null. ShapeMismatch: not n rows. ValueOutOfRange: no valid text.
            CapacityError: more values, or bytes of them, than the column was declared for; none of the new ones is
            added.
            LockTimeout: a stopped process holds the index lock.
        """
        return as_rows(self.column, self._encoded(value), n)

    def encode_row(self, value: Any) -> Array:
        """As `encode`, of one row."""
        number = self.numbers.get(value) if type(value) is str and not self.column.shape else None
        return np.array(number, np.int32) if number is not None else as_row(self.column, self._encoded([value])[0])

    def _upto(self, count: int) -> Array:
        if len(self._values) < count:
            self._look()
        return super()._upto(count)

    def _look(self) -> None:
        """Take over the values that others have added."""
        with self._lock:
            for text in self._core.categories(self._index, len(self._values)):
                value = text.decode()
                self.numbers[value] = len(self._values)
                self._values.append(value)

    def _encoded(self, value: Any) -> Array:
        if (pa := sys.modules.get("pyarrow")) is not None and isinstance(value, pa.Array | pa.ChunkedArray):
            return self._of_arrow(value)
        if hasattr(value, "null_count") and hasattr(value, "to_arrow"):  # Polars
            return self._of_arrow(value.to_arrow())
        if isinstance(value, np.ndarray) and value.dtype.kind == "U":
            unique, places = np.unique(value, return_inverse=True)
            numbers: Array = self._numbers_of(unique.tolist())[places]
            return numbers.reshape(value.shape)
        try:
            objects = np.array(value, object)
        except ValueError as error:
            raise ShapeMismatch(
                f"column {self.column.name!r}: {shown(value)} is ragged. Give rows of equal length"
            ) from error
        return self._numbers_of(objects.reshape(-1).tolist()).reshape(objects.shape)

    def _of_arrow(self, data: Any) -> Array:
        if data.null_count:
            raise null_error(self.column.name, int(data.is_null().to_numpy(zero_copy_only=False).argmax()))
        if hasattr(data, "chunks"):
            parts = [self._of_arrow(chunk) for chunk in data.chunks]
            return np.concatenate(parts) if parts else np.zeros((0, *self.column.shape), np.int32)
        if not hasattr(data, "dictionary"):
            return self._numbers_of(data.to_pylist()) if not self.column.shape else self._encoded(data.to_pylist())
        used = data.indices.unique()
        numbers = np.zeros(len(data.dictionary), np.int32)
        numbers[used.to_numpy()] = self._numbers_of(data.dictionary.take(used).to_pylist())
        found: Array = numbers[data.indices.to_numpy()]
        return found

    def _numbers_of(self, values: Sequence[Any]) -> Array:
        try:
            return np.fromiter(map(self.numbers.__getitem__, values), np.int32, len(values))
        except (KeyError, TypeError):
            self._add(values)
        return np.fromiter(map(self.numbers.__getitem__, values), np.int32, len(values))

    def _add(self, values: Iterable[Any]) -> None:
        """See to it that all values have numbers, here too."""
        texts: dict[str, bytes] = {}
        for row, value in enumerate(values):
            if not isinstance(value, str):
                if value is None:
                    raise null_error(self.column.name, row)
                raise DtypeMismatch(f"column {self.column.name!r} holds categories, which are str; got {shown(value)}")
            if value in self.numbers or value in texts:
                continue
            try:
                texts[value] = value.encode()
            except UnicodeEncodeError as error:
                raise ValueOutOfRange(
                    f"column {self.column.name!r}: {shown(value)} is no valid text ({error})"
                ) from error
        with self._lock:  # `new` is what is not among the values so far, of this thread's or another's looking
            self._look()
            new = {value: text for value, text in texts.items() if value not in self.numbers}
            added = not new or self._core.add_categories(self._index, len(self._values), list(new.values()))
            self._look()
        if not added:
            raise self._full([value for value in new if value not in self.numbers])

    def _full(self, new: list[str]) -> CapacityError:
        column = self.column
        size = sum(len(value.encode()) for value in self._values)
        return CapacityError(
            f"column {column.name!r} of table {self._table!r} has {len(self._values):,} categories of "
            f"{column.max_values:,}, in {size:,} bytes of {column.max_bytes:,}, and no room for {len(new)} more "
            f"({shown(new[0])}). Declare more (max_values, max_bytes), or make it a 'string' column"
        )


def categories_of(core: native.Table, spec: TableSpec) -> dict[str, Categories]:
    """Return the categories of a table's columns, by name."""
    return {
        column.name: Categories(core, index, column, spec.name)
        for index, column in enumerate(spec.schema.columns)
        if column.categorical
    }
