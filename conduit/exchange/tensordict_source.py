"""TensorDicts, in memory or in a folder, as rows in the form of frame.py."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tensordict import TensorDictBase

from conduit.exchange.columns import arrow_rows, blank
from conduit.exchange.damage import reading
from conduit.exchange.tensordict_rows import (
    ENDS,
    STEP,
    TRAJ,
    Entry,
    Key,
    Listed,
    Packed,
    Plain,
    entries_in,
    mapped,
    packed_of,
)
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, ExchangeError

__all__ = ["Source", "source_of"]

_KIND = "a folder of a TensorDict"


class Rows:
    """The rows of a TensorDict in the form of frame.py. `entries`: tensors, lists of text, or what is `Packed`."""

    def __init__(self, entries: Mapping[Key, Any], count: int, what: object) -> None:
        self._what = what
        self.rows: int | None = count
        self._count = count
        self.episodes: int | None = None
        self._names = _names(entries, what)
        wanted = {*self._names.values(), *(("next", *key) for key in self._names.values()), ("next", "done")}
        self._entries = {key: _entry(key, value) for key, value in entries.items() if key in wanted}
        self._columns = {name: self._entries[key].column(name) for name, key in self._names.items()}
        self._finals = {f"final_{name}": ("next", *key) for name, key in self._names.items() if _is_obs(name)
                        and ("next", *key) in entries}  # fmt: skip
        empty = {name: arrow_rows(c, blank(c, 0)) for name, c in self._columns.items()}
        finals = {name: empty[name.removeprefix("final_")] for name in self._finals}
        self.schema = pa.schema([pa.field(name, array.type) for name, array in {**empty, **finals}.items()])

    def pieces(self, columns: list[str], rows: int) -> Iterator[pa.Table]:
        for start in range(0, self._count, rows):
            stop = min(self._count, start + rows)
            with reading(self._what, _KIND):  # type: ignore[arg-type]
                yield self._piece(columns, start, stop)

    def close(self) -> None:
        pass  # the maps live as long as the tensors

    def _piece(self, columns: list[str], start: int, stop: int) -> pa.Table:
        made: dict[str, pa.Array] = {}
        within = None if self._finals.keys().isdisjoint(columns) else ~self._ends(start, stop)
        for name in columns:
            key = self._finals.get(name) or self._names[name]
            column = self._columns[name.removeprefix("final_") if name in self._finals else name]
            nulls = within if name in self._finals else None
            made[name] = arrow_rows(column, self._entries[key].rows(start, stop), nulls)
        return pa.table(made)

    def _ends(self, start: int, stop: int) -> Array:
        """Rows whose successor is not the next row: there the next observation is needed."""
        over = np.zeros(stop - start, np.bool_)
        for flag in (*ENDS, "done"):
            if ("next", flag) in self._entries:
                over |= self._entries["next", flag].rows(start, stop)
        if TRAJ in self._entries:
            ids = self._entries[TRAJ].rows(start, min(stop + 1, self._count))
            changes = np.diff(ids) != 0
            over[: len(changes)] |= changes
        if stop == self._count:
            over[-1:] = True
        return over


def _entry(key: Key, value: Any) -> Entry:
    if isinstance(value, Packed):
        return value
    if isinstance(value, list):
        return Listed(value)
    if value.is_nested:
        return packed_of(value)
    return Plain(value, single=key[0] == "next" and key[-1] in ("reward", *ENDS, "done"))


class Source(Rows):
    """See formats.Source. Rows are read through the maps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with reading(path, _KIND):
            shape = json.loads((path / "meta.json").read_text())["shape"]
            super().__init__(*_flat(mapped(path), shape, path), path)


def _flat(entries: dict[Key, Any], shape: Sequence[int], what: object) -> tuple[dict[Key, Any], int]:
    """Return entries with one dimension of rows: environments by steps, as collectors give them, come one by one."""
    if len(shape) == 1:
        return entries, int(shape[0])
    if len(shape) != 2:
        raise ExchangeError(f"{what} has batch size {list(shape)}: give rows, [n], or environments by steps")
    flat: dict[Key, Any] = {}
    for key, value in entries.items():
        if not isinstance(value, list) and (isinstance(value, Packed) or value.is_nested):
            raise ExchangeError(
                f"{what} has rows that vary in length, {key}, of batch size {list(shape)}: give rows, [n]"
            )
        flat[key] = value if isinstance(value, list) else value.reshape(-1, *value.shape[2:])
    return flat, shape[0] * shape[1]


def _is_obs(name: str) -> bool:
    return name == "obs" or name.startswith("obs/")


def _names(entries: Mapping[Key, Any], what: object) -> dict[str, Key]:
    """Our names of a TensorDict's keys, in the order of episode, step, and the columns."""
    under_next = {key[1:] for key in entries if key[0] == "next"}
    told: set[Key] = {("reward",), ("done",), *((flag,) for flag in ENDS)}
    if not under_next:  # plain rows
        return {"/".join(key): key for key in entries}
    if ("reward",) not in under_next or not any((flag,) in under_next for flag in ("done", *ENDS)):
        raise ExchangeError(f"{what} has no ('next', 'reward') and ('next', 'done'): these are no steps of episodes")
    names: dict[str, Key] = {}
    names.update({name: key for name, key in (("episode", TRAJ), ("step", STEP)) if key in entries})
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
    for flag in ENDS:
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
    what = "the given TensorDict"
    with reading(what, "a TensorDict"):  # type: ignore[arg-type]
        return Rows(*_flat(entries_in(data), data.batch_size, what), what)
