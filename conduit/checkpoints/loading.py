"""Files of a checkpoint into memory or into a table, each held against its size and checksum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from conduit.checkpoints.manifest import Part
from conduit_store.arrays import Array
from conduit_store.errors import CheckpointDamaged
from conduit_store.native import native

__all__ = ["load", "load_columns", "read_into", "values_of"]


def load(folder: Path, part: Part, room: Array | None = None) -> Array:
    """Return the bytes of a file, uint8 (n,). `room`: memory to put them in.

    Raises:
        CheckpointDamaged: names the file and what is wrong with it. So do the others here.
    """
    with _file(folder, part) as fd:
        memory = np.empty(part.bytes, np.uint8) if room is None else room[: part.bytes]
        _check_sum(folder, part, _read(fd, memory, 0, 0, part))
    return memory


def load_columns(
    folder: Path, part: Part, kinds: dict[str, np.dtype[Any]], look: Callable[[int, Array], None] | None = None
) -> dict[str, Array]:
    """Return the columns of a file of numbers, all batches together: (rows,) each.

    `look(row, values)` is called with the first column of each batch, whose first row is number `row`; that column is
    then not returned.
    """
    with _file(folder, part) as fd:
        for batch in part.batches:
            _check_widths(part, batch.buffers, [dtype.itemsize * batch.rows for dtype in kinds.values()])
        columns = {name: np.empty(part.rows, dtype) for name, dtype in kinds.items()}
        first = next(iter(kinds))
        if look is not None:
            columns[first] = np.empty(max((batch.rows for batch in part.batches), default=0), kinds[first])
        at = row = crc = 0
        for batch in part.batches:
            for number, (column, (offset, length)) in enumerate(zip(columns.values(), batch.buffers, strict=True)):
                begin = 0 if look is not None and number == 0 else row
                values = column[begin : begin + batch.rows]
                crc = _read(fd, np.empty(offset - at, np.uint8), at, crc, part)
                crc = _read(fd, values.view(np.uint8), offset, crc, part)
                at = offset + length
                if look is not None and number == 0:
                    look(row, values)
            row += batch.rows
        crc = _read(fd, np.empty(part.bytes - at, np.uint8), at, crc, part)
        _check_sum(folder, part, crc)
    if look is not None:
        del columns[first]
    return columns


def read_into(folder: Path, part: Part, table: native.Table, extents: list[tuple[int, int, int]], data_fd: int) -> None:
    """Read a file, rows straight to where they belong in `table`.

    `extents`: (offset in the file, bytes, offset in the table's rows). `data_fd`: the segment that these lie in.
    """
    with _file(folder, part) as fd:
        _check_sum(folder, part, native.read_part(fd, part.bytes, table, extents, data_fd))


def values_of(memory: Array, part: Part, batch: int, column: int, dtype: np.dtype[Any]) -> Array:
    """Return one column of a batch of a file that was loaded: (rows,) of a dtype whose size the file must have."""
    rows, buffers = part.batches[batch].rows, part.batches[batch].buffers
    _check_widths(part, buffers[column : column + 1], [rows * dtype.itemsize])
    offset, length = buffers[column]
    values: Array = np.frombuffer(memory[offset : offset + length], dtype)
    return values


def _check_widths(part: Part, buffers: tuple[tuple[int, int], ...], wanted: list[int]) -> None:
    if [length for _, length in buffers] != wanted:
        raise CheckpointDamaged(f"{part.file} has columns of {[n for _, n in buffers]} bytes, expected are {wanted}")


@contextmanager
def _file(folder: Path, part: Part) -> Iterator[int]:
    path = folder / part.file
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size != part.bytes:
                raise CheckpointDamaged(f"{path} has {size:,} bytes, and was written with {part.bytes:,}")
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        if isinstance(error, CheckpointDamaged):
            raise
        raise CheckpointDamaged(f"{path} cannot be read: {error}") from error


def _read(fd: int, memory: Array, at: int, crc: int, part: Part) -> int:
    """Fill `memory` from the file; returns the checksum up to there."""
    view = memory.data
    while view:
        got = os.preadv(fd, [view], at)
        if got == 0:
            raise CheckpointDamaged(f"{part.file} ends {len(view):,} bytes early")
        crc = native.crc32c(view[:got], crc)
        view = view[got:]
        at += got
    return crc


def _check_sum(folder: Path, part: Part, crc: int) -> None:
    if crc != part.crc32c:
        raise CheckpointDamaged(
            f"{folder / part.file} was changed after it was written: its checksum is {crc:08x}, and was "
            f"{part.crc32c:08x}"
        )
