"""The rows of a table in a checkpoint, a record batch at a time, with windows as the restored table would have them.

What says which rows there are, and which follows which, is read at once: some bytes a row. The rows' own columns are
read from where the manifest says that they lie, without a parser.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from conduit import rows as flags
from conduit import windows
from conduit.checkpoints import manifest as manifests
from conduit.checkpoints.index import NUMBERS, places_of
from conduit.checkpoints.manifest import Manifest
from conduit.checkpoints.reading import SavedTable, one_table, read_rows
from conduit.exchange.columns import indexable
from conduit.offline.steps import reduced
from conduit_store.arrays import Array
from conduit_store.column import Column
from conduit_store.errors import CheckpointDamaged, ConfigError
from conduit_store.ragged import Ragged

__all__ = ["SavedRows", "is_checkpoint"]

_USED_UP = 1 << 31  # layout.hpp, kUsedUp
_ACKED = 2**32 - 1  # kAcked
_OFFSETS = Column("offsets", np.dtype(np.int64))
_PIECE = 1 << 20  # rows whose links are followed at a time


def is_checkpoint(path: Path) -> bool:
    """Whether it is a folder that `store.checkpoint` has written."""
    return path.is_dir() and len(manifests.numbers(path)) > 0


class _Piece(NamedTuple):
    """A record batch: of which part, which of it, and which of the part's runs of rows it has."""

    part: int
    batch: int
    runs: slice


