"""TensorDicts as TorchRL lays them out, in memory or as a folder of memory-mapped files (`TensorDict.load_memmap`).

    observation[, <name>]                 obs, obs/<name>
    action, <others>                      as they are; a/b is ("a", "b")
    next, observation[, <name>]           what each step led to
    next, reward                          (rows, 1)
    next, terminated; truncated; done     (rows, 1); done where the episode is over, for whatever reason
    collector, traj_ids; step             number of the episode; of the row in it

Rows stand episode by episode; those that vary in length as tensordict_rows.py says. Also read: keys of one's own names
instead of "observation" (("next", "pixels"), say).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import torch
from tensordict import MemoryMappedTensor, TensorDict

from conduit.exchange.columns import blank, packed
from conduit.exchange.episodes import Episode, Episodes, check_episodic
from conduit.exchange.frame import Frame
from conduit.exchange.npz_members import LENGTHS
from conduit.exchange.tensordict_rows import ELEMENTS, ENDS, START, STEP, TRAJ, Key, file_of, nested
from conduit.exchange.tensordict_source import Source, source_of
from conduit_store.arrays import Array
from conduit_store.schema import Column

__all__ = ["Sink", "Source", "source_of", "tensordict_of"]


def _key(name: str) -> Key:
    """The key of a column."""
    if name == "obs" or name.startswith("obs/"):
        return ("observation", *name.split("/")[1:])
    return tuple(name.split("/"))


Parts = Callable[[Column, Key, Array], Iterable[tuple[Key, Array]]]


def entries_of(frame: Frame, episode: Episode, number: int, parts: Parts) -> dict[Key, Array]:
    """Return an episode's arrays by their keys. `parts`: which ones rows that vary in length are, of one entry a row
    each, given the column, its key and its rows."""
    n = len(episode)
    entries: dict[Key, Array] = {}
    for column in frame.schema:
        array, key = episode.columns[column.name], _key(column.name)
        if column.name in ("reward", *ENDS):
            entries["next", column.name] = array if column.shape else array[:, None]
            continue
        observed = column in frame.schema.obs
        whole = episode.observations(column.name) if observed else array
        for part, values in parts(column, key, whole) if column.ragged else [(key, whole)]:
            entries[part] = values[:n]
            if observed:
                entries["next", *part] = values[1:]
    done = np.zeros((n, 1), np.bool_)
    done[-1:] = episode.ended
    entries["next", "done"] = done
    entries[TRAJ] = np.full(n, number)
    entries[STEP] = episode.steps
    return entries


def _nothing(frame: Frame) -> Episode:
    """An episode without a step: a TensorDict without rows has its keys all the same."""
    empty = {column.name: blank(column, 0) for column in frame.schema}
    return Episode(empty, {column.name: blank(column, 1) for column in frame.schema.obs})


def _torch_dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, array.dtype)).dtype


class Sink:
    """See formats.Sink. Each key's file grows as rows come, and is mapped at the end."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        check_episodic(frame, "TensorDict", "mMc")
        self._path = path
        self._frame = frame
        self._episodes = Episodes(frame)
        self._rows = _Files(path)
        self._elements = _Files(path / ELEMENTS)
        self._count = 0
        path.mkdir()

    def write(self, piece: pa.Table) -> None:
        for episode in self._episodes.add(piece):
            self._keep(episode)

    def _keep(self, episode: Episode) -> None:
        for key, array in entries_of(self._frame, episode, self._count, self._parts).items():
            self._rows.append(key, array)
        self._count += 1

    def _parts(self, column: Column, key: Key, rows: Array) -> Iterator[tuple[Key, Array]]:
        """Write the elements; where they begin, and how many there are, is what each row has."""
        given = packed(column, rows)
        before = self._elements.append(key, given.values)
        yield (*key[:-1], key[-1] + START), before + given.offsets[:-1]
        yield (*key[:-1], key[-1] + LENGTHS[column.text]), given.lengths

    def finish(self) -> int:
        for episode in self._episodes.rest():
            self._keep(episode)
        if not self._count:
            self._keep(_nothing(self._frame))
        self.abandon()
        rows = self._episodes.rows
        if self._frame.schema.ragged:
            self._elements.map([])
        self._rows.map([rows])
        return rows

    def abandon(self) -> None:
        self._rows.close()
        self._elements.close()


class _Files:
    """A folder of tensors that grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[Key, IO[bytes]] = {}
        self._kinds: dict[Key, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._counts: dict[Key, int] = {}

    def append(self, key: Key, array: Array) -> int:
        """Write rows of a key; return how many there were before."""
        if key not in self._files:
            folder = self._path.joinpath(*key[:-1])
            folder.mkdir(parents=True, exist_ok=True)
            self._files[key] = (folder / file_of(key[-1])).open("wb")
            self._kinds[key] = _torch_dtype(array), array.shape[1:]
        before = self._counts.get(key, 0)
        self._files[key].write(np.ascontiguousarray(array).data)
        self._counts[key] = before + len(array)
        return before

    def map(self, batch_size: list[int]) -> None:
        """Write what they are: where they are to be they are already."""
        mapped = TensorDict({}, batch_size)
        for key, (dtype, shape) in self._kinds.items():
            file = self._path.joinpath(*key[:-1]) / file_of(key[-1])
            size = torch.Size([self._counts[key], *shape])
            mapped[key] = MemoryMappedTensor.from_filename(str(file), dtype, size)
        mapped.memmap_(str(self._path))

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def tensordict_of(frame: Frame, pieces: Iterator[pa.Table]) -> TensorDict:
    """Return rows as a TensorDict in memory."""
    check_episodic(frame, "TensorDict", "mMc")
    episodes = Episodes(frame)
    parts: dict[Key, list[Array]] = {}
    ragged: dict[Key, Column] = {}

    def listed(column: Column, key: Key, rows: Array) -> list[tuple[Key, Array]]:
        ragged[key] = ragged["next", *key] = column
        return [(key, rows)]

    known = [episode for piece in pieces for episode in episodes.add(piece)]
    for number, episode in enumerate([*known, *episodes.rest()] or [_nothing(frame)]):
        for key, array in entries_of(frame, episode, number, listed).items():
            parts.setdefault(key, []).append(array)
    made = TensorDict({}, [episodes.rows])
    for key, arrays in parts.items():
        whole = np.concatenate(arrays)
        if key in ragged and ragged[key].text is not None and len(whole) == 0:
            continue  # there are no empty lists in a TensorDict
        made[key] = nested(ragged[key], whole) if key in ragged else torch.from_numpy(whole)
    return made
