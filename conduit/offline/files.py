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
from conduit.offline.steps import Group, beginning_rows, beginnings, columns_of, windows_of
from conduit_store.arrays import Array
from conduit_store.arrow import ragged_chunks
from conduit_store.schema import Schema

__all__ = ["FileRows"]

_MEASURED = 16  # pieces, of which it is measured how long rows are
_KEPT = 64 << 20  # bytes of rows that are kept because another piece needs them


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
        self._frame = self._with_lengths()
        self._frame = self._with_categories(schemas)
        # which export a file is of
        self._exports = {file: Frame.of_arrow(s, schema, file, self._names).export for file, s in schemas.items()}
        old = {new: name for name, new in self._names.items()}
        wanted = self._frame.columns_to_read([str(self._names.get(name, name)) for name in found.names])
        self._columns = [old.get(name, name) for name in wanted if name != "priority"]
        self._window: windows.Row | windows.Transition | windows.NStep = windows.Row()
        # By piece: the rows that continue what other pieces hold. At most _KEPT bytes; others are read again.
        self._beginnings: dict[int, pa.Table] = {}
        self._kept = 0
        self.schema = self._frame.schema
        self.episodic = self._frame.episodic
        self.rows = sum(piece.rows for piece in self._pieces)

    def _with_lengths(self) -> Frame:
        """Say how long rows are in the mean, where neither the files nor the caller do: how much memory the shuffle
        takes must be known. Measured in some pieces of them all."""
        unknown = [column for column in self._frame.schema.ragged if column.mean_length is None]
        if not unknown:
            return self._frame
        old = {new: name for name, new in self._names.items()}
        some = self._pieces[:: -(-len(self._pieces) // _MEASURED)] if self._pieces else []
        lengths: dict[str, float] = {}
        for column in unknown:
            rows = elements = 0
            for piece in some:
                lists = read(piece, [old.get(column.name, column.name)]).column(0).drop_null()
                elements += sum(int(part.lengths.sum()) for part in ragged_chunks(column.name, lists))
                rows += piece.rows
            lengths[column.name] = max(1.0, elements / max(rows, 1))
        made = (replace(c, mean_length=lengths.get(c.name, c.mean_length)) for c in self._frame.schema.valued)
        return replace(self._frame, schema=Schema(tuple(made)))

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
                    known = sorted(set(read(piece, [name]).column(0).drop_null().unique().to_pylist()))
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
        rows = named(read(piece, self._columns), self._names)
        if isinstance(self._window, windows.Row):
            return columns_of(self._frame, Group(rows, None, piece.name))
        if index > 0 and self._goes_on(index - 1):
            self._keep(index, beginnings(self._frame, rows, piece.name))
        behind = self._beginning(index + 1) if self._goes_on(index) else None
        return windows_of(self._frame, Group(rows, behind, piece.name), self._window)

    def _beginning(self, index: int) -> pa.Table:
        """Return the rows of a piece that may continue those before it: their links, and what is observed there."""
        known = self._beginnings.get(index)
        if known is not None:
            return known
        piece, frame = self._pieces[index], self._frame
        old = {new: name for name, new in self._names.items()}
        links = [old.get(name, name) for name in (frame.episode, frame.step) if name is not None]
        first = 1
        if frame.episode is not None:
            rows = beginning_rows(frame, named(read(piece, links), self._names), piece.name)
            first = int(rows.max(initial=0)) + 1
        observed = [old.get(column.name, column.name) for column in frame.schema.obs]
        found = beginnings(frame, named(read(piece, links + observed, first), self._names), piece.name)
        self._keep(index, found)
        return found

    def _keep(self, index: int, found: pa.Table) -> None:
        if index not in self._beginnings and self._kept + found.nbytes <= _KEPT:
            self._kept += found.nbytes
            self._beginnings[index] = found

    def _goes_on(self, index: int) -> bool:
        """Whether successors of this piece's last steps may be in the next one."""
        if index + 1 == len(self._pieces) or all(name in self._columns for name in self._frame.following):
            return False
        file, other = self._pieces[index].file, self._pieces[index + 1].file
        return file == other or (self._exports[file] is not None and self._exports[file] == self._exports[other])