class SavedRows:
    """The live rows of a table of a checkpoint. `len` counts the pieces, `rows` the rows. Safe in any thread.

    Raises:
        CheckpointNotFound, CheckpointDamaged: see `conduit.checkpoints`. UnknownTable: says which there are.
    """

    def __init__(self, path: Path, table: str | None, number: int | None) -> None:
        stack = contextlib.ExitStack()
        self._folder = path
        self._close = weakref.finalize(self, stack.close)  # until then its files stay
        manifest = stack.enter_context(manifests.held(path, number))
        self.number = manifest.number
        self._saved = saved = _chosen(path, manifest, table)
        self.schema = saved.spec.schema
        rows = read_rows(saved)
        self.episodic = self.schema.is_episodic and "previous" in rows
        self._final = (rows["flags"] & flags.FINAL) != 0
        self._live = ~self._final
        if "times_sampled" in rows:
            self._live &= (rows["times_sampled"] & np.uint32(_USED_UP)) == 0
        if saved.spec.queue is not None:
            waiting = [rows[f"delivery:{consumer}"] != _ACKED for consumer in saved.spec.queue.consumers]
            self._live &= np.logical_or.reduce(waiting)
        self._numbers = {name.removeprefix(NUMBERS): rows[name] for name in rows if name.startswith(NUMBERS)}
        self.rows = int(self._live.sum())
        self._blocks = saved.blocks[saved.blocks["count"] > saved.blocks["first"]]
        counts = self._blocks["count"].astype(np.int64) - self._blocks["first"]
        self._starts = np.cumsum(counts) - counts  # where each block's rows begin among all rows
        self._order = np.full(saved.record.n_blocks, -1, np.int64)  # of a block by its number
        self._order[self._blocks["block"]] = np.arange(len(self._blocks))
        self._pieces: list[_Piece] = []
        self._runs = [self._place(part) for part in range(len(saved.record.parts))]
        self._previous: Array | None = rows.get("previous")
        self._after = np.zeros(0, np.int32)
        # of a table of episodes, by a block's place in the order: its piece, its first row, and where that lies
        self._of_block: dict[int, tuple[_Piece, int, int]] = {}
        self._window: windows.Row | windows.Transition | windows.NStep = windows.Row()

    def __len__(self) -> int:
        return len(self._pieces)

    def prepare(self, window: windows.Row | windows.Transition | windows.NStep) -> None:
        """Say what `read` is to make of rows. Once."""
        self._window = window
        if not isinstance(window, windows.Row):
            self._after = self._successors()
            for piece in self._pieces:
                firsts, offsets, _ = (values[piece.runs] for values in self._runs[piece.part])
                block = int(np.searchsorted(self._starts, firsts[0], side="right")) - 1
                self._of_block[block] = piece, int(firsts[0]), int(offsets[0])
        self._previous = None

    def read(self, index: int) -> dict[str, Array]:
        """Return the windows of a piece's live rows, by column: arrays of their own.

        Raises:
            CheckpointDamaged: its file cannot be read.
        """
        piece = self._pieces[index]
        firsts, offsets, counts = (values[piece.runs] for values in self._runs[piece.part])
        if isinstance(self._window, windows.Row):
            behind = np.cumsum(counts) - counts
            each = np.arange(int(counts.sum()))
            places, within = np.repeat(firsts - behind, counts) + each, np.repeat(offsets - behind, counts) + each
            chosen = self._live[places]
            return self._columns(piece, within[chosen], places[chosen])
        # Steps of episodes: a piece is a block, its rows one run.
        return self._windows(piece, int(firsts[0]), int(offsets[0]), int(counts[0]), self._window)

    # ---- which rows there are

    def _place(self, part: int) -> tuple[Array, Array, Array]:
        """Of each run of a part: its first row among all rows, where in its batch that lies, and how many are there."""
        runs, per_block = self._saved.runs[part], self._saved.rows_per_block
        number = runs.slots // per_block
        order = self._order[number]
        some = len(self._blocks) > 0
        now = self._blocks[np.maximum(order, 0)] if some else np.zeros(len(order), self._saved.blocks.dtype)
        first = now["first"].astype(np.int64)
        row = runs.slots - number * per_block
        begin, end = np.maximum(row, first), np.minimum(row + runs.rows, now["count"])
        there = (order >= 0) & (now["generation"] == runs.generations) & (begin < end)
        counts = np.where(there, end - begin, 0)
        within = np.zeros(len(order), np.int64)
        run = 0
        for batch, said in enumerate(self._saved.record.parts[part].batches):
            n = 1 if said.key is not None else said.rows
            within[run : run + n] = np.arange(n)
            if counts[run : run + n].any():
                self._pieces.append(_Piece(part, batch, slice(run, run + n)))
            run += n
        places = self._starts[np.maximum(order, 0)] + begin - first if some else within
        return places, within + begin - row, counts

    def _successors(self) -> Array:
        """Which row follows each in its episode, -1 where there is none: as the core tells it (TableCore::linked)."""
        assert self._previous is not None
        n, per_block = len(self._previous), self._saved.rows_per_block
        after = np.full(n, -1, np.int32)
        for start in range(0, n, _PIECE):
            before = self._previous[start : start + _PIECE].astype(np.int64)
            places = np.arange(start, start + len(before))
            known = before < len(self._order) * per_block
            number, row = np.divmod(np.where(known, before, 0), per_block)
            order = self._order[number]
            block = self._blocks[np.maximum(order, 0)]
            at = self._starts[np.maximum(order, 0)] + row - block["first"]
            # Of a block that is there, and not of one that has been given away since: that would be younger.
            known &= (order >= 0) & (row >= block["first"]) & (row < block["count"]) & (at < places)
            after[at[known]] = places[known]
        return after

    # ---- their columns

    def _columns(
        self, piece: _Piece, within: Array, places: Array, names: frozenset[str] | None = None
    ) -> dict[str, Array]:
        """Rows of a piece, by their number in it and among all rows; only columns of these `names`, if any."""
        part = self._saved.record.parts[piece.part]
        lowest, end = (int(within.min()), int(within.max()) + 1) if len(within) else (0, 0)
        found: dict[str, Array] = {}
        with self._file(piece.part) as fd:
            for column, buffer in zip(self.schema.columns, places_of(self.schema), strict=True):
                if names is not None and column.name not in names:
                    continue
                if column.name in self._numbers:  # as they were at the cut; in the files they may be older
                    found[column.name] = self._numbers[column.name][places].view(column.dtype)
                    continue
                buffers = part.batches[piece.batch].buffers
                if column.ragged:
                    rows = _read_ragged(fd, part.file, column, buffers[buffer : buffer + 2], lowest, end)
                    chosen = rows if len(within) == end - lowest else rows[within - lowest]
                    found[column.name] = indexable(column, chosen)
                    continue
                values = _read(fd, part.file, column, buffers[buffer][0], lowest, end)
                found[column.name] = values if len(within) == end - lowest else values[within - lowest]
        return found

    @contextlib.contextmanager
    def _file(self, part: int) -> Iterator[int]:
        path = self._folder / self._saved.record.parts[part].file
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointDamaged(f"{path} cannot be read: {error}") from error
        try:
            yield fd
        finally:
            os.close(fd)

    # ---- steps of episodes

    def _windows(
        self, piece: _Piece, first: int, within: int, n: int, window: windows.Transition | windows.NStep
    ) -> dict[str, Array]:
        steps = window.n if isinstance(window, windows.NStep) else 1
        beyond = self._beyond(first, n, steps)
        places = np.concatenate([np.arange(first, first + n), beyond])
        arrays = self._columns(piece, np.arange(within, within + n), places[:n])
        wanted = frozenset(["reward", "terminated", "truncated", *(column.name for column in self.schema.obs)])
        for name, values in self._far(beyond, wanted).items():
            arrays[name] = np.concatenate([arrays[name], values])
        after = self._after[places].astype(np.int64)
        here = (after >= first) & (after < first + n)
        far = np.searchsorted(beyond, after)
        there = ~here & (after >= 0)
        there[there] = (far[there] < len(beyond)) & (beyond[np.minimum(far[there], len(beyond) - 1)] == after[there])
        after = np.where(here, after - first, np.where(there, n + far, -1))
        known = (after >= 0) & ~self._final[places]
        following = {column.name: arrays[column.name][np.maximum(after, 0)] for column in self.schema.obs}
        onward = np.where((after >= 0) & self._final[places[after]], -1, after)
        chosen = np.flatnonzero(known[:n] & self._live[first : first + n])
        return reduced(self.schema, arrays, onward, known, following, window, chosen)

    def _beyond(self, first: int, n: int, steps: int) -> Array:
        """Rows of other pieces that windows of these rows need, ascending."""
        found: list[Array] = []
        # Only from the rows that leave the piece: within it their windows lie anyhow.
        edge = self._after[first : first + n].astype(np.int64)
        edge = edge[(edge >= 0) & ((edge < first) | (edge >= first + n))]
        for _ in range(steps):
            if len(edge) == 0:
                break
            found.append(edge)
            edge = self._after[edge[~self._final[edge]]].astype(np.int64)
            edge = edge[edge >= 0]
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def _far(self, places: Array, names: frozenset[str]) -> dict[str, Array]:
        """Columns of single rows, ascending, wherever they lie."""
        parts: list[dict[str, Array]] = []
        order = np.searchsorted(self._starts, places, side="right") - 1
        for block in np.unique(order).tolist():
            some = places[order == block]
            piece, first, within = self._of_block[block]
            parts.append(self._columns(piece, some - first + within, some, names))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _chosen(path: Path, manifest: Manifest, table: str | None) -> SavedTable:
    names = [str(record.spec["name"]) for record in manifest.tables]
    if table is None and len(names) != 1:
        raise ConfigError(f"checkpoint {manifest.number} in {path} has {', '.join(names) or 'no tables'}: say which")
    return one_table(path, manifest, names[0] if table is None else table)


