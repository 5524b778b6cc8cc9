"""What is saved of blocks and rows beside the rows' own columns: its names, its dtypes, and keys.

A key is 36 bits of the block's generation above 28 bits of slot (block times rows a block, plus row).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conduit.checkpoints.manifest import Part
from conduit.spec import TableSpec
from conduit_store.arrays import Array
from conduit_store.errors import CheckpointDamaged
from conduit_store.schema import Schema

__all__ = ["BLOCK", "NUMBERS", "SLOT_BITS", "KeyOrder", "Runs", "keys_of", "places_of", "row_columns", "runs_of"]

SLOT_BITS = 28
NUMBERS = "column:"  # mutable columns by their names; in the files of rows they may be older
_MANY_ROWS = 64  # of a block, from which on it pays to look at blocks one by one
# One block, as the core has it (cut.hpp, SavedBlock): rows [first, count) are in; birth 0: it is free.
BLOCK = np.dtype(
    [("block", "u4"), ("first", "u4"), ("count", "u4"), ("sealed", "u4"), ("generation", "u8"), ("birth", "u8"),
     ("writer", "u8")]
)  # fmt: skip
_FLAGS, _PREVIOUS, _STEP, _RAW, _MARK, _USES, _WORD, _STAMP, _NUMBER = range(9)  # RowPart of the core


def row_columns(spec: TableSpec) -> dict[str, tuple[int, int, np.dtype[Any]]]:
    """Return what may be saved of each row: name -> (the core's number, of which view, consumer or column, dtype)."""
    columns: dict[str, tuple[int, int, np.dtype[Any]]] = {
        "flags": (_FLAGS, 0, np.dtype("u1")),
        "previous": (_PREVIOUS, 0, np.dtype("u4")),
        "step": (_STEP, 0, np.dtype("u4")),
        "times_sampled": (_USES, 0, np.dtype("u4")),
        "stamp": (_STAMP, 0, np.dtype("u8")),
    }
    for view in spec.views:
        columns[f"priority:{view.name}"] = (_RAW, view.index, np.dtype("f4"))
        columns[f"epoch:{view.name}"] = (_MARK, view.index, np.dtype("u4"))
    for number, consumer in enumerate(spec.queue.consumers if spec.queue is not None else ()):
        columns[f"delivery:{consumer}"] = (_WORD, number, np.dtype("u4"))
    for number, column in enumerate(spec.schema.columns):
        if column.mutable:
            plain = {"b": "u1", "M": "i8", "m": "i8"}.get(column.dtype.kind, column.dtype.str)
            columns[f"{NUMBERS}{column.name}"] = (_NUMBER, number, np.dtype(plain))
    return columns


def keys_of(blocks: Array, rows_per_block: int) -> Array:
    """Keys of the rows of some blocks, in order: uint64 (n,)."""
    counts, firsts = _first_keys(blocks, rows_per_block)
    if len(blocks) * _MANY_ROWS < int(counts.sum()):
        runs = [np.arange(first, first + n, dtype=np.uint64) for first, n in zip(firsts, counts, strict=True)]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)
    starts = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(starts, counts)
    keys: Array = np.repeat(firsts, counts) + within.astype(np.uint64)
    return keys


class KeyOrder:
    """Keys of the rows of some blocks, a piece at a time."""

    def __init__(self, blocks: Array, rows_per_block: int) -> None:
        self._blocks = blocks
        self._per_block = rows_per_block
        counts, _ = _first_keys(blocks, rows_per_block)
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def keys(self, start: int, stop: int) -> Array:
        """Keys of rows [start, stop): uint64, as many as there are."""
        first, last = np.searchsorted(self._starts, [start, stop], side="right") - 1
        some = self._blocks[int(first) : int(last) + 1]
        before = start - int(self._starts[first])
        return keys_of(some, self._per_block)[before : before + stop - start]


def _first_keys(blocks: Array, rows_per_block: int) -> tuple[Array, Array]:
    counts = blocks["count"].astype(np.int64) - blocks["first"]
    firsts = (blocks["generation"] << np.uint64(SLOT_BITS)) + blocks["first"]
    firsts += blocks["block"].astype(np.uint64) * np.uint64(rows_per_block)
    return counts, firsts


def places_of(schema: Schema) -> list[int]:
    """Which of a batch's buffers is the first of each column: keys come before them, and elements after offsets."""
    places: list[int] = []
    at = 1
    for column in schema.columns:
        places.append(at)
        at += 2 if column.ragged else 1
    return places


class Runs(NamedTuple):
    """Rows of a file that have consecutive keys: slot of the first one, generation, how many; all int64 (n,)."""

    slots: Array
    generations: Array
    rows: Array


def runs_of(folder: Path, part: Part) -> Runs:
    """Return which rows a file has, in order.

    Raises:
        CheckpointDamaged: it is shorter than its manifest says. OSError: it cannot be read.
    """
    firsts: list[Array] = []
    counts: list[Array] = []
    fd = -1
    try:
        for batch in part.batches:
            if batch.key is not None:
                firsts.append(np.array([batch.key], np.uint64))
                counts.append(np.array([batch.rows], np.int64))
                continue
            if fd < 0:
                fd = os.open(folder / part.file, os.O_RDONLY | os.O_CLOEXEC)
            offset, length = batch.buffers[0] if batch.buffers else (0, 0)
            text = os.pread(fd, length, offset)
            if length != batch.rows * 8 or len(text) != length:
                raise CheckpointDamaged(f"{folder / part.file}: {len(text):,} bytes of keys for {batch.rows:,} rows")
            firsts.append(np.frombuffer(text, np.uint64))
            counts.append(np.ones(batch.rows, np.int64))
    finally:
        if fd >= 0:
            os.close(fd)
    keys = np.concatenate(firsts) if firsts else np.zeros(0, np.uint64)
    rows = np.concatenate(counts) if counts else np.zeros(0, np.int64)
    slots = (keys & np.uint64((1 << SLOT_BITS) - 1)).astype(np.int64)
    return Runs(slots, (keys >> np.uint64(SLOT_BITS)).astype(np.int64), rows)
