"""The pieces that files are read in: row groups of Parquet, record batches of Arrow IPC files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from conduit.exchange.damage import readable, reading
from conduit_store.errors import ExchangeError, SourceNotFound

__all__ = ["Piece", "pieces_of", "read"]

_ARROW = (".arrow", ".feather", ".ipc")
_PARQUET = (".parquet", ".pq")


class Piece(NamedTuple):
    """Piece `number` of a file."""

    file: Path
    number: int
    rows: int

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{'record batch' if self.file.suffix in _ARROW else 'row group'} {self.number} of {self.file}"


def pieces_of(path: Path) -> tuple[list[Piece], dict[Path, pa.Schema]]:
    """Return the pieces of a file, or of the files below a folder by their names; and the schema of each file.

    Raises:
        SourceNotFound, ExchangeError: nothing there, damaged, or files that do not agree.
    """
    if not path.exists():
        raise SourceNotFound(f"{path} is not there")
    files = [path]
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in (*_ARROW, *_PARQUET) and f.name[0] not in "._")
        if not files:
            raise ExchangeError(f"folder {path} has no {_PARQUET[0]} and no {_ARROW[0]} file")
    found: list[Piece] = []
    schemas: dict[Path, pa.Schema] = {}
    for file in files:
        rows, schemas[file] = _arrow_rows(file) if file.suffix in _ARROW else _parquet_rows(file)
        found += [Piece(file, number, n) for number, n in enumerate(rows) if n]
        if not schemas[file].equals(schemas[files[0]]):
            raise ExchangeError(f"{file} has other columns than {files[0]}: open them one by one")
    return found, schemas


def _parquet_rows(file: Path) -> tuple[list[int], pa.Schema]:
    with reading(file, "Parquet"), pq.ParquetFile(file) as opened:
        metadata = opened.metadata
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)], opened.schema_arrow


def _arrow_rows(file: Path) -> tuple[list[int], pa.Schema]:
    """One column of each batch is looked at: the file does not say how many rows it has."""
    with reading(file, "an Arrow IPC file"), pa.memory_map(str(file)) as mapped:
        schema = readable(pa.ipc.open_file(mapped).schema)
        narrow = min(range(len(schema)), key=lambda i: isinstance(schema.field(i).type, pa.ExtensionType), default=0)
        reader = pa.ipc.open_file(mapped, options=pa.ipc.IpcReadOptions(included_fields=[narrow]))
        return [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)], schema


def read(piece: Piece, columns: list[str], first: int | None = None) -> pa.Table:
    """Return columns of a piece, or of its `first` rows.

    Raises:
        ExchangeError: it cannot be read.
    """
    file = piece.file
    if file.suffix in _ARROW:
        with reading(file, "an Arrow IPC file"), pa.memory_map(str(file)) as mapped:
            schema = readable(pa.ipc.open_file(mapped).schema)
            fields = sorted(schema.get_field_index(name) for name in columns)
            reader = pa.ipc.open_file(mapped, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
            batch = reader.get_batch(piece.number)
            batch.validate(full=True)
            return pa.Table.from_batches([batch if first is None else batch.slice(0, first)])
    with reading(file, "Parquet"), pq.ParquetFile(file, page_checksum_verification=True) as opened:
        if first is None:
            return opened.read_row_group(piece.number, columns=columns, use_threads=False)
        batches = opened.iter_batches(first, row_groups=[piece.number], columns=columns, use_threads=False)
        return pa.Table.from_batches([next(batches)])
