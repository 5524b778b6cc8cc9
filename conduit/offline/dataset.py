"""What `conduit.offline.open` returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from conduit import windows
from conduit.exchange.frame import Frame, check_rename, named
from conduit.offline import shuffle
from conduit.offline.groups import pieces_of, read
from conduit.offline.loading import OfflineBatch, OfflineLoader, categories
from conduit.offline.steps import Group, columns_of, windows_of
from conduit.plans import batch_columns
from conduit.values import whole_number
from conduit_store.arrays import Array
from conduit_store.errors import CapacityError, ConfigError
from conduit_store.memory import parse_bytes
from conduit_store.schema import Schema

__all__ = ["Dataset", "open"]

_BEHIND = 4096  # rows of the next row group among which successors are looked for


def open(
    path: str | os.PathLike[str],
    *,
    window: windows.Row | windows.Transition | windows.NStep | None = None,
    schema: Schema | None = None,
    rename: Mapping[str, str] | None = None,
    buffer: str | int = "256MiB",
    seed: int = 0,
    threads: int = 2,
) -> Dataset:
    """Open a file, or a folder of files, to train from: Parquet or Arrow IPC. Nothing but metadata is read here.

    Images are better kept in Arrow IPC: Parquet takes each pixel for a number of 32 bits, and is slow to decode.

    Rows that vary in length come as Ragged, categories as numbers that `batch.decode` turns into strings; where files
    do not say themselves which there are, their columns are read here.

    `window`: Transition() for steps of episodes, Row() for others, if None; n-step windows end at the border of a row
    group as at a time limit. `schema`, `rename`: as of `Store.import_table`. `buffer`: memory of the shuffle, see
    `conduit.offline.shuffle` for what it gives; beside it `threads` + 1 row groups are in memory, decoded.

    Raises:
        SourceNotFound, ExchangeError: not there, damaged, or files that do not agree.
        MissingColumn, SchemaError, DtypeMismatch: columns that are missing or cannot be stored.
        ConfigError: a window for steps of episodes where there are none, or another one; numbers that are not allowed.
            Rows that vary in length, and nobody says how long they are in the mean.
        CapacityError: the buffer holds less than two rows.
    """
    return Dataset(Path(path), window, schema, rename, parse_bytes(buffer), seed, threads)


class Dataset:
    """Rows in files of any size. From `open`; safe in any thread, pickled by its arguments."""

    def __init__(
        self,
        path: Path,
        window: windows.Row | windows.Transition | windows.NStep | None,
        schema: Schema | None,
        rename: Mapping[str, str] | None,
        buffer: int,
        seed: int,
        threads: int,
    ) -> None:
        self._arguments = path, window, schema, rename, buffer, seed, threads
        self._path = path
        self._pieces, schemas = pieces_of(path)
        found = next(iter(schemas.values()))
        self._names = check_rename(rename, found.names, path)
        self._frame = Frame.of_arrow(found, schema, path, self._names)
        self._frame = self._with_categories(schemas)
        self._check_lengths()
        # which export a file is of
        self._exports = {file: Frame.of_arrow(s, schema, file, self._names).export for file, s in schemas.items()}
        self._window = self._checked(window)
        old = {new: name for name, new in self._names.items()}
        wanted = self._frame.columns_to_read([str(self._names.get(name, name)) for name in found.names])
        self._columns = [old.get(name, name) for name in wanted if name != "priority"]
        self._batch_schema = Schema(batch_columns(self._frame.schema, self._window))
        self._seed = whole_number("seed", seed, 0, 2**63 - 1)
        self._threads = whole_number("threads", threads, 1, 64)
        self._capacity = min(buffer // self._batch_schema.row_bytes, max(2, len(self)))
        if self._capacity < 2:
            raise CapacityError(
                f"a buffer of {buffer:,} bytes holds {self._capacity} rows of {self._batch_schema.row_bytes:,} bytes: "
                "nothing would be shuffled. Give more"
            )

    def _check_lengths(self) -> None:
        """How much memory the shuffle takes must be known."""
        unknown = [column.name for column in self._frame.schema.ragged if column.mean_length is None]
        if unknown:
            raise ConfigError(
                f"the rows of column {', '.join(unknown)} of {self._path} vary in length, and it does not say how "
                "long they are in the mean: give schema=, with Column(..., mean_length=n)"
            )

    def _with_categories(self, schemas: Mapping[Path, pa.Schema]) -> Frame:
        """Number the categories of all files alike: as they are numbered where they come from, else by the alphabet."""
        columns = [column for column in self._frame.schema if column.categorical]
        if not columns:
            return self._frame
        told = {file: Frame.of_arrow(fields, None, file, self._names) for file, fields in schemas.items()}
        found: dict[str, dict[str, None]] = {column.name: {} for column in columns}
        for column in columns:
            for piece in self._pieces:
                frame = told[piece.file]
                known: Iterable[str] = frame.schema.column(column.name).values if column.name in frame.schema else ()
                if not frame.own:
                    name = next((old for old, new in self._names.items() if new == column.name), column.name)
                    known = sorted(set(read(piece, [name], None).column(0).drop_null().unique().to_pylist()))
                found[column.name] |= dict.fromkeys(known)
        made = [
            categories(column, tuple(found[column.name])) if column.categorical else column
            for column in self._frame.schema
        ]
        return replace(self._frame, schema=Schema(tuple(made)))

    def _checked(self, window: Any) -> windows.Row | windows.Transition | windows.NStep:
        if window is None:
            return windows.Transition() if self._frame.episodic else windows.Row()
        if not isinstance(window, windows.Row | windows.Transition | windows.NStep):
            raise ConfigError(f"window is {window!r}: from files: Row, Transition or NStep. Import for others")
        if not isinstance(window, windows.Row) and not self._frame.episodic:
            raise ConfigError(
                f"window {window} follows episodes, and {self._path} has {', '.join(self._frame.schema.names)}: obs, "
                "reward, terminated and truncated are needed, and no next_obs (leave it out of `schema`)"
            )
        return window

    @property
    def schema(self) -> Schema:
        """Columns of the rows in the files."""
        return self._frame.schema

    @property
    def batch_schema(self) -> Schema:
        """Columns of batches."""
        return self._batch_schema

    @property
    def buffer_rows(self) -> int:
        """How many rows the shuffle holds."""
        return self._capacity

    def __len__(self) -> int:
        """Rows in the files. An epoch has as many, less the steps whose successor is not known."""
        return sum(piece.rows for piece in self._pieces)

    def loader(
        self,
        batch_size: int,
        *,
        epochs: int | None = 1,
        drop_last: bool = False,
        prefetch: int = 4,
        transform: Callable[[OfflineBatch], Any] | None = None,
        first_epoch: int = 0,
    ) -> OfflineLoader:
        """Return a loader: `for batch in data.loader(256): ...` reads, shuffles and prepares while you compute.

        `epochs`: how often all rows come; None for ever. The last batch of an epoch has what is left, or with
        `drop_last` is left out. `prefetch`: batches prepared ahead. `transform`: called with each OfflineBatch in the
        loader's thread; the loader then yields what it returns. `first_epoch`: where to go on: epoch e has the same
        batches in every loader of this size.

        Raises:
            ConfigError: a number that is not allowed.
        """
        size = whole_number("batch_size", batch_size, 1, (1 << 31) - 1)
        count = None if epochs is None else whole_number("epochs", epochs, 1, 1 << 40)
        begin = whole_number("first_epoch", first_epoch, 0, 1 << 40)
        batches = self._batches(size, begin, None if count is None else begin + count, drop_last)
        return OfflineLoader(batches, whole_number("prefetch", prefetch, 1, 1024), transform)

    def _batches(self, size: int, number: int, end: int | None, drop_last: bool) -> Iterator[OfflineBatch]:
        pool = shuffle.Pool(self._batch_schema, min(max(self._capacity, size), max(len(self), 1)))
        with ThreadPoolExecutor(self._threads, "conduit-offline-read") as threads:
            while end is None or number < end:
                random = np.random.Generator(np.random.Philox(key=[self._seed, number]))
                batches = shuffle.epoch(pool, len(self._pieces), self._rows_of, threads, self._threads, size, random)
                any_rows = False
                for columns in batches:
                    any_rows = True
                    if not drop_last or len(next(iter(columns.values()))) == size:
                        yield OfflineBatch(columns, self._batch_schema)
                if not any_rows:
                    return  # else an endless loader of nothing
                number += 1

    def _rows_of(self, index: int) -> dict[str, Array]:
        piece = self._pieces[index]
        rows = named(read(piece, self._columns, None), self._names)
        if isinstance(self._window, windows.Row):
            return columns_of(self._frame, Group(rows, None, piece.name))
        behind = None
        if self._goes_on(index):
            behind = named(read(self._pieces[index + 1], self._columns, _BEHIND), self._names)
        return windows_of(self._frame, Group(rows, behind, piece.name), self._window)

    def _goes_on(self, index: int) -> bool:
        """Whether successors of this piece's last steps may be in the next one."""
        if index + 1 == len(self._pieces) or all(name in self._columns for name in self._frame.following):
            return False
        file, other = self._pieces[index].file, self._pieces[index + 1].file
        return file == other or (self._exports[file] is not None and self._exports[file] == self._exports[other])

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Dataset, self._arguments

    def __repr__(self) -> str:
        return f"<Dataset {str(self._path)!r}: {len(self):,} rows in {len(self._pieces)} pieces, {self._window}>"
