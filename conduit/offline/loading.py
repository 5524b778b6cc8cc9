"""Batches of an offline data set, prepared ahead by a thread."""

from __future__ import annotations

import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from conduit.closing import Closing
from conduit.exchange.columns import packed
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, MissingExtra, StoreClosed, UnknownColumn
from conduit_store.ragged import Ragged
from conduit_store.schema import Column, Schema

if TYPE_CHECKING:
    import torch

__all__ = ["OfflineBatch", "OfflineLoader"]


class OfflineBatch:
    """`len(batch)` rows. `batch["obs"]` is an array of shape (n, *row_shape), writable and nobody else's."""

    __slots__ = ("_columns", "_schema")

    def __init__(self, columns: dict[str, Array], schema: Schema) -> None:
        self._columns: dict[str, Any] = {
            name: packed(schema.column(name), array) if schema.column(name).ragged else array
            for name, array in columns.items()
        }
        self._schema = schema

    def __getitem__(self, name: str) -> Any:
        """Return a column; a Ragged where rows vary in length.

        Raises:
            UnknownColumn: there is none of that name.
        """
        try:
            return self._columns[name]
        except (KeyError, TypeError):  # of a name that cannot be hashed
            raise UnknownColumn(f"no column {name!r} in this batch, which has {', '.join(self._columns)}") from None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self._columns)

    @property
    def valid(self) -> dict[str, Array]:
        """Of each nullable column by name, which rows are not null: bool (n,). See `Batch.valid`."""
        return {column.name: self[column.validity.name] for column in self._schema.nullable}

    def decode(self, name: str) -> Array:
        """Return a "category" column as strings, see `Batch.decode`.

        Raises:
            UnknownColumn: there is none of that name. ConfigError: a column of another dtype.
        """
        numbers, column = self[name], self._schema.column(name)
        if not column.categorical:
            raise ConfigError(f"column {name!r} holds {column.dtype_name}, no categories: take batch[{name!r}]")
        values = np.array([*column.values, None], object)
        valid = self.valid.get(name)
        decoded: Array = values[numbers if valid is None else np.where(valid, numbers, -1)]
        return decoded

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def items(self) -> Iterator[tuple[str, Any]]:
        """Iterate over (name, array)."""
        return iter(self._columns.items())

    def torch(self, *, ragged: str = "packed") -> dict[str, torch.Tensor]:
        """Return every column as a torch tensor that shares its memory. Times come as int64, in the column's unit.

        `ragged`: how columns come whose rows vary in length, see `Batch.torch`.

        Raises:
            MissingExtra: torch is not installed. ConfigError: another layout.
        """
        try:
            import torch
        except ImportError as error:
            raise MissingExtra("tensors need torch. Run `pip install 'conduit-edp[torch]'`") from error
        tensors: dict[str, torch.Tensor] = {}
        for name, array in self._columns.items():
            if isinstance(array, Ragged):
                tensors |= array.named_tensors(name, ragged)
            else:
                tensors[name] = torch.from_numpy(array.view("i8") if array.dtype.kind in "mM" else array)
        return tensors

    def __repr__(self) -> str:
        return f"<OfflineBatch of {len(self)} rows: {', '.join(self.names)}>"


def categories(column: Column, values: tuple[str, ...]) -> Column:
    """Return a column of categories that has room for just these."""
    size = sum(len(value.encode()) for value in values)
    return Column(
        column.name,
        "category",
        max_values=max(1, len(values)),
        max_bytes=max(1, size),
        values=values,
        nullable=column.nullable,
    )


class _Pipeline:
    """The thread and its queue; holds nothing of the loader, so that a forgotten loader ends it."""

    def __init__(self, batches: Iterator[Any], ahead: int) -> None:
        self.ready: queue.Queue[Any] = queue.Queue(ahead)
        self.stop = threading.Event()
        self._batches = batches
        self._thread = threading.Thread(target=self._work, name="conduit-offline", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        last: Any = None  # the end; an error is handed over as it is
        try:
            for batch in self._batches:
                if not self._put(batch):
                    return
        except BaseException as error:
            last = error
        finally:
            self._batches.close()  # type: ignore[attr-defined]
        self._put(last)

    def _put(self, what: Any) -> bool:
        while not self.stop.is_set():
            try:
                self.ready.put(what, timeout=0.05)
                return True
            except queue.Full:
                pass
        return False

    def close(self) -> None:
        self.stop.set()
        if self._thread is not threading.current_thread() and not sys.is_finalizing():
            self._thread.join()


class OfflineLoader(Closing):
    """Batches in order, prepared ahead; from `Dataset.loader`. Iterate over it once; for one thread at a time.

    Close it, or use it in a `with`; at its end, by the garbage collector and with the interpreter it closes itself.
    """

    def __init__(self, batches: Iterator[Any], ahead: int, transform: Callable[[OfflineBatch], Any] | None) -> None:
        made = (batch if transform is None else transform(batch) for batch in batches)
        self._pipeline = _Pipeline(made, ahead)
        self._ended = False
        self._finalizer = weakref.finalize(self, self._pipeline.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next batch; waits for the disk.

        Raises:
            StoreClosed: this loader was closed. What reading or `transform` raised, after the batches before it.
        """
        if self._ended:
            raise StopIteration
        while True:
            if self._pipeline.stop.is_set():
                raise StoreClosed("this loader is closed: call dataset.loader() for a new one")
            try:
                batch = self._pipeline.ready.get(timeout=0.05)
                break
            except queue.Empty:
                pass
        if batch is None or isinstance(batch, BaseException):
            self._ended = True
            self._finalizer()
            if batch is None:
                raise StopIteration
            raise batch
        return batch

    @property
    def closed(self) -> bool:
        """Whether it has been closed, or has come to its end."""
        return self._pipeline.stop.is_set()

    def close(self) -> None:
        """Stop and join its thread. Idempotent."""
        self._finalizer()
