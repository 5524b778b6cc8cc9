"""What `conduit.offline.open` returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from conduit import windows
from conduit.offline import shuffle
from conduit.offline.files import FileRows
from conduit.offline.loading import OfflineBatch, OfflineLoader
from conduit.offline.saved import SavedRows, is_checkpoint
from conduit.plans import batch_columns
from conduit.values import as_path, whole_number
from conduit_store.errors import CapacityError, ConfigError
from conduit_store.memory import parse_bytes
from conduit_store.schema import Schema

__all__ = ["Dataset", "open"]


def open(
    path: str | os.PathLike[str],
    *,
    window: windows.Row | windows.Transition | windows.NStep | None = None,
    schema: Schema | None = None,
    rename: Mapping[str, str] | None = None,
    buffer: str | int = "256MiB",
    seed: int = 0,
    threads: int = 2,
    table: str | None = None,
    number: int | None = None,
) -> Dataset:
    """Open a file, a folder of files or a checkpoint to train from. Of files nothing but metadata is read here.

    Files: Parquet or Arrow IPC. Images are better kept in Arrow IPC: Parquet takes each pixel for a number of 32 bits,
    and is slow to decode.

    A folder that `store.checkpoint` wrote: the live rows of its `table` (needed where there are several; a queue too),
    of checkpoint `number`, the newest if None. What says which rows these are is read and held against its checksums at
    once, and takes some bytes a row of memory; the rows are read as they are needed, and `conduit.checkpoints.verify`
    checks every byte of them. Windows are those that the restored table would have, also across the borders of
    blocks. The files stay until the data set is gone.

    Rows that vary in length come as Ragged; where nobody says how long they are in the mean, some pieces of the files
    are read here to plan the buffer by. Categories come as numbers that `batch.decode` turns into strings; where files
    do not say themselves which there are, their columns are read here.

    `window`: Transition() for steps of episodes, Row() for others, if None; n-step windows end at the border of a row
    group as at a time limit. `schema`, `rename`: as of `Store.import_table`. `buffer`: memory of the shuffle, see
    `conduit.offline.shuffle` for what it gives; beside it `threads` + 1 row groups are in memory, decoded.

    Raises:
        SourceNotFound, ExchangeError: not there, damaged, or files that do not agree.
        CheckpointNotFound, CheckpointDamaged: of a checkpoint. UnknownTable: says which there are.
        MissingColumn, SchemaError, DtypeMismatch: columns that are missing or cannot be stored.
        ConfigError: a window for steps of episodes where there are none, or another one; numbers that are not allowed.
        CapacityError: the buffer holds less than two rows.
    """
    return Dataset(as_path(path), window, schema, rename, parse_bytes(buffer), seed, threads, table, number)


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
        table: str | None,
        number: int | None,
    ) -> None:
        self._arguments = path, window, schema, rename, buffer, seed, threads, table, number
        self._path = path
        self._source: FileRows | SavedRows
        if is_checkpoint(path):
            if schema is not None or rename is not None:
                raise ConfigError(f"{path} is a checkpoint, with the columns of its tables. Give no schema, no rename")
            self._source = SavedRows(path, table, number)
            self._arguments = (*self._arguments[:-1], self._source.number)  # whoever unpickles it reads the same one
        elif table is not None or number is not None:
            raise ConfigError(f"{path} is no checkpoint, which alone have tables and numbers. Leave both out")
        else:
            self._source = FileRows(path, schema, rename)
        self._window = self._checked(window)
        self._source.prepare(self._window)
        self._batch_schema = Schema(batch_columns(self._source.schema, self._window))
        self._seed = whole_number("seed", seed, 0, 2**63 - 1)
        self._threads = whole_number("threads", threads, 1, 64)
        self._capacity = min(buffer // self._batch_schema.row_bytes, max(2, len(self)))
        if self._capacity < 2:
            raise CapacityError(
                f"a buffer of {buffer:,} bytes holds {self._capacity} rows of {self._batch_schema.row_bytes:,} bytes: "
                "nothing would be shuffled. Give more"
            )

    def _checked(self, window: Any) -> windows.Row | windows.Transition | windows.NStep:
        if window is None:
            return windows.Transition() if self._source.episodic else windows.Row()
        if not isinstance(window, windows.Row | windows.Transition | windows.NStep):
            raise ConfigError(f"window is {window!r}: from files: Row, Transition or NStep. Import for others")
        if not isinstance(window, windows.Row) and not self._source.episodic:
            raise ConfigError(
                f"window {window} follows episodes, and {self._path} has {', '.join(self._source.schema.names)}: obs, "
                "reward, terminated and truncated are needed, and no next_obs (leave it out of `schema`)"
            )
        return window

    @property
    def schema(self) -> Schema:
        """Columns of the rows in the files."""
        return self._source.schema

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
        return self._source.rows

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
                read = self._source.read
                batches = shuffle.epoch(pool, len(self._source), read, threads, self._threads, size, random)
                any_rows = False
                for columns in batches:
                    any_rows = True
                    if not drop_last or len(next(iter(columns.values()))) == size:
                        yield OfflineBatch(columns, self._batch_schema)
                if not any_rows:
                    return  # else an endless loader of nothing
                number += 1

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Dataset, self._arguments

    def __repr__(self) -> str:
        return f"<Dataset {str(self._path)!r}: {len(self):,} rows in {len(self._source)} pieces, {self._window}>"
