"""A table's rows, oldest first, as Arrow tables of steps; see frame.py for their form.

Which rows: those that were published at the call. Which blocks there are, and how far they are filled, is noted then;
each is pinned only while its rows are copied. So writers go on, every row is whole, and rows that are evicted before
their turn are left out. Within an episode rows come in order, and episodes that were written side by side come mixed.

The last row of each chain in a block waits for the row that follows it, which a later block has: only then is it known
whether that is one more step or the final observation. At most one row for each running episode waits at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from conduit import rows
from conduit.blocks import BlockView
from conduit.exchange.frame import PRIORITY, Frame, outer
from conduit.histogram import scan_keys
from conduit_store.arrays import Array
from conduit_store.errors import StaleKey
from conduit_store.schema import Column

if TYPE_CHECKING:
    from conduit.table import Table

__all__ = ["Outflow"]

_NO_KEY = 2**64 - 1  # what the core says where no row follows
_LATER = -2  # a row that waits goes on waiting
_PIECE = 4096  # rows copied at a time where rows leave one by one


class _Place(NamedTuple):
    """Where an episode is to go on in another block: its number, the next row's, and which waiting row is before it."""

    episode: int
    step: int
    held: int


class Outflow:
    """Iterate once over a table's rows. `rows_expected` says how many there are, final observations among them."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.frame = Frame.of_table(table.spec, table._schema_now())
        self.schema = self.frame.to_arrow()
        self.episodes = 0
        self._places: dict[int, _Place] = {}  # by the key of the row that is to come
        self._held: pa.Table | None = None  # rows that wait, in the exported form but for the final observation
        self._keys: Array | None = None
        self._cut: list[tuple[int, int, int]] = []
        if table.spec.slots:
            self._keys = scan_keys(table._native)
            self.rows_expected = len(self._keys)
            return
        for index in table._native.live_blocks():
            with contextlib.suppress(StaleKey):  # evicted meanwhile
                block = table.block(index)
                self._cut.append((index, block.generation, block.stop))
        self.rows_expected = len(table)

    def __iter__(self) -> Iterator[pa.Table]:
        """Iterate over pieces of at most about a block.

        Raises:
            StoreClosed: the store was closed here. LockTimeout: a stopped process holds the index lock.
        """
        if self._keys is not None:
            yield from self._single_rows()
            return
        for index, generation, stop in self._cut:
            with contextlib.suppress(StaleKey):  # all of it has been evicted meanwhile
                block = self._table.block(index)
                if block.generation == generation:
                    piece = self._steps(block, stop) if self.frame.episode is not None else self._rows(block, stop)
                    del block  # the pin
                    if len(piece):
                        yield piece
        if self._held is not None and len(self._held):  # whose next row nobody has written yet
            yield self._finished(self._held, None, None)

    # ---- rows without episodes

    def _rows(self, block: BlockView, stop: int) -> pa.Table:
        n = min(block.stop, stop) - block.start
        data, keys = block.to_arrow().slice(0, n), block.keys[:n]
        live = None
        if self._table.spec.max_times_sampled is not None:  # single rows have left
            live = np.flatnonzero(np.frombuffer(self._table._native.links(keys, n)[0], np.uint8))
            keys = keys[live]
        return self._finished(self._data(data, keys, live), None, None)

    def _single_rows(self) -> Iterator[pa.Table]:
        assert self._keys is not None
        for start in range(0, len(self._keys), _PIECE):
            keys = self._keys[start : start + _PIECE]
            while len(keys):
                try:
                    batch = self._table.rows(keys).to_arrow()
                except StaleKey:  # some have left meanwhile
                    keys = keys[np.frombuffer(self._table._native.links(keys, len(keys))[0], np.uint8) != 0]
                    continue
                yield self._finished(self._data(batch, keys, None), None, None)
                break

    # ---- steps of episodes

    def _steps(self, block: BlockView, stop: int) -> pa.Table:
        n = min(block.stop, stop) - block.start
        if n <= 0:
            return self.schema.empty_table()
        keys = block.keys[:n]
        live, flags, following, numbers = (
            np.frombuffer(text, kind)
            for text, kind in zip(self._table._native.links(keys, n), ("?", "u1", "u8", "u4"), strict=True)
        )
        final = (flags & rows.FINAL) != 0
        # The row of this block that follows each (-1: none), and whether it is one of another block.
        at = following - keys[0]  # wraps around to far beyond n for rows before, of which there are none
        here = at < n
        here[here] = live[at[here].astype(np.int64)]
        after = np.where(here, at, 0).astype(np.int64) - ~here
        first_key = int(keys[0]) - block.start
        span = first_key, first_key + self._table._layout.rows
        elsewhere = ~((following >= span[0]) & (following < span[1])) & (following != _NO_KEY)
        episode, step, held_after = self._number(keys, live, flags, numbers, after, span)

        data = block.to_arrow().slice(0, n)
        is_step = live & ~final
        waits = is_step & elsewhere
        links = [pa.array(episode), pa.array(step)]
        parts: list[pa.Table] = []
        held, self._held = self._held, None
        waiting: list[pa.Table] = []
        if held is not None:
            known, still = np.flatnonzero(held_after != _LATER), np.flatnonzero(held_after == _LATER)
            parts.append(self._finished(held.take(pa.array(known)), data, _finals(held_after[known], final)))
            waiting += [held.take(pa.array(still))] if len(still) else []
            where = {int(old): new for new, old in enumerate(still)}
            self._places = {key: place._replace(held=where[place.held]) for key, place in self._places.items()}
        done, late = np.flatnonzero(is_step & ~waits), np.flatnonzero(waits)
        parts.append(self._finished(self._data(data, keys[done], done, links), data, _finals(after[done], final)))
        before = sum(map(len, waiting))
        waiting += [self._data(data, keys[late], late, links)] if len(late) else []
        for position, row in enumerate(late.tolist()):
            self._places[int(following[row])] = _Place(int(episode[row]), int(step[row]) + 1, before + position)
        self._held = pa.concat_tables(waiting).combine_chunks() if waiting else None
        return pa.concat_tables(parts)

    def _number(
        self, keys: Array, live: Array, flags: Array, numbers: Array, after: Array, span: tuple[int, int]
    ) -> tuple[Array, Array, Array]:
        """Number the rows of a block. Also say which row of it follows each of those that wait: _LATER where that is in
        another block, -1 where it was to be in this one (`span` are its keys) and is gone.

        `numbers`: of the rows in their episodes, where the table keeps them, else of length 0. Where it does not, an
        episode whose first row is gone begins at step 1: how many came before is not known, but that some did."""
        n = len(keys)
        episode, step = np.zeros(n, np.int64), np.zeros(n, np.int64)
        held_after = np.full(0 if self._held is None else len(self._held), _LATER, np.int64)
        before = np.full(n, -1, np.int64)
        before[after[after >= 0]] = np.flatnonzero(after >= 0)
        # Runs of rows that follow each other directly: one for a single environment, one a row for many.
        joined = (before == np.arange(n) - 1) & (before >= 0)
        starts = np.flatnonzero(~joined)
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), n], strict=True):
            if not live[first]:
                continue
            place = self._places.pop(int(keys[first]), None)
            if place is not None:
                held_after[place.held] = first
                number, at = place.episode, place.step
            elif before[first] >= 0:
                number, at = int(episode[before[first]]), int(step[before[first]]) + 1
            elif flags[first] & rows.FINAL:
                continue  # its episode's steps have all been evicted
            else:
                number = self.episodes
                at = 0 if flags[first] & rows.FIRST else int(numbers[first]) if len(numbers) else 1
                self.episodes += 1
            episode[first:end] = number
            step[first:end] = np.arange(at, at + end - first)
        for key in [key for key in self._places if span[0] <= key < span[1]]:
            held_after[self._places.pop(key).held] = -1
        return episode, step, held_after

    def _data(
        self, data: pa.RecordBatch, keys: Array, chosen: Array | None, links: list[pa.Array] | None = None
    ) -> pa.Table:
        """Copy rows of a block, so that it need not stay pinned."""
        arrays = [
            *(links or []),
            *(self._outer(column, array) for column, array in zip(self.frame.schema.valued, data.columns, strict=True)),
        ]
        names = [name for name in self.schema.names if name not in self.frame.finals and name != PRIORITY]
        indices = pa.array(np.arange(len(data)) if chosen is None else chosen)
        arrays = [array.take(indices) for array in arrays]
        if self.frame.prioritized:
            known = self._table.priorities(keys, window=self._priority_window)
            arrays.append(pa.array(known, pa.float32(), mask=np.isnan(known)))
            names.append(PRIORITY)
        return pa.table(dict(zip(names, arrays, strict=True)))

    def _outer(self, column: Column, array: pa.Array) -> pa.Array:
        """As `outer`; categories with one dictionary for all pieces: the one of the beginning has them all."""
        if not column.categorical:
            return outer(array)
        return pa.DictionaryArray.from_arrays(array.indices, pa.array(column.values, pa.string()), safe=False)

    @property
    def _priority_window(self) -> str:
        return next(view.name for view in self._table.spec.views if view.prioritized)

    def _finished(self, part: pa.Table, data: pa.RecordBatch | None, finals: pa.Array | None) -> pa.Table:
        """Add the final observations, by their positions in `data`; none anywhere without."""
        columns = {name: part.column(name) for name in part.column_names}
        for name, column in (self.frame.finals if self.frame.episode is not None else {}).items():
            if finals is None or data is None:
                columns[name] = pa.nulls(len(part), self.schema.field(name).type)
            else:
                columns[name] = self._outer(column, data.column(column.name)).take(finals)
        return pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _finals(after: Array, final: Array) -> pa.Array:
    """Positions of final observations for `take`: null where a step is followed by another step, or by nothing."""
    there = after >= 0
    there[there] = final[after[there]]
    return pa.array(np.where(there, after, 0), mask=~there)
