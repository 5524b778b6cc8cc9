"""Arrow IPC streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from conduit.exchange import ipc
from conduit.exchange.damage import readable, reading
from conduit_store.errors import ExchangeError

__all__ = ["Sink", "Source"]

_KIND = "an Arrow IPC stream"
_END = b"\xff\xff\xff\xff\0\0\0\0"


class Sink(ipc.Sink):
    """See formats.Sink."""

    @staticmethod
    def _open(file: pa.NativeFile, schema: pa.Schema, chosen: pa.ipc.IpcWriteOptions) -> Any:
        return pa.ipc.new_stream(file, schema, options=chosen)


class Source:
    """See formats.Source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: int | None = None
        self.episodes: int | None = None
        with reading(path, _KIND), path.open("rb") as file:
            file.seek(-len(_END), 2)
            if file.read() != _END:  # a stream that was cut between two batches reads as a shorter one
                raise ExchangeError(f"{path} does not end as {_KIND}: it is cut off, or of another format")
        with reading(path, _KIND), pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            self.schema = readable(reader.schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(self._path), "rb") as file:
            with reading(self._path, _KIND):
                reader = pa.ipc.open_stream(file)
            while True:
                with reading(self._path, _KIND):
                    try:
                        batch = reader.read_next_batch()
                    except StopIteration:
                        return
                    batch.validate(full=True)
                yield batch

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        for batch in self._batches():
            yield from ipc.cut(batch, columns, rows)

    def close(self) -> None:
        pass  # the file is open only while it is read
