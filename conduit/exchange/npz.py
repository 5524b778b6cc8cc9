"""NumPy arrays by name, in memory or in a .npz file.

    <columns>                 (rows, ...), as in the schema; "goal:valid" bool (rows,) where "goal" is nullable
    episode, step             int64 (rows,)
    priority                  float32 (rows,), NaN where it was not given yet
    final_obs[/...]           (episodes that have one, ...): what the last step of an episode led to
    final_row                 int64: the row of that last step

A .npz file is a zip archive with check sums. Arrays are written as rows come, so memory stays bounded; they are not
compressed unless told ("deflate").
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from conduit.exchange.damage import reading
from conduit.exchange.frame import FINAL, PRIORITY, Frame, arrow_array, as_stored
from conduit.exchange.frame import columns_of as stored_columns
from conduit_store.arrays import Array
from conduit_store.errors import ExchangeError, ShapeMismatch
from conduit_store.schema import Column

__all__ = ["Sink", "Source", "arrays_of", "arrow_of"]

_FINAL_ROW = "final_row"
_COPY = 1 << 20


def split(frame: Frame, piece: pa.Table, before: int) -> Iterator[tuple[str, Array]]:
    """Iterate over the arrays of a piece, whose first row is row `before` of all."""
    for name in (frame.episode, frame.step):
        if name is not None:
            yield name, as_stored(Column(name, np.dtype(np.int64)), piece.column(name))
    stored = stored_columns(frame.schema, piece)
    for column in frame.schema:
        yield column.name, stored[column.name]
    if frame.prioritized:
        yield PRIORITY, piece.column(PRIORITY).to_numpy()  # null becomes NaN
    if frame.episode is None:
        return
    first = next(iter(frame.finals))
    at = np.flatnonzero(piece.column(first).is_valid().to_numpy())
    for name, column in frame.finals.items():
        yield name, as_stored(column, piece.column(name).take(pa.array(at)))
    yield _FINAL_ROW, at + before


def columns_of(frame: Frame) -> list[Column]:
    """Return names, dtypes and shapes of the arrays of an export.

    Raises:
        ConfigError: rows that vary in length.
    """
    frame.check_fixed("numpy")
    links = [Column(name, np.dtype(np.int64)) for name in (frame.episode, frame.step) if name is not None]
    columns = [*links, *frame.schema]
    if frame.prioritized:
        columns.append(Column(PRIORITY, np.dtype(np.float32)))
    if frame.episode is not None:
        columns += [Column(name, column.dtype, column.shape) for name, column in frame.finals.items()]
        columns.append(Column(_FINAL_ROW, np.dtype(np.int64)))
    return columns


def arrays_of(frame: Frame, pieces: Iterable[pa.Table]) -> dict[str, Array]:
    """Return all rows as arrays by name."""
    parts: dict[str, list[Array]] = {c.name: [np.zeros((0, *c.shape), c.dtype)] for c in columns_of(frame)}
    rows = 0
    for piece in pieces:
        for name, array in split(frame, piece, rows):
            parts[name].append(array)
        rows += len(piece)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


class Sink:
    """See formats.Sink. Each column goes into a file of its own first: a zip archive takes one member at a time."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        self._path = path
        self._frame = frame
        self._compression = zipfile.ZIP_DEFLATED if compression == "deflate" else zipfile.ZIP_STORED
        self._columns = columns_of(frame)
        # beside the target: there is room for the rows there, which /tmp need not have
        self._files = {c.name: tempfile.TemporaryFile(dir=path.parent) for c in self._columns}  # noqa: SIM115
        self._counts = dict.fromkeys(self._files, 0)
        self._rows = 0

    def write(self, piece: pa.Table) -> None:
        for name, array in split(self._frame, piece, self._rows):
            self._files[name].write(array.tobytes())
            self._counts[name] += len(array)
        self._rows += len(piece)

    def finish(self) -> int:
        with zipfile.ZipFile(self._path, "w", self._compression, allowZip64=True) as archive:
            for column in self._columns:
                header = {
                    "descr": npy.dtype_to_descr(column.dtype),
                    "fortran_order": False,
                    "shape": (self._counts[column.name], *column.shape),
                }
                file = self._files[column.name]
                file.seek(0)
                with archive.open(f"{column.name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    while chunk := file.read(_COPY):
                        member.write(chunk)
        self.abandon()
        return self._rows

    def abandon(self) -> None:
        for file in self._files.values():
            file.close()


class Source:
    """See formats.Source. Members are read side by side, a piece of each at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        with reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                with archive.open(info) as member:
                    shape, dtype = _header(member)
                if info.filename.removesuffix(".npy") in self._members:
                    raise ExchangeError(f"{path} has {info.filename} more than once: it is damaged")
                self._members[info.filename.removesuffix(".npy")] = dtype, shape
        self.schema, self.rows, ends = _described(self._members, path)
        self.episodes = ends

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        kind = "an .npz file"
        with reading(self._path, kind):
            archive = zipfile.ZipFile(self._path)
        with archive:
            finals = [name for name in columns if _is_final(name, self._members)]
            steps = [name for name in columns if name not in finals]
            with reading(self._path, kind):
                members = {name: archive.open(f"{name}.npy") for name in (*columns, *([_FINAL_ROW] if finals else []))}
                for member in members.values():
                    _header(member)
                at = self._read(members[_FINAL_ROW], _FINAL_ROW, None) if finals else np.zeros(0, np.int64)
                _check_final_rows(at, self.rows, self._path)
            for start in range(0, self.rows, rows):
                n = min(rows, self.rows - start)
                with reading(self._path, kind):
                    here = at[(at >= start) & (at < start + n)] - start
                    arrays = {name: self._read(members[name], name, n) for name in steps}
                    ends = {name: self._read(members[name], name, len(here)) for name in finals}
                    yield _piece(arrays, ends, here, n)
            with reading(self._path, kind):
                for member in members.values():
                    if member.read(1):  # also compares the check sum
                        raise ValueError(f"{member.name} is longer than its header says")

    def _read(self, member: IO[bytes], name: str, n: int | None) -> Array:
        dtype, shape = self._members[name]
        rows = shape[0] if n is None else n
        wanted = rows * dtype.itemsize * int(np.prod(shape[1:]))
        data = member.read(wanted)
        if len(data) != wanted:
            raise ValueError(f"{name} has {len(data):,} bytes where {wanted:,} were due")
        return np.frombuffer(data, dtype).reshape(rows, *shape[1:])

    def close(self) -> None:
        pass  # the file is open only while it is read


def arrow_of(arrays: Mapping[str, Any], what: str = "the mapping") -> pa.Table:
    """Return arrays by name, as `arrays_of` makes them, as one Arrow table.

    Raises:
        ShapeMismatch: arrays of different lengths. ExchangeError: `final_row` names rows that there are not.
    """
    found = {str(name): np.asarray(array) for name, array in arrays.items()}
    members = {name: (array.dtype, array.shape) for name, array in found.items()}
    _, rows, _ = _described(members, what)
    at = found.pop(_FINAL_ROW, np.zeros(0, np.int64))
    _check_final_rows(at, rows, what)
    finals = {name: found.pop(name) for name in list(found) if _is_final(name, members)}
    return _piece(found, finals, at, rows)


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(cast("Any", member))
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(cast("Any", member))
    if dtype.hasobject or not shape or (fortran and len(shape) > 1):
        raise ValueError(
            f"an array of {dtype}, shape {shape}{', in Fortran order' if fortran else ''} is not rows of numbers"
        )
    return shape, dtype


def _is_final(name: str, members: Mapping[str, Any]) -> bool:
    return _FINAL_ROW in members and (name == FINAL + "obs" or name.startswith(FINAL + "obs/"))


def _described(
    members: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], what: object
) -> tuple[pa.Schema, int, int | None]:
    """Return the Arrow schema of arrays, how many rows they have, and how many episodes ended."""
    steps = {n: d for n, d in members.items() if n != _FINAL_ROW and not _is_final(n, members)}
    lengths = {name: shape[0] if shape else -1 for name, (_, shape) in steps.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        raise ShapeMismatch(f"{what} has arrays of different lengths: {lengths}. Every column has one entry a row")
    fields = [
        arrow_array(
            Column(name, dtype.newbyteorder("="), shape[1:]), np.zeros((0, *shape[1:]), dtype.newbyteorder("="))
        )
        for name, (dtype, shape) in members.items()
        if name != _FINAL_ROW
    ]
    names = [name for name in members if name != _FINAL_ROW]
    schema = pa.schema([pa.field(name, array.type) for name, array in zip(names, fields, strict=True)])
    ends = members[_FINAL_ROW][1][0] if _FINAL_ROW in members and members[_FINAL_ROW][1] else None
    return schema, next(iter(lengths.values())), ends


def _check_final_rows(at: Array, rows: int, what: object) -> None:
    if at.dtype.kind not in "iu" or at.ndim != 1 or (len(at) and (at.min() < 0 or at.max() >= rows)):
        raise ExchangeError(f"{what}: final_row must be numbers of the {rows:,} rows. It is damaged")
    if (np.diff(at) <= 0).any():
        raise ExchangeError(f"{what}: final_row must ascend. It is damaged, or its rows were mixed")


def _piece(arrays: Mapping[str, Array], finals: Mapping[str, Array], at: Array, n: int) -> pa.Table:
    columns = {}
    for name, array in arrays.items():
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        values = arrow_array(Column(name, native.dtype, native.shape[1:]), native)
        columns[name] = (
            pa.array(native, mask=np.isnan(native)) if name == PRIORITY and native.dtype.kind == "f" else values
        )
    for name, array in finals.items():
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        nulls = np.ones(n, np.bool_)
        nulls[at] = False
        whole = np.zeros((n, *native.shape[1:]), native.dtype)
        whole[at] = native
        columns[name] = arrow_array(Column(name, native.dtype, native.shape[1:]), whole, nulls)
    return pa.table(columns)
