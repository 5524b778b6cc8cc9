"""TensorDicts as TorchRL lays them out, in memory or as a folder of memory-mapped files (`TensorDict.load_memmap`).

    observation[, <name>]                 obs, obs/<name>
    action, <others>                      as they are; a/b is ("a", "b")
    next, observation[, <name>]           what each step led to
    next, reward                          (rows, 1)
    next, terminated; truncated; done     (rows, 1); done where the episode is over, for whatever reason
    collector, traj_ids; step             number of the episode; of the row in it

Rows stand episode by episode. Also read: keys of one's own names instead of "observation" (("next", "pixels"), say).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import torch
from tensordict import MemoryMappedTensor, TensorDict, TensorDictBase

from conduit.exchange.damage import reading
from conduit.exchange.episodes import Episode, Episodes, check_episodic
from conduit.exchange.frame import Frame, arrow_array
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, ExchangeError
from conduit_store.schema import Column

__all__ = ["Sink", "Source", "source_of", "tensordict_of"]

Key = tuple[str, ...]
_KIND = "a folder of a TensorDict"
_TRAJ: Key = ("collector", "traj_ids")
_STEP: Key = ("collector", "step")
_ENDS = ("terminated", "truncated")


def _key(name: str) -> Key:
    """The key of a column."""
    if name == "obs" or name.startswith("obs/"):
        return ("observation", *name.split("/")[1:])
    return tuple(name.split("/"))


def _file_of(key: str) -> str:
    """The file of a key's tensor: of what our names may have, tensordict keeps only the colon out of file names."""
    return f"{key.replace(':', '%3A')}.memmap"


def entries_of(frame: Frame, episode: Episode, number: int) -> dict[Key, Array]:
    """Return an episode's arrays by their keys."""
    n = len(episode)
    entries: dict[Key, Array] = {}
    for column in frame.schema:
        array = episode.columns[column.name]
        if column in frame.schema.obs:
            entries[_key(column.name)] = array
            entries["next", *_key(column.name)] = episode.observations(column.name)[1:]
        elif column.name in ("reward", *_ENDS):
            entries["next", column.name] = array if column.shape else array[:, None]
        else:
            entries[_key(column.name)] = array
    done = np.zeros((n, 1), np.bool_)
    done[-1:] = episode.ended
    entries["next", "done"] = done
    entries[_TRAJ] = np.full(n, number)
    entries[_STEP] = np.arange(n)
    return entries


def _nothing(frame: Frame) -> Episode:
    """An episode without a step: a TensorDict without rows has its keys all the same."""
    empty = {column.name: np.zeros((0, *column.shape), column.dtype) for column in frame.schema}
    return Episode(empty, {column.name: np.zeros((1, *column.shape), column.dtype) for column in frame.schema.obs})


def _torch_dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, array.dtype)).dtype


class Sink:
    """See formats.Sink. Each key's file grows as rows come, and is mapped at the end."""

    def __init__(self, path: Path, frame: Frame, rows: int, compression: str | None) -> None:
        check_episodic(frame, "TensorDict", "mMc")
        self._path = path
        self._frame = frame
        self._episodes = Episodes(frame)
        self._files: dict[Key, IO[bytes]] = {}
        self._kinds: dict[Key, tuple[torch.dtype, tuple[int, ...]]] = {}
        self._count = 0
        path.mkdir()

    def write(self, piece: pa.Table) -> None:
        for episode in self._episodes.add(piece):
            self._keep(episode)

    def _keep(self, episode: Episode) -> None:
        for key, array in entries_of(self._frame, episode, self._count).items():
            if key not in self._files:
                folder = self._path.joinpath(*key[:-1])
                folder.mkdir(parents=True, exist_ok=True)
                self._files[key] = (folder / _file_of(key[-1])).open("wb")
                self._kinds[key] = _torch_dtype(array), array.shape[1:]
            self._files[key].write(array.tobytes())
        self._count += 1

    def finish(self) -> int:
        for episode in self._episodes.rest():
            self._keep(episode)
        if not self._files:
            self._keep(_nothing(self._frame))
        self.abandon()
        rows = self._episodes.rows
        mapped = TensorDict({}, [rows])
        for key, (dtype, shape) in self._kinds.items():
            file = self._path.joinpath(*key[:-1]) / _file_of(key[-1])
            mapped[key] = MemoryMappedTensor.from_filename(str(file), dtype, torch.Size([rows, *shape]))
        mapped.memmap_(str(self._path))  # they are where they are to be: this writes what they are
        return rows

    def abandon(self) -> None:
        for file in self._files.values():
            file.close()


def tensordict_of(frame: Frame, pieces: Iterator[pa.Table]) -> TensorDict:
    """Return rows as a TensorDict in memory."""
    check_episodic(frame, "TensorDict", "mMc")
    episodes = Episodes(frame)
    parts: dict[Key, list[Array]] = {}
    known = [episode for piece in pieces for episode in episodes.add(piece)]
    for number, episode in enumerate([*known, *episodes.rest()] or [_nothing(frame)]):
        for key, array in entries_of(frame, episode, number).items():
            parts.setdefault(key, []).append(array)
    made = TensorDict({}, [episodes.rows])
    for key, arrays in parts.items():
        made[key] = torch.from_numpy(np.concatenate(arrays))
    return made


