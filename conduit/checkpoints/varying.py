"""Rows that vary in length, for a table of another shape.

How long they are is read first; then blocks are planned, the newest rows first, as many as there is room for; then
rows are copied to where they go. Lengths are read before their file is held against its checksum, so that they are
looked at again when the rows are copied.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conduit.checkpoints.index import BLOCK, places_of
from conduit.checkpoints.manifest import Batch, Part
from conduit.checkpoints.reading import SavedTable
from conduit.checkpoints.reshaping import Changes, Shape
from conduit.spec import TableSpec
from conduit_store.arrays import Array
from conduit_store.column import Column
from conduit_store.errors import CheckpointDamaged
from conduit_store.layout import ALIGN
from conduit_store.ragged_values import as_ragged_row

if TYPE_CHECKING:
    from conduit.table import Table

__all__ = ["VaryingShape"]


class _Group(NamedTuple):
    """Rows [first, last) of those saved, which share a run of `span` blocks from `block` on."""

    first: int
    last: int
    span: int
    block: int


class VaryingShape(Shape):
    """As `Shape`, where rows vary in length.

    Call `divide` before blocks get places, `prepare` after, and then `put` for each batch.
    """

    def __init__(self, saved: SavedTable, rows: dict[str, Array], spec: TableSpec, changes: Changes) -> None:
        self._saved = saved
        self._columns = spec.schema.ragged
        self._layout = spec.block_layout()
        self._defaults = {
            column.name: _elements(column, changes.defaults[column.name])
            for column in self._columns
            if column.name not in saved.spec.schema
        }
        # Of each column: elements of all rows before each.
        self._sums = {column.name: self._sum(column) for column in self._columns}
        self._groups: list[_Group] = []
        self._starts: dict[int, dict[str, int]] = {}  # by block: where each column's elements begin in it
        super().__init__(saved, rows, spec)

    # ---- plan

    def _sum(self, column: Column) -> Array:
        n = self._saved.record.rows
        lengths = np.zeros(n, np.int64)
        if (default := self._defaults.get(column.name)) is not None:
            lengths[:] = len(default)
            return np.concatenate([[0], np.cumsum(lengths)])
        buffer = places_of(self._saved.spec.schema)[self._saved.spec.schema.names.index(column.name)]
        blocks = self._saved.blocks[self._saved.blocks["count"] > self._saved.blocks["first"]]
        counts = blocks["count"].astype(np.int64) - blocks["first"]
        begins = dict(zip(blocks["block"].tolist(), (np.cumsum(counts) - counts).tolist(), strict=True))
        by_number = dict(zip(blocks["block"].tolist(), blocks, strict=True))
        for part, runs in zip(self._saved.record.parts, self._saved.runs, strict=True):
            fd = os.open(self._saved.folder / part.file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for k, batch in enumerate(part.batches):
                    number, row = divmod(int(runs.slots[k]), self._saved.rows_per_block)
                    block = by_number.get(number)
                    if block is None or int(block["generation"]) != int(runs.generations[k]):
                        continue
                    skipped = max(row, int(block["first"])) - row
                    some = np.diff(_offsets(fd, part, batch, buffer))[skipped : int(block["count"]) - row]
                    lengths[begins[number] : begins[number] + len(some)] = some
            finally:
                os.close(fd)
        return np.concatenate([[0], np.cumsum(lengths)])

    def _sizes(self, first: int, last: int) -> list[int]:
        """Bytes of each column's elements of some rows, as they lie in a block."""
        sizes: list[int] = []
        for column in self._columns:
            sums = self._sums[column.name]
            sizes.append(-(-int(sums[last] - sums[first]) * column.element_bytes // ALIGN) * ALIGN)
        return sizes

    def _room(self, spec: TableSpec, n: int) -> int:
        layout = self._layout
        left = layout.blocks - min(spec.max_writers, layout.blocks - 1)
        room = layout.block_bytes - layout.values
        last = n
        while last > 0:
            low, first = max(0, last - layout.rows), last - 1
            while low < first:  # the first row from which on all of them fit
                middle = (low + first) // 2
                low, first = (low, middle) if sum(self._sizes(middle, last)) <= room else (middle + 1, first)
            span = max(1, -(-(layout.values + sum(self._sizes(first, last))) // layout.block_bytes))
            if span > left:
                break
            left -= span
            self._groups.append(_Group(first, last, span, 0))
            last = first
        return n - last

    def _blocks(self, saved: SavedTable, rows: int, n_blocks: int) -> Array:
        oldest = int(self.keep[0]) if len(self.keep) else saved.record.rows
        groups, at = [], 0
        for group in reversed(self._groups):
            if group.last > oldest:
                groups.append(group._replace(first=max(group.first, oldest), block=at))
                at += group.span
        self._groups = groups
        used = [group.block for group in groups]
        blocks = np.zeros(n_blocks, BLOCK)
        blocks["block"] = [*used, *sorted(set(range(n_blocks)) - set(used))]
        blocks["generation"] = (int(saved.blocks["generation"].max(initial=0)) + 1) & ((1 << 36) - 1)
        blocks["birth"][: len(used)] = np.arange(1, len(used) + 1)
        blocks["count"][: len(used)] = [group.last - group.first for group in groups]
        blocks["sealed"][: len(used)] = 1  # elements lie close together: no writer goes on here
        return blocks

    def _slots(self, rows: int) -> Array:
        slots = [group.block * rows + np.arange(group.last - group.first) for group in self._groups]
        return np.concatenate(slots) if slots else np.zeros(0, np.int64)

    # ---- copy

    def divide(self, table: Table) -> None:
        """Divide the blocks."""
        for group in self._groups:
            at = self._layout.values
            self._starts[group.block] = {}
            for column, size in zip(self._columns, self._sizes(group.first, group.last), strict=True):
                self._starts[group.block][column.name] = at
                at += size
            table._native.divide(group.block, group.span, list(self._starts[group.block].values()))

    def prepare(self, table: Table) -> None:
        """Say where each row's elements are."""
        for group in self._groups:
            for column in self._columns:
                sums = self._sums[column.name]
                ends = sums[group.first : group.last + 1] - sums[group.first]
                at = self._layout.offsets[table.schema.names.index(column.name)]
                table._native.put(group.block, at, _bytes(ends))
                default = self._defaults.get(column.name)
                if default is not None:
                    elements = np.tile(default.reshape(-1), group.last - group.first)
                    table._native.put(group.block, self._starts[group.block][column.name], _bytes(elements))

    def put(self, table: Table, column: Column, memory: Array, part: Part, batch: int, there: Array, to: Array) -> None:
        """Copy the elements of a batch's rows `there` (bool) to where these go, slots `to`."""
        if column.name in self._defaults or len(to) == 0:
            return
        before = self._saved.spec.schema.column(column.name)
        buffer = places_of(self._saved.spec.schema)[self._saved.spec.schema.names.index(column.name)]
        offset, length = part.batches[batch].buffers[buffer]
        offsets = np.frombuffer(memory[offset : offset + length], np.int64)
        offset, length = part.batches[batch].buffers[buffer + 1]
        elements = memory[offset : offset + length]
        chosen = np.flatnonzero(there)
        number, row = np.divmod(to.astype(np.int64), self._layout.rows)
        groups = {group.block: group for group in self._groups}
        begins = np.flatnonzero(np.diff(number, prepend=-1))
        for first, last in zip(begins.tolist(), [*begins[1:].tolist(), len(to)], strict=True):
            group = groups[int(number[first])]
            sums = self._sums[column.name]
            at = group.first + int(row[first])
            span = int(offsets[chosen[first]]), int(offsets[chosen[last - 1] + 1])
            if span[1] - span[0] != int(sums[at + last - first] - sums[at]):
                raise CheckpointDamaged(f"{part.file} has changed while it was read")
            values = elements[span[0] * before.element_bytes : span[1] * before.element_bytes]
            if before.dtype != column.dtype:
                values = np.frombuffer(values, before.dtype).astype(column.dtype)
            place = self._starts[group.block][column.name] + int(sums[at] - sums[group.first]) * column.element_bytes
            table._native.put(group.block, place, _bytes(values))


def _bytes(values: Any) -> memoryview:
    view: Array = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return view.data


def _elements(column: Column, value: Any) -> Array:
    """Return the elements of one row: (length, *inner); none of a null."""
    if value is None:
        return np.zeros((0, *column.shape[1:]), column.dtype)
    row = as_ragged_row(column, value)
    elements: Array = np.frombuffer(row, np.uint8) if column.text is not None else np.ascontiguousarray(row)
    return elements


def _offsets(fd: int, part: Part, batch: Batch, buffer: int) -> Array:
    """Offsets of a batch's rows, from 0 on."""
    offset, length = batch.buffers[buffer]
    text = os.pread(fd, length, offset)
    offsets = np.frombuffer(text, np.int64) if len(text) == length else np.zeros(0, np.int64)
    if len(offsets) != batch.rows + 1 or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] > part.bytes:
        raise CheckpointDamaged(f"{part.file} has rows that lie outside of it")
    return offsets

