"""Arrow IPC files (Feather v2), compressed by LZ4 unless told otherwise: null observations then cost little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from conduit.exchange.damage import readable, reading
from conduit.exchange.frame import Frame
from conduit.exchange.pieces import Batches, piece_rows

__all__ = ["Sink", "Source", "options"]

_KIND = "an Arrow IPC file"


def options(compression: str | None) -> pa.ipc.IpcWriteOptions:
    """Return how batches are written."""
    chosen = compression or "lz4"
    return pa.ipc.IpcWriteOptions(compression=None if chosen == "none" else chosen)


class Sink:
    """See formats.Sink."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._writer = self._open(self._file, frame.to_arrow(), options(compression))
        self._batches = Batches(piece_rows(frame.schema))

    @staticmethod
    def _open(file: pa.NativeFile, schema: pa.Schema, chosen: pa.ipc.IpcWriteOptions) -> Any:
        return pa.ipc.new_file(file, schema, options=chosen)

    def write(self, piece: pa.Table) -> None:
        for table in self._batches.add(piece):
            self._writer.write_table(table)

    def finish(self) -> int:
        for table in self._batches.rest():
            self._writer.write_table(table)
        self._writer.close()
        self._file.close()
        return self._batches.rows

    def abandon(self) -> None:
        self._file.close()


class Source:
    """See formats.Source. Read, not mapped: what has been read then takes no memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path, _KIND):
            self._file = pa.OSFile(str(path), "rb")
        try:
            with reading(path, _KIND):
                self.schema = readable(pa.ipc.open_file(self._file).schema)
        except BaseException:
            self._file.close()
            raise
        self.rows: int | None = None
        self.episodes: int | None = None

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        fields = [self.schema.get_field_index(name) for name in columns]
        with reading(self._path, _KIND):
            reader = pa.ipc.open_file(self._file, options=pa.ipc.IpcReadOptions(included_fields=sorted(fields)))
        for i in range(reader.num_record_batches):
            with reading(self._path, _KIND):
                batch = reader.get_batch(i)
                batch.validate(full=True)
            yield from cut(batch, columns, rows)

    def close(self) -> None:
        self._file.close()


def cut(batch: pa.RecordBatch, columns: list[str], rows: int) -> Iterator[pa.Table]:
    """Iterate over columns of a batch, so many rows at a time."""
    table = pa.Table.from_batches([batch]).select(columns)
    for start in range(0, len(table), rows):
        yield table.slice(start, rows)
