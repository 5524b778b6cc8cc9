"""Parquet: one file, or a folder of files of about half a gigabyte. Row groups of at most 32 MiB or 65,536 rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conduit.exchange.damage import readable, reading
from conduit.exchange.frame import Frame
from conduit.exchange.pieces import Batches, piece_rows
from conduit_store.errors import ConfigError, ExchangeError

__all__ = ["Sink", "Source", "files_of"]

_FILE_BYTES = 512 << 20  # of rows, before compression


class Sink:
    """See formats.Sink."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        self._folder = path if ".parquet" not in path.name and ".pq" not in path.name else None
        self._path = path
        self._schema, self._seconds = _without_seconds(frame.to_arrow())
        self._compression = compression or "zstd"
        self._rows = piece_rows(frame.schema)
        self._most = max(self._rows, _FILE_BYTES // frame.schema.row_bytes)
        self._batches = Batches(self._rows)
        self._writer: pq.ParquetWriter | None = None
        self._files = self._written = 0
        if self._folder is not None:
            self._folder.mkdir()
        self._open()

    def _open(self) -> None:
        path = self._path if self._folder is None else self._folder / f"part-{self._files:05d}.parquet"
        self._writer = pq.ParquetWriter(path, self._schema, compression=self._compression, write_page_checksum=True)
        self._files += 1
        self._written = 0

    def write(self, piece: pa.Table) -> None:
        for group in self._batches.add(piece):
            self._write(group)

    def _write(self, group: pa.Table) -> None:
        if self._folder is not None and self._written >= self._most:
            self.abandon()
            self._open()
        assert self._writer is not None
        if self._seconds:
            arrays = [
                _milliseconds(group.column(field.name), field.type)
                if field.name in self._seconds
                else group.column(field.name)
                for field in self._schema
            ]
            group = pa.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(group, row_group_size=self._rows)
        self._written += len(group)

    def finish(self) -> int:
        for group in self._batches.rest():
            self._write(group)
        self.abandon()
        return self._batches.rows

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Source:
    """See formats.Source. Files of a folder are read by name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = files_of(path)
        self.rows = 0
        self.episodes: int | None = None
        schema: pa.Schema | None = None
        for file in self._files:
            with reading(file, "Parquet"), pq.ParquetFile(file) as opened:
                self.rows += opened.metadata.num_rows
                here = readable(opened.schema_arrow)
            if schema is not None and not schema.equals(here):
                raise ExchangeError(f"{file} has other columns than {self._files[0]}: import them one by one")
            schema = here
        assert schema is not None
        self.schema = schema

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        for file in self._files:
            with reading(file, "Parquet"):
                opened = pq.ParquetFile(file, page_checksum_verification=True)
            with opened:
                batches = opened.iter_batches(rows, columns=columns)
                while True:
                    with reading(file, "Parquet"):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield pa.Table.from_batches([batch]).select(columns)

    def close(self) -> None:
        pass  # each file is open only while it is read


def _without_seconds(schema: pa.Schema) -> tuple[pa.Schema, list[str]]:
    """Parquet knows timestamps of milliseconds at the coarsest. Return such a schema, and which columns it concerns."""
    names: list[str] = []
    for index, field in enumerate(schema):
        tensor = isinstance(field.type, pa.FixedShapeTensorType)
        if (field.type.value_type if tensor else field.type) == pa.timestamp("s"):
            kind = pa.fixed_shape_tensor(pa.timestamp("ms"), list(field.type.shape)) if tensor else pa.timestamp("ms")
            schema = schema.set(index, field.with_type(kind))
            names.append(field.name)
    return schema, names


def _milliseconds(data: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Seconds as milliseconds. pyarrow's cast refuses NaT, the smallest integer."""
    array = data.combine_chunks()
    nulls = array.is_null()
    tensor = isinstance(kind, pa.FixedShapeTensorType)
    size = array.storage.type.list_size if tensor else 1
    flat = array.storage.values.slice(array.offset * size, len(array) * size) if tensor else array
    whole = flat.view(pa.int64()).fill_null(0).to_numpy()
    nat = whole == np.iinfo(np.int64).min
    if (np.abs(whole[~nat]) > np.iinfo(np.int64).max // 1000).any():
        raise ConfigError("a time in seconds is too far away for the milliseconds of Parquet. Export to 'arrow'")
    milliseconds = np.where(nat, whole, whole * 1000)
    if not tensor:
        return pa.array(milliseconds, mask=nulls.to_numpy(zero_copy_only=False)).view(kind)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(milliseconds).view(pa.timestamp("ms")), size, mask=nulls)
    return pa.ExtensionArray.from_storage(kind, storage)


def files_of(path: Path) -> list[Path]:
    """Return the Parquet files that `path` is, or has below it, by name.

    Raises:
        ExchangeError: there is none.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith((".", "_")))
    if not files:
        raise ExchangeError(f"folder {path} has no .parquet file")
    return files