def _read(fd: int, name: str, column: Column, offset: int, start: int, stop: int) -> Array:
    """Rows [start, stop) of a column that begins at `offset`."""
    values: Array = np.empty((stop - start, *column.shape), column.dtype)
    view = values.reshape(-1).view(np.uint8).data if values.size else memoryview(b"")
    at = offset + start * column.row_bytes
    while view:
        try:
            got = os.preadv(fd, [view], at)
        except OSError as error:
            raise CheckpointDamaged(f"{name} cannot be read: {error}") from error
        if got == 0:
            raise CheckpointDamaged(f"{name} ends {len(view):,} bytes early")
        view, at = view[got:], at + got
    return values


def _read_ragged(
    fd: int, name: str, column: Column, buffers: Sequence[tuple[int, int]], start: int, stop: int
) -> Ragged:
    """Rows [start, stop) of a column whose rows vary in length: from its offsets and its elements."""
    (at, _), (elements, nbytes) = buffers
    offsets = _read(fd, name, _OFFSETS, at, start, stop + 1)
    most = nbytes // column.element_bytes
    if offsets[0] < 0 or offsets[-1] > most or (np.diff(offsets) < 0).any():
        raise CheckpointDamaged(
            f"{name} has rows of column {column.name!r} from element {offsets[0]} to {offsets[-1]}, of {most}"
        )
    values = _read(fd, name, column.elements, elements, int(offsets[0]), int(offsets[-1]))
    return Ragged(values, offsets - offsets[0], text=column.text)
