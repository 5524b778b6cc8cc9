"""NumPy arrays by name, in memory or in a .npz file.

    <columns>                 (rows, ...), as in the schema; "goal:valid" bool (rows,) where "goal" is nullable
    episode, step             int64 (rows,)
    priority                  float32 (rows,), NaN where it was not given yet
    final_obs[/...]           (episodes that have one, ...): what the last step of an episode led to
    final_row                 int64: the row of that last step

Rows that vary in length are one array of all elements, (elements, ...), and beside it "tokens:lengths", int64 (rows,);
of strings, as UTF-8, "prompt:characters", and of bytes "blob:bytes". Categories are numbers, and "env_id:values" the
strings that they stand for.

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

from conduit.exchange import npz_members as members
from conduit.exchange.columns import columns_of, rows_of
from conduit.exchange.damage import reading
from conduit.exchange.frame import FINAL, PRIORITY, Frame, as_stored
from conduit.exchange.given_arrays import check_plain, plain
from conduit.exchange.npz_members import Member
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
    stored = columns_of(frame.schema, piece)
    for column in frame.schema:
        yield from members.parts_of(column.name, column, stored[column.name])
    if frame.prioritized:
        yield PRIORITY, piece.column(PRIORITY).to_numpy()  # null becomes NaN
    if frame.episode is None:
        return
    first = next(iter(frame.finals))
    at = np.flatnonzero(piece.column(first).is_valid().to_numpy())
    for name, column in frame.finals.items():
        yield from members.parts_of(name, column, rows_of(column, piece.column(name).take(pa.array(at))))
    yield _FINAL_ROW, at + before


def members_of(frame: Frame) -> list[Member]:
    """Return names, dtypes and shapes of the arrays of an export."""
    made = [Member(name, np.dtype(np.int64), ()) for name in (frame.episode, frame.step) if name is not None]
    for column in frame.schema:
        made += members.members_of(column.name, column)
    if frame.prioritized:
        made.append(Member(PRIORITY, np.dtype(np.float32), ()))
    if frame.episode is not None:
        for name, column in frame.finals.items():
            made += members.members_of(name, column)
        made.append(Member(_FINAL_ROW, np.dtype(np.int64), ()))
    return made


def values_of(frame: Frame) -> dict[str, Array]:
    """Return the strings that categories stand for, by the names of their arrays."""
    finals = frame.finals if frame.episode is not None else {}
    named = {**{column.name: column for column in frame.schema}, **finals}
    return {f"{n}{members.VALUES}": np.array(c.values or [""], str) for n, c in named.items() if c.categorical}


def arrays_of(frame: Frame, pieces: Iterable[pa.Table]) -> dict[str, Array]:
    """Return all rows as arrays by name."""
    parts: dict[str, list[Array]] = {m.name: [np.zeros((0, *m.shape), m.dtype)] for m in members_of(frame)}
    rows = 0
    for piece in pieces:
        for name, array in split(frame, piece, rows):
            parts[name].append(array)
        rows += len(piece)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()} | values_of(frame)


class Sink:
    """See formats.Sink. Each column goes into a file of its own first: a zip archive takes one member at a time."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        self._path = path
        self._frame = frame
        self._compression = zipfile.ZIP_DEFLATED if compression == "deflate" else zipfile.ZIP_STORED
        self._members = members_of(frame)
        # beside the target: there is room for the rows there, which /tmp need not have
        self._files = {c.name: tempfile.TemporaryFile(dir=path.parent) for c in self._members}  # noqa: SIM115
        self._counts = dict.fromkeys(self._files, 0)
        self._rows = 0

    def write(self, piece: pa.Table) -> None:
        for name, array in split(self._frame, piece, self._rows):
            self._files[name].write(array.tobytes())
            self._counts[name] += len(array)
        self._rows += len(piece)

    def finish(self) -> int:
        with zipfile.ZipFile(self._path, "w", self._compression, allowZip64=True) as archive:
            for name, dtype, shape in self._members:
                header = {
                    "descr": npy.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (self._counts[name], *shape),
                }
                file = self._files[name]
                file.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    while chunk := file.read(_COPY):
                        member.write(chunk)
            for name, values in values_of(self._frame).items():
                with archive.open(f"{name}.npy", "w") as member:
                    npy.write_array(member, values, allow_pickle=False)
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
            with reading(self._path, kind):
                names = [part for name in columns for part in members.names_of(name, self._members)]
                opened = {n: archive.open(f"{n}.npy") for n in (*names, *([_FINAL_ROW] if finals else []))}
                for member in opened.values():
                    _header(member)
                at = self._read(opened[_FINAL_ROW], _FINAL_ROW, None) if finals else np.zeros(0, np.int64)
                _check_final_rows(at, self.rows, self._path)
                values = {n: self._read(opened[n], n, None) for n in names if n.endswith(members.VALUES)}
            for start in range(0, self.rows, rows):
                n = min(rows, self.rows - start)
                with reading(self._path, kind):
                    here = at[(at >= start) & (at < start + n)] - start

                    def part(name: str, count: int) -> Array:
                        return values[name] if name in values else self._read(opened[name], name, count)

                    made: dict[str, pa.Array] = {}
                    for name in columns:
                        whole = members.whole_of(name, self._members, part, len(here) if name in finals else n)
                        made[name] = _placed(name, whole, here, n) if name in finals else _nulls(name, whole)
                    yield pa.table(made)
            with reading(self._path, kind):
                for member in opened.values():
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
    """Return arrays by name, as `arrays_of` makes them or others have them, as one Arrow table.

    Raises:
        DtypeMismatch: see `given_arrays.plain`.
        ShapeMismatch: arrays of different lengths. ExchangeError: `final_row` names rows that there are not.
    """
    found = plain({str(name): array for name, array in arrays.items()})
    kinds = {name: (array.dtype, array.shape) for name, array in found.items()}
    schema, rows, _ = _described(kinds, what)
    at = found.get(_FINAL_ROW, np.zeros(0, np.int64))
    _check_final_rows(at, rows, what)
    made: dict[str, pa.Array] = {}
    with reading(what, "a mapping of arrays"):  # type: ignore[arg-type]
        for name in schema.names:
            final = _is_final(name, kinds)
            whole = members.whole_of(name, kinds, lambda part, _: found[part], len(at) if final else rows)
            made[name] = _placed(name, whole, at, rows) if final else _nulls(name, whole)
    return pa.table(made)


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(cast("Any", member))
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(cast("Any", member))
    if not shape or (fortran and len(shape) > 1):
        raise ValueError(
            f"an array of {dtype}, shape {shape}{', in Fortran order' if fortran else ''} is not rows of numbers"
        )
    return shape, dtype


