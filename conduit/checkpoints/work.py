"""One table of a cut on its way to the disk: its index and its rows, oldest first, let go as they have been read.

Rows that the last checkpoint of the folder has, and that have not changed (published rows never do), are named again
instead of written: see `_plan`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit.checkpoints.index import BLOCK, keys_of, row_columns, runs_of
from conduit.checkpoints.manifest import Part, TableRecord
from conduit.checkpoints.parts import KEYS, ColumnFile, Disk, PartFile, gathered, keyed, keyed_schema
from conduit_store import arrow
from conduit_store.arrays import Array
from conduit_store.errors import CheckpointDamaged
from conduit_store.native import native

if TYPE_CHECKING:
    from conduit.table import Table

__all__ = ["TableWork"]

_PART_BYTES = 32 << 20  # of rows in one file: the unit that an incremental checkpoint keeps or writes anew
_TURN_BYTES = 8 << 20  # of rows after which it is another table's turn
_TURN_ROWS = 1 << 18
_LEAST_LIVE = 0.5  # part of a file's rows that must still be there for the file to be kept


class TableWork:
    """Writes one table. `write` yields after every few megabytes."""

    def __init__(
        self, disk: Disk, cut: native.Cut, number: int, table: Table, checkpoint: int, old: tuple[Part, ...]
    ) -> None:
        self._disk, self._cut, self._number, self._table = disk, cut, number, table
        self._prefix = f"{table.name}-{checkpoint:06d}"
        self._blocks = np.frombuffer(cut.blocks(number), BLOCK)
        self._per_block = table._layout.rows
        self._counts = (self._blocks["count"] - self._blocks["first"]).astype(np.int64)
        if table.schema.ragged:  # about so much
            self._sizes = np.where(self._counts > 0, table._layout.block_bytes, 0)
        else:
            self._sizes = self._counts * (table.schema.row_bytes + 8)
        self._schema = keyed_schema(table.schema)
        self._numbers = {
            name: (part, which, dtype)
            for name, (part, which, dtype) in row_columns(table.spec).items()
            if cut.keeps(number, part, which)
        }
        self._kept, self._covered = _plan(disk.folder, old, self._blocks, self._per_block)
        self._made: list[Part] = []
        self._part: PartFile | None = None
        kinds = {KEYS: np.dtype("u8"), **{name: dtype for name, (_, _, dtype) in self._numbers.items()}}
        self._room: dict[str, Array] = {}  # for numbers of one turn: new memory would cost more than they do
        self._index_bytes = sum(dtype.itemsize for dtype in kinds.values())
        self._index = ColumnFile(disk, f"{self._prefix}-rows.arrow", kinds)

    @property
    def bytes(self) -> int:
        """About how many will be written."""
        todo = int(self._sizes[~self._covered[self._blocks["block"]]].sum())
        return todo + int(self._counts.sum()) * self._index_bytes

    def write(self) -> Iterator[bool]:
        at, end = 0, int((self._blocks["birth"] > 0).sum())
        while at < end:
            to, rows, size = at, 0, 0
            while to < end and (to == at or (size < _TURN_BYTES and rows < _TURN_ROWS)):
                rows += int(self._counts[to])
                size += int(self._sizes[to])
                to += 1
            if rows > 0:
                keys = keys_of(self._blocks[at:to], self._per_block)
                self._write_index(at, to, keys)
                self._write_rows(at, to, keys)
            self._cut.written(self._number, int(self._blocks["birth"][to - 1]))
            at = to
            yield True
        if self._part is not None:
            self._close_part()

    def _write_index(self, at: int, to: int, keys: Array) -> None:
        columns: dict[str, Array] = {KEYS: keys}
        for name, (part, which, dtype) in self._numbers.items():
            if len(self._room.setdefault(name, np.empty(0, dtype))) < len(keys):
                self._room[name] = np.empty(len(keys), dtype)
            columns[name] = self._room[name][: len(keys)]
            self._cut.fill(self._number, part, which, at, to, columns[name])
        self._index.write(columns)

    def _write_rows(self, at: int, to: int, keys: Array) -> None:
        todo = at + np.flatnonzero(~self._covered[self._blocks["block"][at:to]] & (self._counts[at:to] > 0))
        if len(todo) == 0:
            return
        if self._part is None:
            self._part = PartFile(self._disk, f"{self._prefix}-{len(self._made):04d}.arrow", self._schema)
        starts = np.cumsum(self._counts[at:to]) - self._counts[at:to]
        if self._table.spec.slots:  # single rows: as many as lie next to each other in the order of birth
            for run in np.split(todo, np.flatnonzero(np.diff(todo) != 1) + 1):
                first, last = int(run[0]), int(run[-1]) + 1
                some = keys[int(starts[first - at]) :][: last - first]
                batch = gathered(self._table.schema, self._cut, self._number, (first, last), len(some))
                self._part.write(keyed(batch, some, self._schema), None)
        else:
            for k in todo.tolist():
                some = keys[int(starts[k - at]) :][: int(self._counts[k])]
                self._part.write(keyed(self._block(k), some, self._schema), int(some[0]))
        if self._part.bytes >= _PART_BYTES:
            self._close_part()

    def _block(self, k: int) -> pa.RecordBatch:
        block = self._blocks[k]
        address, owner = self._cut.block(self._number, int(block["block"]))
        span = int(block["first"]), int(block["count"])
        starts = self._cut.starts(self._number, int(block["block"]))
        schema, layout = self._table.schema, self._table._layout
        try:
            return arrow.block_to_arrow(
                schema, layout, address, *span, owner or self._cut, starts, shared=True, own_offsets=True, stored=True
            )
        finally:
            self._cut.going_on()  # where rows vary in length, their sizes are those of this block, or it is given up

    def _close_part(self) -> None:
        assert self._part is not None
        self._made.append(self._part.close())
        self._part = None

    def finish(self) -> TableRecord:
        """Return what the manifest says of the table."""
        names = BLOCK.names or ()
        of_blocks = ColumnFile(self._disk, f"{self._prefix}-blocks.arrow", {name: BLOCK[name] for name in names})
        of_blocks.write({name: self._blocks[name] for name in names})
        blocks = of_blocks.close()
        index = self._index.close()
        spec: dict[str, Any] = json.loads(replace(self._table.spec, schema=self._table._schema_now()).to_json())
        return TableRecord(
            spec, self._cut.state(self._number), self._per_block, self._table._layout.blocks,
            self._cut.rows(self._number), blocks, index, tuple(self._numbers), (*self._kept, *self._made),
        )  # fmt: skip


def _plan(folder: Path, old: tuple[Part, ...], all_blocks: Array, rows_per_block: int) -> tuple[list[Part], Array]:
    """Which files of the last checkpoint go on serving, and which blocks (by number) they cover.

    A file serves while every block in it is either gone or there in full, and half of its rows at least are of use.
    """
    n_blocks = len(all_blocks)
    by_block = np.zeros(n_blocks, BLOCK)
    by_block[all_blocks["block"]] = all_blocks
    covered = np.zeros(n_blocks, bool)
    kept: list[Part] = []
    for part in old:
        try:
            if (folder / part.file).stat().st_size != part.bytes:
                continue
            runs = runs_of(folder, part)
        except (OSError, CheckpointDamaged):
            continue
        block = runs.slots // rows_per_block
        if len(block) == 0 or int(block.max()) >= n_blocks:
            continue
        now = by_block[block]
        row = runs.slots - block * rows_per_block
        there = (now["generation"] == runs.generations) & (now["count"] > now["first"])
        whole = (row <= now["first"]) & (row + runs.rows == now["count"])
        live = int((now["count"] - now["first"])[there].sum())
        if (there & ~whole).any() or covered[block[there]].any() or live < _LEAST_LIVE * int(runs.rows.sum()):
            continue
        covered[block[there]] = True
        kept.append(part)
    return kept, covered
