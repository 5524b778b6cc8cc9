"""Episodes on their way in: the steps that an env runner has collected become rows of the table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from conduit import rows, samplers, windows
from conduit.rllib.frames import Frames
from conduit.rllib.n_steps import most
from conduit.rllib.sequences import EXTRA, STATE
from conduit.store import Store
from conduit.table import Table
from conduit_store.arrays import Array
from conduit_store.errors import AppendTimeout, ConfigError, LockTimeout, NameTaken, StoreClosed, UnknownTable
from conduit_store.schema import Column, Schema
from conduit_store.values import as_rows

__all__ = ["Address", "Fragment", "FragmentWriter"]

_TIMEOUT = 60.0  # seconds that an append may wait for space

# Columns (observations one longer than the rest), a flag a row, and the chain they belong to.
_Part = tuple[dict[str, Array], Array, int]


class Address(NamedTuple):
    """Where the experience of one algorithm goes, and the table that its first writer creates there."""

    store: str
    runtime_dir: str  # where its name is; a Ray worker may have been started without the driver's environment
    capacity: int
    sampler: samplers.Sampler
    n_step: int | tuple[int, int]  # or a range, without its upper end
    gamma: float
    max_writers: int
    mean_episode_length: float
    seed: int
    table_name: str = "replay"
    max_seq_len: int = 0  # of a recurrent module; 0 for others
    frames: Frames | None = None  # of observations that are stacks
    burn_in: int = 0  # steps of a sequence that nothing is learnt from: shorter ones are not drawn

    @property
    def window(self) -> windows.Window:
        """What a row is drawn with."""
        if self.max_seq_len:
            return windows.Sequence(self.max_seq_len, burn_in=1)
        if isinstance(self.n_step, int) and self.frames is not None:
            return windows.FrameStack(self.frames.stack, self.n_step, self.gamma)
        if isinstance(self.n_step, int):
            return windows.NStep(self.n_step, self.gamma)
        return windows.Sequence(most(self.n_step))

    def writer(self, store: Store, ongoing: int) -> FragmentWriter:
        """Return a writer for one env runner of so many environments."""
        return FragmentWriter(store, self, ongoing)

    def table(self, store: Store, schema: Schema | None) -> Table:
        """Return the table; with a schema create it, if nobody has.

        Raises:
            UnknownTable: no schema was given and nobody has created it yet.
            OutOfHostMemory: its capacity does not fit; replay memory is reserved whole.
        """
        try:
            return store.table(self.table_name)
        except UnknownTable:
            if schema is None:
                raise
        try:
            return store.create_table(
                self.table_name,
                schema,
                self.capacity,
                sampler=self.sampler,
                window=self.window,
                max_writers=self.max_writers,
                mean_episode_length=self.mean_episode_length,
                seed=self.seed,
            )
        except NameTaken:  # by another env runner, meanwhile
            return store.table(self.table_name)


class Fragment:
    """Consecutive steps of an episode that are in the store. What travels through RLlib in place of an episode."""

    __slots__ = ("ended", "id_", "steps")

    def __init__(self, id_: str, steps: int, ended: bool) -> None:
        self.id_ = id_
        self.steps = steps
        self.ended = ended

    def __len__(self) -> int:
        return self.steps

    def env_steps(self) -> int:
        """Steps of the environment."""
        return self.steps

    def agent_steps(self) -> int:
        """Steps of the one agent."""
        return self.steps

    def __repr__(self) -> str:
        return f"<Fragment of episode {self.id_}: {self.steps} steps{', ended' if self.ended else ''}>"


class FragmentWriter:
    """Writes the fragments of up to `ongoing` episodes at a time. For one thread of one process.

    An episode's last step is drawn once its successor is there: the next fragment, or the final observation where the
    episode ends. An episode that goes on nowhere (the env runner was reset) is cut at its last observation.
    """

    def __init__(self, store: Store, address: Address, ongoing: int) -> None:
        self._store = store
        self._address = address
        self._ongoing = ongoing
        self._table: Table | None = None
        self._native: Any = None
        self._chains: OrderedDict[str, int] = OrderedDict()  # episode -> chain, the longest untouched first
        self._last_obs: dict[str, dict[str, Array]] = {}
        self._free: list[int] = []
        # RLlib sums rewards in float64 and trains on float32: a single one may be narrowed at once
        self._reward_dtype = np.float32 if address.n_step == 1 else np.float64

    def write(self, episodes: Sequence[Any]) -> list[Fragment]:
        """Append the steps of RLlib's `SingleAgentEpisode`s, and return a handle for each that had some."""
        if len(episodes) == 1 and self._step(episodes[0]):
            return [Fragment(episodes[0].id_, 1, False)]
        parts: list[_Part] = []
        fragments: list[Fragment] = []
        for episode in episodes:
            steps = len(episode)
            if steps == 0:
                continue
            ended = bool(episode.is_terminated or episode.is_truncated)
            columns = _columns(episode, steps, self._reward_dtype)
            if self._address.max_seq_len:
                columns |= _extra(episode)
            if self._address.frames is not None:
                if "obs" not in columns:
                    raise ConfigError("observations are nested, and frames= is for those that are one array")
                columns["obs"] = self._address.frames.newest(columns["obs"], episode.id_ not in self._chains)
            if self._native is None:
                self._open(columns)
            chain = self._chain_of(episode.id_, parts)
            flags = np.zeros(steps + ended, np.uint8)
            if ended:
                flags[-2] = rows.TERMINATED * bool(episode.is_terminated) | rows.TRUNCATED * bool(episode.is_truncated)
                flags[-1] = rows.FINAL
                self._free.append(self._chains.pop(episode.id_))
                self._last_obs.pop(episode.id_, None)
            else:
                self._last_obs[episode.id_] = {name: values[-1:] for name, values in columns.items() if _is_obs(name)}
            parts.append((columns, flags, chain))
            fragments.append(Fragment(episode.id_, steps, ended))
        if parts:
            self._append(parts)
        return fragments

    def _step(self, episode: Any) -> bool:
        """One step of the only episode there is, in one native call. False: nothing was done, take the usual way."""
        if self._native is None or self._ongoing > 1 or self._address.max_seq_len or self._address.frames is not None:
            return False
        if episode.id_ not in self._chains or len(episode) != 1:
            return False
        if episode.is_terminated or episode.is_truncated:
            return False
        observations, action = _data(episode.observations), _data(episode.actions)[0]
        row = {
            "obs": observations[0],
            "action": int(action) if isinstance(action, np.integer) else action,  # of whatever width, see _kept
            "reward": _data(episode.rewards)[0],
            "terminated": False,
            "truncated": False,
        }
        if self._native.append_row(row, None, 0.0) != 1:  # other columns or dtypes than these, or no room now
            return False
        self._last_obs[episode.id_] = {"obs": np.asarray(observations[-1:])}
        return True

    def cut(self, timeout: float = _TIMEOUT) -> None:
        """End every ongoing episode where it is, as truncated."""
        parts: list[_Part] = []
        while self._chains:
            self._cut_oldest(parts)
        if parts:
            self._append(parts, timeout)

    def close(self) -> None:
        """Cut what is ongoing, if there is room at once, and give back the open block. Idempotent."""
        if self._native is not None:
            if not self._native.closed:
                with suppress(AppendTimeout, LockTimeout, StoreClosed):  # then the last steps are not drawn
                    self.cut(timeout=0.1)
            self._native.close()

    def _open(self, columns: Mapping[str, Array]) -> None:
        if self._address.max_seq_len and not any(name.startswith(STATE) for name in columns):
            raise ConfigError(
                "the first steps have no recurrent state ('state_out'), and a table has the columns of its first rows: "
                "random actions come from no module. Sample with the module first"
            )
        table = self._address.table(self._store, _schema(columns))
        self._table = table
        self._native = rows.native_writer(table._native, table.spec, self._ongoing)
        self._free = list(range(self._ongoing))

    def _chain_of(self, episode: str, parts: list[_Part]) -> int:
        chain = self._chains.get(episode)
        if chain is None:
            if not self._free:
                self._cut_oldest(parts)
            chain = self._chains[episode] = self._free.pop()
        else:
            self._chains.move_to_end(episode)
        return chain

    def _cut_oldest(self, parts: list[_Part]) -> None:
        episode, chain = self._chains.popitem(last=False)
        parts.append((self._last_obs.pop(episode), np.array([rows.FINAL], np.uint8), chain))
        self._free.append(chain)

    def _append(self, parts: list[_Part], timeout: float = _TIMEOUT) -> None:
        table = self._table
        assert table is not None
        if len(parts) == 1:
            columns, flags, chain = parts[0]
            chains = None if self._ongoing == 1 else np.full(len(flags), chain, np.int32)
            arrays = [_padded(columns.get(column.name), column, len(flags)) for column in table.schema.columns]
        else:
            lengths = [len(flags) for _, flags, _ in parts]
            flags = np.concatenate([flags for _, flags, _ in parts])
            chains = np.repeat(np.array([chain for _, _, chain in parts], np.int32), lengths)
            arrays = [
                np.concatenate([_padded(given.get(column.name), column, len(own)) for given, own, _ in parts])
                for column in table.schema.columns
            ]
        n = len(flags)
        checked = [
            rows.buffer(as_rows(column, _kept(column, array), n))
            for column, array in zip(table.schema.columns, arrays, strict=True)
        ]
        rows.append(self._native, table.spec, n, checked, flags=flags, chains=chains, timeout=timeout, whole=True)


