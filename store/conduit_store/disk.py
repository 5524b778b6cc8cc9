"""The files of tables that may outgrow memory: made, found, removed when nobody holds them, and what is in them.

Whoever has such a file open holds a shared lock of it (flock), which the kernel drops at death. The last one to
close it removes it; what killed processes have left is swept by whoever uses the folder next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import DiskError
from .layout import ALIGN

if TYPE_CHECKING:
    import pyarrow as pa

    from .layout import BlockLayout
    from .schema import Schema

__all__ = ["open_file", "path_of", "record_header", "schema_head", "sweep"]

_PREFIX, _SUFFIX = "conduit-", ".blocks.arrow"
_MAGIC = b"ARROW1\0\0"


def path_of(folder: str, store: str, created_ns: int, table: str) -> str:
    """Return where the file of a table lies, the same in every process."""
    return str(Path(folder) / f"{_PREFIX}{store}-{created_ns:x}-{table}{_SUFFIX}")


def sweep(folder: str) -> list[str]:
    """Remove files of tables that no living process holds; return their paths.

    Raises:
        DiskError: the folder cannot be read.
    """
    gone: list[str] = []
    try:
        found = sorted(Path(folder).glob(f"{_PREFIX}*{_SUFFIX}"))
    except OSError as error:
        raise DiskError(f"folder {folder} cannot be read: {error}") from error
    for path in found:
        with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                gone.append(str(path))
            finally:
                os.close(fd)
    return gone


def open_file(path: str, *, create: bool, write: bool) -> int:
    """Return a descriptor of the file, locked as in use.

    Raises:
        DiskError: it cannot be created, or is not there.
    """
    flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
    try:
        while True:
            fd = os.open(path, flags, 0o600)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.fstat(fd).st_nlink > 0:  # else swept between the two calls
                return fd
            os.close(fd)
    except OSError as error:
        what = "created" if create else "opened"
        raise DiskError(f"file {path} of a table's rows cannot be {what}: {error.strerror}") from error


def schema_head(schema: Schema) -> bytes:
    """Return what such a file begins with: Arrow's magic and the schema, of columns as they are stored."""
    from .arrow import schema_to_arrow

    return _MAGIC + bytes(schema_to_arrow(schema, stored=True).serialize())


# What stands for what in the message of a block, as the core knows it (BlockMessage in disk_file.hpp).
_ROWS, _BYTES, _START, _ELEMENTS, _OFFSET, _LENGTH = range(6)


def record_header(
    schema: Schema, layout: BlockLayout, compression: str | None = None
) -> tuple[bytes, list[tuple[int, int, int, int]]]:
    """Return the Arrow message that makes a record batch of the block behind it, and which numbers each block has.

    Arrow writes such a message for a batch that it lays out itself; the buffers' places are then replaced by ours.
    The numbers: (what, column, at, factor), an int64 at byte `at`. `compression`: of blocks whose buffers are
    compressed, "lz4" or "zstd": where they begin and end are numbers too.
    """
    import pyarrow as pa

    from .arrow import block_to_arrow

    zeros = np.zeros(layout.block_bytes + 64, np.uint8)
    address = -(-zeros.ctypes.data // 64) * 64
    for column, offset in zip(schema.columns, layout.offsets, strict=True):
        if column.ragged:  # one element, so that it has a buffer
            first = address - zeros.ctypes.data + offset
            zeros[first : first + 8 * (layout.rows + 1)].view(np.int64)[1:] = 1
    starts = [layout.values] * len(schema.ragged)
    batch = block_to_arrow(schema, layout, address, 0, layout.rows, zeros, starts, stored=True)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(stream.getvalue()))
    messages.read_next_message()  # the schema
    whole = messages.read_next_message()
    header = bytearray(whole.serialize().to_pybytes()[: -whole.body.size])
    message = _Record(header, 8 + _uint32(header, 8))
    record = message.record(2)
    numbers = [(_ROWS, 0, record.place(0), 1), (_BYTES, 0, message.place(3), 1)]
    nodes = record.vector(1) + 4  # length and nulls, int64
    buffers = record.vector(2) + 4  # offset and length, int64; validity has no bytes
    ragged = filled = 0
    for column, offset in zip(schema.columns, layout.offsets, strict=True):
        for what, factor in _nodes(batch.schema.field(column.name).type, _ROWS, 1):
            numbers.append((what, ragged if what == _ELEMENTS else 0, nodes, factor))
            nodes += 16
        for part in range(1 + column.ragged):
            buffers = _filled(header, buffers)
            if compression is not None:
                numbers += [(_OFFSET, filled, buffers, 1), (_LENGTH, filled, buffers + 8, 1)]
            elif part == 0:
                struct.pack_into("<q", header, buffers, offset)
            else:
                numbers += [(_START, ragged, buffers, 1), (_ELEMENTS, ragged, buffers + 8, column.element_bytes)]
            buffers += 16
            filled += 1
        ragged += column.ragged
    header += bytes(-len(header) % ALIGN)
    struct.pack_into("<i", header, 4, len(header) - 8)  # counts the padding up to the body
    return bytes(header), numbers


def _filled(header: bytearray, buffers: int) -> int:
    while struct.unpack_from("<q", header, buffers + 8)[0] == 0:
        buffers += 16
    return buffers


def _nodes(kind: pa.DataType, what: int, factor: int) -> Iterator[tuple[int, int]]:
    """How long an array and its children are, in the order of Arrow's nodes: a number of each block times a factor."""
    import pyarrow as pa

    yield what, factor
    stored: Any = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if pa.types.is_fixed_size_list(stored):
        yield from _nodes(stored.value_type, what, factor * stored.list_size)
    elif pa.types.is_large_list(stored):
        yield from _nodes(stored.value_type, _ELEMENTS, 1)


class _Record:
    """A table of a flatbuffer: where its fields lie. Arrow's Message.fbs numbers those of Message and RecordBatch."""

    def __init__(self, data: bytearray, at: int) -> None:
        self._data, self._at = data, at

    def place(self, field: int) -> int:
        fields = self._at - struct.unpack_from("<i", self._data, self._at)[0]
        offset: int = struct.unpack_from("<H", self._data, fields + 4 + 2 * field)[0]
        return self._at + offset

    def record(self, field: int) -> _Record:
        return _Record(self._data, self.vector(field))

    def vector(self, field: int) -> int:
        at = self.place(field)
        return at + _uint32(self._data, at)


def _uint32(data: bytearray, at: int) -> int:
    found: int = struct.unpack_from("<I", data, at)[0]
    return found
