"""RLlib's offline data: a folder of Parquet files whose rows are episodes, as RLlib 2.60 records them.

Read by RLlib with `config.offline_data(input_=[path], input_read_episodes=True)`, written by it with
`config.offline_data(output=path, output_write_episodes=True)`. Columns beyond obs, action, reward, terminated and
truncated are extra model outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

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
    told_by,
)
from conduit.exchange.frame import Frame
from conduit.exchange.parquet import files_of
from conduit_store.arrays import Array
from conduit_store.errors import ExchangeError
from conduit_store.schema import Schema

__all__ = ["Sink", "Source"]

_ITEM = "item"
_OURS = b"conduit_schema"
_BYTES = 32 << 20  # of episodes written together
_KIND = "RLlib's episodes"
_NAMED = {"action": "actions", "reward": "rewards"}
_FLAGS = ("terminated", "truncated")


class Sink:
    """See formats.Sink. Episodes get the numbers of the export as their ids; one whose first steps are gone starts
    where it starts (`t_started`)."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        check_episodic(frame, "RLlib", "mM")
        self._frame = frame
        self._episodes = Episodes(frame)
        self._items: list[bytes] = []
        self._bytes = self._count = 0
        path.mkdir()
        schema = pa.schema([pa.field(_ITEM, pa.binary())], {_OURS: frame.schema.to_json().encode()})
        file = path / "part-00000.parquet"
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True)
        self._schema = schema

    def write(self, piece: pa.Table) -> None:
        for episode in self._episodes.add(piece):
            self._keep(episode)

    def _keep(self, episode: Episode) -> None:
        columns = episode.columns
        observed = {column.name: episode.observations(column.name) for column in self._frame.schema.obs}
        actions = {name: array for name, array in columns.items() if _in("action", name)}
        extra = {
            name: array
            for name, array in columns.items()
            if name not in observed and name not in actions and name not in ("reward", *_FLAGS)
        }
        made = SingleAgentEpisode(
            id_=str(self._count),
            observations=self._listed(observed, "obs"),
            actions=self._listed(actions, "action"),
            rewards=list(columns["reward"]),
            extra_model_outputs={name: self._objects(name, array) for name, array in extra.items()} or None,
            terminated=bool(columns["terminated"][-1]),
            truncated=bool(columns["truncated"][-1]),
            t_started=episode.first,
            len_lookback_buffer=0,
        )
        item: Any = msgpack.packb(made.get_state(), default=msgpack_numpy.encode)
        self._items.append(item)
        self._bytes += len(item)
        self._count += 1
        if self._bytes >= _BYTES:
            self._flush()

    def _objects(self, name: str, array: Array) -> list[Any]:
        return objects(self._frame.schema.column(name), array)

    def _listed(self, arrays: dict[str, Array], role: str) -> list[Any]:
        """A value a step: an array, text, or nested dicts of such."""
        n = len(next(iter(arrays.values())))
        if role in arrays:
            return self._objects(role, arrays[role])
        steps: list[dict[str, Any]] = [{} for _ in range(n)]
        for name, array in arrays.items():
            *inner, last = name.split("/")[1:]
            for step, value in zip(steps, self._objects(name, array), strict=True):
                for key in inner:
                    step = step.setdefault(key, {})
                step[last] = value
        return steps

    def _flush(self) -> None:
        if self._items:
            self._writer.write_table(pa.table({_ITEM: pa.array(self._items, pa.binary())}, schema=self._schema))
        self._items, self._bytes = [], 0

    def finish(self) -> int:
        for episode in self._episodes.rest():
            self._keep(episode)
        self._flush()
        self._writer.close()
        return self._episodes.rows

    def abandon(self) -> None:
        self._writer.close()


