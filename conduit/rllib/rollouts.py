"""The queues of on-policy algorithms: env runners write episodes into them whole, one queue for each module."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from conduit.queue import Queue
from conduit.rllib.episodes import Origin, StoredEpisode, StoredEpisodes
from conduit.rllib.forms import REWARDS, kept_of, packed, read
from conduit.store import Store
from conduit_store.arrays import Array
from conduit_store.errors import AppendTimeout, NameTaken, UnknownTable
from conduit_store.schema import Schema

__all__ = ["EpisodeWriter", "QueueAddress", "Rollouts"]

logger = logging.getLogger("conduit")

QUEUE = "episodes"  # and a module's name behind it, where there are several
_BUNDLES = 4  # of episodes that are appended at once, the queue has room for so many


class QueueAddress(NamedTuple):
    """Where an algorithm's episodes go, and the queues that their first writer creates there."""

    store: str
    runtime_dir: str
    max_size: int  # rows: steps, and one more for each episode
    timeout: float | None  # seconds that an env runner waits for room
    opens_on_arrival: bool
    least_bytes: int = 0  # of rows, though max_size were fewer: what lies in one block is opened without a copy

    def writer(self, store: Store, ongoing: int) -> EpisodeWriter:
        """Return a writer for one env runner, of whatever number of environments."""
        return EpisodeWriter(store, self)

    def queue(self, store: Store, name: str, schema: Schema) -> Queue:
        """Return the queue `name`; create it, if nobody has.

        Raises:
            OutOfHostMemory: it does not fit; its memory is reserved whole. ConfigError: a name that is not allowed.
        """
        with suppress(UnknownTable):
            return store.queue(name)
        try:
            # Blocks as large as for a single writer, for the same reason. The open blocks of the other env runners come
            # out of max_size, which has room for them.
            max_size = max(self.max_size, self.least_bytes // schema.row_bytes)
            return store.create_queue(name, schema, max_size, max_writers=1)
        except NameTaken:  # by another env runner, meanwhile
            return store.queue(name)


class _Episode(NamedTuple):
    """An episode on its way into a queue."""

    handle: StoredEpisode  # which knows its rows once they are there
    columns: dict[str, Array]
    rows: int


class _Bundle:
    """Episodes that are alike, to be appended at once."""

    __slots__ = ("episodes", "rows")

    def __init__(self) -> None:
        self.episodes: list[_Episode] = []
        self.rows = 0


class EpisodeWriter:
    """Writes the episodes that an env runner returns. For one thread of one process."""

    def __init__(self, store: Store, address: QueueAddress) -> None:
        self._store = store
        self._address = address
        self._origin = Origin(store.name, address.runtime_dir, address.opens_on_arrival)
        self._queues: dict[str, Queue] = {}
        self._forms: dict[str, tuple[Any, Any, bytes]] = {}
        self._bundles: dict[tuple[Any, ...], _Bundle] = {}  # alike, and not appended yet

    def write(self, episodes: Sequence[Any]) -> list[Any]:
        """Append the steps of RLlib's episodes; return a handle for each.

        An episode without steps, or whose buffers differ in length, is returned as it is. Waits for room; where there
        is none in time, the oldest episodes that nobody has come for are given up.

        Raises:
            CapacityError: an episode is longer than the queue. MissingColumn, UnknownColumn, DtypeMismatch,
            ShapeMismatch: it has other contents than the first that was written.
        """
        handles = [self._several(e) if hasattr(e, "agent_episodes") else self._one(e, QUEUE) for e in episodes]
        for bundle in self._bundles.values():
            self._flush(bundle)
        return handles

    def _several(self, episode: Any) -> StoredEpisodes:
        agents = {
            agent: self._one(own, f"{QUEUE}-{own.module_id}") for agent, own in episode.agent_episodes.items()
        }
        shell = copy.copy(episode)
        shell.agent_episodes = {}
        return StoredEpisodes(shell, agents, len(episode))

    def _one(self, episode: Any, name: str) -> Any:
        steps = len(episode)
        if steps == 0:
            return episode
        if not episode.is_numpy:
            episode = episode.to_numpy()
        contents = read(episode)
        if contents is None:
            return episode
        form, columns, lookback = contents
        n = lookback + steps + 1
        form_bytes = self._form(name, episode, form)
        handle = StoredEpisode(self._origin, name, (), steps, lookback, form_bytes, kept_of(episode))
        alike = (name, *[(key, values.dtype, values.shape[1:]) for key, values in columns.items()])
        bundle = self._bundles.get(alike)
        if bundle is None:
            bundle = self._bundles[alike] = _Bundle()
        if bundle.rows + n > self._address.max_size // _BUNDLES:
            self._flush(bundle)
        bundle.rows += n
        bundle.episodes.append(_Episode(handle, columns, n))
        return handle

    def _flush(self, bundle: _Bundle) -> None:
        """Append episodes that are alike at once, and tell their handles where they are."""
        if not bundle.episodes:
            return
        waiting, bundle.episodes, bundle.rows = bundle.episodes, [], 0
        name = waiting[0].handle.queue
        names = waiting[0].columns
        rows = {key: _joined(key, [(episode.columns[key], episode.rows) for episode in waiting]) for key in names}
        queue = self._queues.get(name)
        if queue is None:
            schema = Schema.from_example({key: values[0] for key, values in rows.items()})
            queue = self._queues[name] = self._address.queue(self._store, name, schema)
        keys = self._append(queue, rows)
        breaks = (np.flatnonzero(np.diff(keys) != 1) + 1).tolist()  # where a block ends
        first = 0
        for episode in waiting:
            behind = first + episode.rows
            edges = [first, *(at for at in breaks if first < at < behind), behind]
            episode.handle.runs = tuple((int(keys[a]), b - a) for a, b in itertools.pairwise(edges))
            first = behind

    def _append(self, queue: Queue, columns: dict[str, Array]) -> Any:
        try:
            return queue.extend(columns, timeout=self._address.timeout, return_keys=True)
        except AppendTimeout:
            given_up = 0
            n = len(columns["rewards"])
            for view in queue.blocks():  # the oldest first
                given_up += queue.drop(view.keys)
                if given_up >= n:
                    break
            logger.warning("no room in %r: %d rows that no learner has come for are given up", queue, given_up)
            return queue.extend(columns, timeout=self._address.timeout, return_keys=True)

    def _form(self, name: str, episode: Any, form: tuple[Any, ...]) -> bytes:
        """The pickled form, made once for all episodes that are alike."""
        spaces = episode.observation_space, episode.action_space
        known = self._forms.get(name)
        if known is None or known[1] != form or any(a is not b for a, b in zip(known[0], spaces, strict=True)):
            known = self._forms[name] = (spaces, form, packed((spaces, form)))
        return known[2]

    def close(self) -> None:
        """Nothing to give back: what was written is there."""


class Rollouts:
    """The driver's side: the store of one on-policy algorithm."""

    def __init__(self, store: Store, address: QueueAddress) -> None:
        self.store = store
        self.address = address

    def report(self) -> dict[str, Any]:
        """Return the counts of every queue, by its name."""
        if self.store.closed:
            return {}
        return {name: self.store.queue(name).info()._asdict() for name in self.store.tables()}

    def close(self) -> None:
        """Close the store; its memory goes once the env runners have stopped. Idempotent."""
        self.store.close()


def _joined(name: str, parts: list[tuple[Array, int]]) -> Array:
    """A column of episodes, one behind the other, each with its number of rows; see forms.py of the last."""
    zero = np.zeros_like(parts[0][0][:1]) if name == REWARDS else None
    pieces: list[Array] = []
    for values, n in parts:
        pieces.append(values)
        if len(values) < n:
            pieces.append(values[-1:] if zero is None else zero)
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