class Rows:
    """The rows of a TensorDict in the form of frame.py."""

    def __init__(self, data: TensorDictBase, what: object) -> None:
        self._what = what
        if len(data.batch_size) == 2:  # environments by steps, as collectors give them
            data = data.reshape(-1)
        if len(data.batch_size) != 1:
            sizes = list(data.batch_size)
            raise ExchangeError(f"{what} has batch size {sizes}: give rows, [n], or environments by steps")
        self.rows: int | None = int(data.batch_size[0])
        self._count = int(data.batch_size[0])
        self.episodes: int | None = None
        entries: dict[Key, Any] = {
            (key,) if isinstance(key, str) else tuple(key): tensor for key, tensor in data.items(True, True)
        }
        self._names = _names(entries, what)
        self._entries = entries
        arrays = {name: self._slice(key, 0, min(1, self._count)) for name, key in self._names.items()}
        self._columns = {name: Column(name, array.dtype, array.shape[1:]) for name, array in arrays.items()}
        self._finals = {f"final_{name}": ("next", *key) for name, key in self._names.items() if _is_obs(name)
                        and ("next", *key) in entries}  # fmt: skip
        empty = {name: arrow_array(c, np.zeros((0, *c.shape), c.dtype)) for name, c in self._columns.items()}
        finals = {name: empty[name.removeprefix("final_")] for name in self._finals}
        self.schema = pa.schema([pa.field(name, array.type) for name, array in {**empty, **finals}.items()])

    def _slice(self, key: Key, start: int, stop: int) -> Array:
        array: Array = self._entries[key][start:stop].detach().cpu().numpy()
        single = key[0] == "next" and key[-1] in ("reward", *_ENDS, "done") and array.ndim == 2 and array.shape[1] == 1
        return array[:, 0] if single else array

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        for start in range(0, self._count, rows):
            stop = min(self._count, start + rows)
            with reading(self._what, _KIND):  # type: ignore[arg-type]
                yield self._piece(start, stop).select(columns)

    def close(self) -> None:
        pass  # the maps live as long as the tensors

    def _piece(self, start: int, stop: int) -> pa.Table:
        made = {
            name: arrow_array(self._columns[name], self._slice(key, start, stop)) for name, key in self._names.items()
        }
        if self._finals:
            nulls = ~self._ends(start, stop)
            for name, key in self._finals.items():
                column = self._columns[name.removeprefix("final_")]
                made[name] = arrow_array(column, self._slice(key, start, stop), nulls)
        return pa.table(made)

    def _ends(self, start: int, stop: int) -> Array:
        """Rows whose successor is not the next row: there the next observation is needed."""
        over = np.zeros(stop - start, np.bool_)
        for flag in (*_ENDS, "done"):
            if ("next", flag) in self._entries:
                over |= self._slice(("next", flag), start, stop)
        if _TRAJ in self._entries:
            ids = self._slice(_TRAJ, start, min(stop + 1, self._count))
            changes = np.diff(ids) != 0
            over[: len(changes)] |= changes
        if stop == self._count:
            over[-1:] = True
        return over


class Source(Rows):
    """See formats.Source. Rows are read through the maps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path, _KIND):
            _check_files(path)
            data = TensorDict.load_memmap(str(path))
        super().__init__(data, path)


def _check_files(folder: Path) -> None:
    """See that each file is as long as its metadata says: mapping one would make it so, with zeros."""
    for name, entry in json.loads((folder / "meta.json").read_text()).items():
        if not isinstance(entry, dict):
            continue
        if "shape" in entry and "dtype" in entry:
            dtype = getattr(torch, str(entry["dtype"]).removeprefix("torch."))
            wanted = math.prod(entry["shape"]) * dtype.itemsize
            size = (folder / _file_of(name)).stat().st_size
            if size != wanted:
                raise ValueError(f"{_file_of(name)} has {size:,} bytes, {wanted:,} were due")
        elif entry.get("type", "").startswith("TensorDict"):
            _check_files(folder / name)


def _is_obs(name: str) -> bool:
    return name == "obs" or name.startswith("obs/")


def _names(entries: Mapping[Key, Any], what: object) -> dict[str, Key]:
    """Our names of a TensorDict's keys, in the order of episode, step, and the columns."""
    under_next = {key[1:] for key in entries if key[0] == "next"}
    told: set[Key] = {("reward",), ("done",), *((flag,) for flag in _ENDS)}
    if not under_next:  # plain rows
        return {"/".join(key): key for key in entries}
    if ("reward",) not in under_next or not any((flag,) in under_next for flag in ("done", *_ENDS)):
        raise ExchangeError(f"{what} has no ('next', 'reward') and ('next', 'done'): these are no steps of episodes")
    names: dict[str, Key] = {}
    names.update({name: key for name, key in (("episode", _TRAJ), ("step", _STEP)) if key in entries})
    for key in entries:
        if key[0] in ("next", "collector") or key in told:
            continue
        if key[0] == "observation":
            names["/".join(("obs", *key[1:]))] = key
        elif key in under_next:
            names["/".join(("obs", *key))] = key
        else:
            names["/".join(key)] = key
    names["reward"] = ("next", "reward")
    for flag in _ENDS:
        known = ("next", flag)
        if known not in entries:
            raise ExchangeError(f"{what} has no ('next', {flag!r}): 'done' alone does not say why an episode ended")
        names[flag] = known
    return names


def source_of(data: TensorDictBase) -> Rows:
    """Return the rows of a TensorDict in memory.

    Raises:
        ExchangeError: no rows of steps, or no plain rows. ConfigError: nothing in it.
    """
    if data.is_empty():
        raise ConfigError("the TensorDict has no entry: there is nothing to import")
    return Rows(data, "the given TensorDict")