class Source:
    """See formats.Source. Fragments, which RLlib writes as rows of their own, are episodes of their own, whose steps
    have the numbers that they had (`t_started`): the beginning of all but the first is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = files_of(path)
        self.rows: int | None = None
        self.episodes: int | None = 0
        told: bytes | None = None
        for file in self._files:
            with reading(file, _KIND), pq.ParquetFile(file) as opened:
                if _ITEM not in opened.schema_arrow.names:
                    raise ExchangeError(
                        f"{file} has no column {_ITEM!r} of episodes, it has {', '.join(opened.schema_arrow.names)}. "
                        "What was recorded with output_write_episodes=False is Parquet of steps: format='parquet'"
                    )
                told = (opened.schema_arrow.metadata or {}).get(_OURS)
                self.episodes = (self.episodes or 0) + opened.metadata.num_rows
        schema = Schema.from_json(told.decode()) if told else self._first_schema()
        self._frame = Frame(schema, "episode", "step", own=True)
        self.schema = self._frame.to_arrow()

    def meant(self, wanted: Schema) -> None:
        """Take rows as varying in length where the table's do."""
        self._frame = replace(self._frame, schema=told_by(self._frame.schema, wanted))

    def _first_schema(self) -> Schema:
        for _, arrays, _, _ in self._read():
            return Schema(tuple(column_of(name, array) for name, array in arrays.items()))
        raise ExchangeError(f"{self._path} has no episode: there is nothing to tell its columns by")

    def _read(self) -> Iterator[tuple[Path, dict[str, Array], int, int]]:
        """Iterate over (file, arrays by our names, number of steps, number of the first one)."""
        for file in self._files:
            with reading(file, _KIND):
                opened = pq.ParquetFile(file, page_checksum_verification=True)
            with opened:
                batches = opened.iter_batches(16, columns=[_ITEM])
                while True:
                    with reading(file, _KIND):
                        batch = next(batches, None)
                        items = [] if batch is None else batch.column(0).to_pylist()
                    if batch is None:
                        break
                    for item in items:
                        with reading(file, _KIND):
                            state = msgpack.unpackb(item, object_hook=msgpack_numpy.decode)
                            episode = SingleAgentEpisode.from_state(state)
                            arrays = _arrays(episode)
                            first = int(episode.t_started)
                        yield file, arrays, len(episode), first

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        return tables_of(self._frame, self._episodes(), columns, rows)

    def _episodes(self) -> Iterator[tuple[int, Episode]]:
        for number, (file, arrays, n, first) in enumerate(self._read()):
            if n == 0:
                continue
            with reading(file, _KIND):
                episode = episode_of(self._frame, arrays, n, first)
            yield number, episode

    def close(self) -> None:
        pass  # each file is open only while it is read


def _arrays(episode: Any) -> dict[str, Array]:
    """Return an episode's arrays by our names; those of observations are one longer."""
    n = len(episode)
    arrays: dict[str, Array] = {}
    for role, buffer in (("obs", episode.observations), ("action", episode.actions), ("reward", episode.rewards)):
        arrays |= _steps(role, buffer)
    for flag, value in zip(_FLAGS, (episode.is_terminated, episode.is_truncated), strict=True):
        arrays[flag] = np.zeros(n, np.bool_)
        arrays[flag][-1:] = value
    for name, buffer in episode.extra_model_outputs.items():
        arrays |= _steps(str(name), buffer)
    return arrays


def _steps(name: str, buffer: Any) -> dict[str, Array]:
    """Return what RLlib keeps a step, from where its lookback ends: as arrays, or as a list of nested dicts."""
    steps = buffer.get()
    flat = Schema.flatten({name: _gathered(steps) if isinstance(steps, list) else steps})
    return {inner: stacked(inner, values) for inner, values in flat.items()}


def _gathered(steps: list[Any]) -> Any:
    """Turn a list of nested dicts inside out; tuples are dicts by position, as `Schema.flatten` has them."""
    if steps and isinstance(steps[0], Mapping):
        return {key: _gathered([step[key] for step in steps]) for key in steps[0]}
    if steps and isinstance(steps[0], tuple):
        return tuple(_gathered([step[at] for step in steps]) for at in range(len(steps[0])))
    return steps


def _in(role: str, name: str) -> bool:
    return name == role or name.startswith(role + "/")