def _padded(values: Array | None, column: Column, n: int) -> Array:
    """`n` rows of a column: its values, then zeros; a row that holds a final observation has no more than that."""
    if values is None:
        return rows.zeros(column, n)
    if len(values) >= n:
        return values[:n]
    return np.concatenate([values, rows.zeros(column, n - len(values)).astype(values.dtype)])


def _kept(column: Column, values: Array) -> Array:
    """Values in the column's dtype, where that keeps them: RLlib's random actions are int64, its modules' are int32."""
    if values.dtype == column.dtype or values.dtype.kind not in "iu":
        return values
    narrowed = values.astype(column.dtype)
    return narrowed if np.array_equal(narrowed, values) else values


def _is_obs(name: str) -> bool:
    return name == "obs" or name.startswith("obs/")


def _columns(episode: Any, steps: int, reward_dtype: type[Any]) -> dict[str, Array]:
    """The fragment's columns: `steps` rows, observations one more. RLlib's lookback is left out."""
    terminated = np.zeros(steps, np.bool_)
    truncated = np.zeros(steps, np.bool_)
    terminated[-1] = episode.is_terminated
    truncated[-1] = episode.is_truncated
    spaces = Schema.flatten({"obs": _turned(_data(episode.observations)), "action": _turned(_data(episode.actions))})
    return {
        **{name: np.asarray(values) for name, values in spaces.items()},
        "reward": np.asarray(_data(episode.rewards), reward_dtype),
        "terminated": terminated,
        "truncated": truncated,
    }


def _extra(episode: Any) -> dict[str, Array]:
    """What the module put out at each step, recurrent states among it."""
    outputs = {str(name): _turned(_data(buffer)) for name, buffer in episode.extra_model_outputs.items()}
    return {EXTRA + name: np.asarray(values) for name, values in Schema.flatten(outputs).items()}


def _data(buffer: Any) -> Any:
    """What an RLlib `InfiniteLookbackBuffer` holds behind its lookback: arrays, or a list of single values."""
    start = buffer.lookback
    if not buffer.finalized:
        return buffer.data[start:]
    return _sliced(buffer.data, start)


def _sliced(data: Any, start: int) -> Any:
    if isinstance(data, Mapping):
        return {key: _sliced(value, start) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_sliced(value, start) for value in data)
    return data[start:]


def _turned(values: Any) -> Any:
    """A list of nested values as nested lists; all else as it is."""
    if not isinstance(values, list):
        return values
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _turned([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_turned([value[i] for value in values]) for i in range(len(first)))
    return values


def _schema(columns: Mapping[str, Array]) -> Schema:
    return Schema.from_example({name: np.asarray(values[0]) for name, values in columns.items()})
