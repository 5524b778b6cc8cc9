"""Minari datasets: a folder with `data/` in it, as Minari keeps them. Written as HDF5, read in any of its forms.

Columns beyond obs, action, reward, terminated and truncated are infos of the same name, one entry later, since the
first infos are of the reset. Images are written as they are, not as JPEG. Spaces are boxes of the columns' dtypes.
Text is text, of a space that says nothing of its length and characters; other rows that vary in length are refused,
for which Minari has no space: it stores spaces as text, and knows no `Sequence` there. Metadata of an episode say where
it begins, if its first steps are gone.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pyarrow as pa
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from conduit.exchange.damage import reading
from conduit.exchange.episodes import (
    Episode,
    Episodes,
    check_episodic,
    column_of,
    episode_of,
    objects,
    stacked,
    tables_of,
)
from conduit.exchange.frame import Frame
from conduit_store.arrays import Array
from conduit_store.column import shown
from conduit_store.errors import ConfigError, ExchangeError
from conduit_store.schema import Column, Schema
from conduit_store.values import example_array

__all__ = ["Sink", "Source"]

# Gathered before they are written, as many rows or bytes: each write reads and writes the metadata.
_ROWS = 10_000
_BYTES = 32 << 20
_AT_ONCE = 64  # episodes read before the file is closed and opened again: HDF5 remembers what it has seen
_LONGEST = 1 << 20  # of text, as a space has to say some length
_KIND = "a Minari dataset"
_OURS = "conduit_schema"
_FIRST = "conduit_first_step"
_NAMES = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}


class Sink:
    """See formats.Sink."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        check_episodic(frame, "Minari", "mM")
        if varying := ", ".join(column.name for column in frame.schema.ragged if column.text != "string"):
            raise ConfigError(
                f"Minari has text, and no other rows that vary in length, as of {varying}. Export to 'parquet'"
            )
        self._frame = frame
        self._episodes = Episodes(frame)
        self._waiting: list[EpisodeBuffer] = []
        self._waiting_rows = self._count = 0
        self._firsts: dict[int, int] = {}  # of those that wait and do not begin at step 0
        self._most = max(1, min(_ROWS, _BYTES // frame.schema.row_bytes))
        path.mkdir()
        schema = frame.schema
        self._storage = MinariStorage.new(
            path / "data",
            observation_space=_space("obs", schema),
            action_space=_space("action", schema),
            data_format="hdf5",
            jpeg_encoding=False,
        )
        name = path.name.partition(".partial-")[0]
        told = {"dataset_id": name, "minari_version": minari.__version__, _OURS: schema.to_json()}
        self._storage.update_metadata(told)

    def write(self, piece: pa.Table) -> None:
        for episode in self._episodes.add(piece):
            self._keep(episode)

    def _keep(self, episode: Episode) -> None:
        schema = self._frame.schema
        observed = {column.name: self._values(column, episode.observations(column.name)) for column in schema.obs}
        columns = {c.name: self._values(c, episode.columns[c.name]) for c in schema if c.name not in observed}
        actions = {column.name: columns[column.name] for column in _of("action", schema)}
        # the first entry of infos is of the reset, which had none
        infos = {
            name.replace("/", "."): ["", *values] if isinstance(values, list) else np.insert(values, 0, 0, axis=0)
            for name, values in columns.items()
            if name not in _NAMES.values() and name not in actions
        }
        stored: dict[str, Any] = {theirs: columns[ours] for theirs, ours in _NAMES.items()}
        stored["observations"] = _nested("obs", observed)
        self._waiting.append(EpisodeBuffer(actions=_nested("action", actions), infos=infos, **stored))
        if episode.first:
            self._firsts[self._count] = episode.first
        self._count += 1
        self._waiting_rows += len(episode)
        if self._waiting_rows >= self._most:
            self._flush()

    def _values(self, column: Column, rows: Array) -> Any:
        """Rows as Minari takes them: text as a list."""
        if not column.ragged:
            return rows
        values = objects(column, rows)
        if bad := next((value for value in values if "\0" in value), None):
            raise ExchangeError(
                f"column {column.name!r} holds {shown(bad)}: text of Minari has no zero characters. Export to 'parquet'"
            )
        return values

    def _flush(self) -> None:
        self._storage.update_episodes(self._waiting)
        if self._firsts:
            self._storage.update_episode_metadata([{_FIRST: first} for first in self._firsts.values()], self._firsts)
        self._waiting, self._waiting_rows, self._firsts = [], 0, {}

    def finish(self) -> int:
        for episode in self._episodes.rest():
            self._keep(episode)
        self._flush()
        return self._episodes.rows

    def abandon(self) -> None:
        pass  # the storage has its file open only while it writes


class Source:
    """See formats.Source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        folder = path / "data" if (path / "data").is_dir() else path
        with reading(path, _KIND):
            self._storage = MinariStorage.read(folder)
            metadata = MinariStorage.read_raw_metadata(folder)
            self.rows: int | None = int(metadata["total_steps"])
            self.episodes: int | None = int(metadata["total_episodes"])
        self._told = Schema.from_json(metadata[_OURS]) if _OURS in metadata else None
        schema = self._told or self._first_schema()
        self._frame = Frame(schema, "episode", "step", own=True)
        self.schema = self._frame.to_arrow()

    def _first_schema(self) -> Schema:
        """What the first episode holds: spaces do not always say the dtype that was stored."""
        if not self.episodes:
            raise ExchangeError(f"{self._path} has no episode: there is nothing to tell its columns by")
        with reading(self._path, _KIND):
            first = next(iter(self._storage.get_episodes([0])))
            arrays = _columns(first, None)
        return Schema(tuple(column_of(name, array) for name, array in arrays.items()))

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        return tables_of(self._frame, self._read(), columns, rows)

    def _read(self) -> Iterator[tuple[int, Episode]]:
        total = self.episodes or 0
        for first in range(0, total, _AT_ONCE):
            numbers = range(first, min(first + _AT_ONCE, total))
            with reading(self._path, _KIND):
                episodes = iter(self._storage.get_episodes(numbers))
                firsts = [int(told.get(_FIRST, 0)) for told in self._storage.get_episode_metadata(numbers)]
            for number in numbers:
                with reading(self._path, f"{_KIND}, episode {number}"):
                    arrays = _columns(next(episodes), self._told)
                    episode = episode_of(self._frame, arrays, len(arrays["reward"]), firsts[number - first])
                if len(episode):
                    yield number, episode

    def close(self) -> None:
        pass  # the storage has its file open only while it reads


def _columns(stored: dict[str, Any], told: Schema | None) -> dict[str, Array]:
    """Return an episode's arrays by our names; those of observations are one longer."""
    arrays: dict[str, Array] = {}
    for role, theirs in (("obs", "observations"), ("action", "actions")):
        for name, values in Schema.flatten({role: stored[theirs]}).items():
            arrays[name] = stacked(name, values)
    for theirs, ours in _NAMES.items():
        arrays[ours] = example_array(ours, stored[theirs])
    for name in () if told is None else (name for name in told.names if name not in arrays):
        values = stored["infos"][name.replace("/", ".")][1:]
        text = told is not None and told.column(name).text is not None  # which comes as the bytes of it
        arrays[name] = stacked(name, [value.decode() for value in values]) if text else example_array(name, values)
    return arrays


def _of(role: str, schema: Schema) -> list[Column]:
    return [column for column in schema if column.name == role or column.name.startswith(role + "/")]


def _space(role: str, schema: Schema) -> Any:
    columns = _of(role, schema)
    boxes = {column.name: _box(column) for column in columns}
    spaces = gymnasium.spaces
    return _nested(role, boxes, spaces.Dict) if boxes else spaces.Box(0, 0, (0,))


def _box(column: Column) -> Any:
    spaces, dtype = gymnasium.spaces, column.dtype
    if column.ragged:
        return spaces.Text(_LONGEST, min_length=0, charset=string.printable)
    if dtype.kind == "b":
        return spaces.MultiBinary(column.shape) if column.shape else spaces.Box(0, 1, (), np.uint8)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, column.shape, dtype.type)


def _nested(role: str, flat: dict[str, Any], kind: Any = dict) -> Any:
    """One value, or a dict of those below it."""
    if role in flat:
        return flat[role]
    below = {name.removeprefix(role + "/") for name in flat}
    heads = sorted({name.partition("/")[0] for name in below})
    made = {head: _nested(head, {n.removeprefix(role + "/"): v for n, v in flat.items()
                                 if n.removeprefix(role + "/").partition("/")[0] == head}, kind) for head in heads}
    return kind(made)
