"""Files of a checkpoint: Arrow IPC, which any Arrow tool reads, summed and located as they are written.

pyarrow hands the file what it has serialised as bytes and every column as a buffer, in order: so the places of the
columns are known without a parser, and reading them back needs none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from conduit.checkpoints.manifest import Batch, Part
from conduit_store import arrow
from conduit_store.arrays import Array
from conduit_store.errors import MissingExtra
from conduit_store.layout import ALIGN, BlockLayout
from conduit_store.native import native
from conduit_store.schema import Schema

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingExtra("checkpoints are Arrow files and need pyarrow. Run `pip install pyarrow`") from error

__all__ = ["KEYS", "ColumnFile", "Disk", "PartFile", "gathered", "keyed", "keyed_schema"]

KEYS = "keys"  # tables have no column of that name


class Disk:
    """Where files of one checkpoint are written: knows how many bytes, and which to take away if it fails.

    The core copies and sums what it is given; threads of its own bring it to the disk while more is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = 0
        self._made: list[Path] = []
        self._writer = native.DiskWriter()

    def open(self, name: str) -> int:
        """Begin a file; returns its number."""
        path = self.folder / name
        self._made.append(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        return self._writer.open(fd, str(path))

    def write(self, file: int, data: memoryview) -> None:
        """Write on. Raises OSError of whichever file; so do the others."""
        self._writer.write(file, data)
        self.written += data.nbytes

    def close(self, file: int) -> int:
        """A file is whole; returns its CRC-32C."""
        return self._writer.close(file)

    def finish(self) -> None:
        """Wait until all that is whole lies on the disk."""
        self._writer.finish()
        self._writer.stop()

    def undo(self) -> None:
        """Take away everything that was written."""
        self._writer.stop()
        for path in self._made:
            path.unlink(missing_ok=True)


class _Sink:
    """A file as pyarrow writes to one."""

    closed = False

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self.file = disk.open(name)
        self.at = 0
        self.buffers: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if isinstance(data, pa.Buffer):
            self.buffers.append((self.at, view.nbytes))
        self._disk.write(self.file, view)
        self.at += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class PartFile:
    """One file while it is written."""

    def __init__(self, disk: Disk, name: str, schema: pa.Schema) -> None:
        self._disk = disk
        self._name = name
        self._sink = _Sink(disk, name)
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._batches: list[Batch] = []

    @property
    def bytes(self) -> int:
        """Bytes so far."""
        return self._sink.at

    def write(self, batch: pa.RecordBatch, key: int | None) -> None:
        self._sink.buffers = []
        self._writer.write_batch(batch)
        written = iter(self._sink.buffers)
        buffers: list[tuple[int, int]] = []
        for column in batch.columns:
            buffers.append(next(written, (0, -1)))
            if (nbytes := _element_bytes(column)) is not None:  # what is empty is not written
                buffers.append(next(written, (0, -1)) if nbytes else (sum(buffers[-1]), 0))
        if min(length for _, length in buffers) < 0 or next(written, None) is not None:
            raise AssertionError(f"{len(self._sink.buffers)} buffers were written for {batch.schema}")
        self._batches.append(Batch(batch.num_rows, key, tuple(buffers)))

    def close(self) -> Part:
        self._writer.close()
        return Part(self._name, self._sink.at, self._disk.close(self._sink.file), tuple(self._batches))


def _element_bytes(column: pa.Array) -> int | None:
    """Bytes of the elements of rows that vary in length, whose offsets begin at 0; None where they do not."""
    types = pa.types
    if types.is_large_list(column.type):
        return int(column.values.nbytes)
    if types.is_large_string(column.type) or types.is_large_binary(column.type):
        return int(np.frombuffer(column.buffers()[1], np.int64)[len(column)])
    return None


class ColumnFile:
    """A file of numbers of equal length, in as many batches as are written."""

    def __init__(self, disk: Disk, name: str, kinds: dict[str, np.dtype[Any]]) -> None:
        fields = [pa.field(column, pa.from_numpy_dtype(dtype), nullable=False) for column, dtype in kinds.items()]
        self._schema = pa.schema(fields)
        self._file = PartFile(disk, name, self._schema)

    def write(self, columns: dict[str, Array]) -> None:
        arrays = [pa.array(np.ascontiguousarray(columns[name])) for name in self._schema.names]
        self._file.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema), None)

    def close(self) -> Part:
        return self._file.close()


def keyed_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a table's rows with their keys."""
    return pa.schema([pa.field(KEYS, pa.uint64(), nullable=False), *arrow.schema_to_arrow(schema, stored=True)])


def keyed(batch: pa.RecordBatch, keys: Array, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with its rows' keys before it."""
    return pa.RecordBatch.from_arrays([pa.array(keys), *batch.columns], schema=schema)


def gathered(schema: Schema, cut: native.Cut, table: int, blocks: tuple[int, int], rows: int) -> pa.RecordBatch:
    """Return the rows of blocks [from, to) of a cut, copied together."""
    sizes = [column.row_bytes * rows for column in schema.columns]
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGN) * ALIGN
    memory = np.empty(end, np.uint8)
    for column, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        cut.gather(table, column, *blocks, memory[offset : offset + size])
    layout = BlockLayout(rows, 1, end, tuple(offsets), tuple(column.row_bytes for column in schema.columns))
    return arrow.block_to_arrow(schema, layout, memory.ctypes.data, 0, rows, memory, stored=True)