def _is_final(name: str, kinds: Mapping[str, Any]) -> bool:
    return _FINAL_ROW in kinds and (name == FINAL + "obs" or name.startswith(FINAL + "obs/"))


def _described(kinds: members.Kinds, what: object) -> tuple[pa.Schema, int, int | None]:
    """Return the Arrow schema of arrays, how many rows they have, and how many episodes ended."""
    names = [name for name in kinds if name != _FINAL_ROW and members.base_of(name, kinds) is None]
    for name in names:
        check_plain(name, kinds[name][0], what)
    lengths = {name: members.rows_of(name, kinds) for name in names if not _is_final(name, kinds)}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
        raise ShapeMismatch(f"{what} has arrays of different lengths: {lengths}. Every column has one entry a row")
    with reading(what, "arrays"):  # type: ignore[arg-type]
        schema = pa.schema([pa.field(name, members.type_of(name, kinds)) for name in names])
    ends = kinds[_FINAL_ROW][1][0] if _FINAL_ROW in kinds and kinds[_FINAL_ROW][1] else None
    return schema, next(iter(lengths.values())), ends


def _check_final_rows(at: Array, rows: int, what: object) -> None:
    if at.dtype.kind not in "iu" or at.ndim != 1 or (len(at) and (at.min() < 0 or at.max() >= rows)):
        raise ExchangeError(f"{what}: final_row must be numbers of the {rows:,} rows. It is damaged")
    if (np.diff(at) <= 0).any():
        raise ExchangeError(f"{what}: final_row must ascend. It is damaged, or its rows were mixed")


def _nulls(name: str, array: pa.Array) -> pa.Array:
    """A priority that is NaN was not given."""
    if name != PRIORITY or not pa.types.is_floating(array.type):
        return array
    given = array.to_numpy()
    return pa.array(given, mask=np.isnan(given))


def _placed(name: str, array: pa.Array, at: Array, n: int) -> pa.Array:
    """Final observations at their rows, null elsewhere."""
    if len(array) != len(at):
        raise ValueError(f"{name} has {len(array)} observations for {len(at)} rows")
    places = np.full(n, -1, np.int64)
    places[at] = np.arange(len(at))
    return array.take(pa.array(places, mask=places < 0))
