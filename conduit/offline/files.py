"""Rows in files of Parquet or Arrow IPC, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from conduit import windows
from conduit.exchange.frame import Frame, check_rename, named
from conduit.offline.groups import pieces_of, read
from conduit.offline.loading import categories
from conduit.offline.steps import Group, columns_of, windows_of
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError
from conduit_store.schema import Schema

__all__ = ["FileRows"]

_BEHIND = 4096  # rows of the next row group among which successors are looked for


class FileRows:
    """The rows of a file, or of all files of a folder. `len` counts the pieces, `rows` the rows.

    Raises:
        What `conduit.offline.open` says of files.
    """

    def __init__(self, path: Path, schema: Schema | None, rename: Mapping[str, str] | None) -> None:
        self._pieces, schemas = pieces_of(path)
        found = next(iter(schemas.values()))
        self._names = check_rename(rename, found.names, path)
        self._frame = Frame.of_arrow(found, schema, path, self._names)
        _check_lengths(self._frame.schema, path)
        self._frame = self._with_categories(schemas)
        # which export a file is of
        self._exports = {file: Frame.of_arrow(s, schema, file, self._names).export for file, s in schemas.items()}
        old = {new: name for name, new in self._names.items()}
        wanted = self._frame.columns_to_read([str(self._names.get(name, name)) for name in found.names])
        self._columns = [old.get(name, name) for name in wanted if name != "priority"]
        self._window: windows.Row | windows.Transition | windows.NStep = windows.Row()
        self.schema = self._frame.schema
        self.episodic = self._frame.episodic
        self.rows = sum(piece.rows for piece in self._pieces)

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

    def __len__(self) -> int:
        return len(self._pieces)

    def prepare(self, window: windows.Row | windows.Transition | windows.NStep) -> None:
        """Say what `read` is to make of rows."""
        self._window = window

    def read(self, index: int) -> dict[str, Array]:
        """Return the windows of a piece's rows, by column. In any thread."""
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


def _check_lengths(schema: Schema, path: Path) -> None:
    """How much memory the shuffle takes must be known."""
    unknown = [column.name for column in schema.ragged if column.mean_length is None]
    if unknown:
        raise ConfigError(
            f"the rows of column {', '.join(unknown)} of {path} vary in length, and it does not say how long they are "
            "in the mean: give schema=, with Column(..., mean_length=n)"
        )
