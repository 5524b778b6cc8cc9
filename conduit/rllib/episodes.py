"""Episodes of on-policy algorithms: their steps lie in a queue, what travels is a handle, and each is opened once.

A row is a step as RLlib's episode holds it, whatever its module puts out included; an episode's last row has only its
observation. Opening claims the rows, so that they belong to one process, and gives views of the blocks that they lie
in: read-only, and valid for as long as somebody has them. Steps that lie in two blocks are put together: a copy.
"""

from __future__ import annotations

import copy
import logging
import os
import pickle
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from conduit.blocks import BlockView
from conduit.queue import Queue
from conduit.store import Store, _shared
from conduit_store.arrays import Array
from conduit_store.errors import StaleKey, StoreNotFound

__all__ = ["Origin", "StoredEpisode", "StoredEpisodes", "opened"]

logger = logging.getLogger("conduit")

_SLOT_BITS = 28  # of a key: the row's place; its block's generation is above
_attached: dict[str, Store] = {}  # of a process that nobody connected, in which handles arrive


class Origin(NamedTuple):
    """Where handles come from. With `opens_on_arrival` they become episodes where they are unpickled."""

    store: str
    runtime_dir: str
    opens_on_arrival: bool


class _Stored:
    """What stands in for an episode on its way through RLlib: it has a length, and opens itself to be sliced."""

    __slots__ = ("_whole", "steps")

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._whole: Any = None  # once it has been sliced

    def __len__(self) -> int:
        return self.steps

    def env_steps(self) -> int:
        """Steps of the environment."""
        return self.steps

    def __getitem__(self, steps: slice) -> Any:
        return self.slice(steps)

    def slice(self, steps: slice, **given: Any) -> Any:
        """A part of it, as `slice` of the episode that it stands for."""
        self._whole = self.open() if self._whole is None else self._whole
        return self._whole.slice(steps, **given)

    def open(self) -> Any:
        """Return the episode."""
        raise NotImplementedError


class StoredEpisode(_Stored):
    """An episode, or a part of one, that is in a queue. Stands in for RLlib's `SingleAgentEpisode` until it is opened.

    It has a length and can be sliced, which is all that RLlib does with an episode on its way to a learner. Slicing
    opens it: where RLlib divides it among two learners, its parts travel as RLlib sends them.
    """

    __slots__ = ("form", "kept", "lookback", "origin", "queue", "runs")

    def __init__(
        self,
        origin: Origin,
        queue: str,
        runs: tuple[tuple[int, int], ...],
        steps: int,
        lookback: int,
        form: bytes,
        kept: tuple[Any, ...],
    ) -> None:
        super().__init__(steps)
        self.origin = origin
        self.queue = queue
        self.runs = runs  # (key of the first row, rows) of rows whose keys follow each other
        self.lookback = lookback  # rows in front that belong to the part before
        self.form = form  # packed: spaces, and which columns are what; the same for all episodes of an env runner
        self.kept = kept  # what an episode has beside its steps

    def agent_steps(self) -> int:
        """Steps of the agent."""
        return self.steps

    def open(self, blocks: Blocks | None = None) -> Any:
        """Return the `SingleAgentEpisode`. It can be had once, in one process.

        Raises:
            StaleKey: it was opened before, or given up by a writer that found no room.
        """
        columns = (blocks or Blocks()).take(self)
        return _episode(self, columns)

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self.origin, self.queue, self.runs, self.steps, self.lookback, self.form, self.kept)
        return (_arrived if self.origin.opens_on_arrival else StoredEpisode), state

    def __repr__(self) -> str:
        return f"<StoredEpisode {self.kept[0]}: {self.steps} steps in {self.origin.store}/{self.queue}>"


class StoredEpisodes(_Stored):
    """A `MultiAgentEpisode` whose agents' episodes are in queues, one for each module."""

    __slots__ = ("agents", "shell")

    def __init__(self, shell: Any, agents: Mapping[Any, Any], steps: int) -> None:
        super().__init__(steps)
        self.shell = shell  # without its agents' episodes
        self.agents = agents

    def agent_steps(self) -> int:
        """Steps of all agents together."""
        return sum(len(episode) for episode in self.agents.values())

    def open(self, blocks: Blocks | None = None) -> Any:
        """Return the `MultiAgentEpisode`; as `StoredEpisode.open`."""
        blocks = blocks or Blocks()
        self.shell.agent_episodes = {
            agent: episode.open(blocks) if isinstance(episode, StoredEpisode) else episode
            for agent, episode in self.agents.items()
        }
        return self.shell

    def __reduce__(self) -> tuple[Any, ...]:
        stored = (episode for episode in self.agents.values() if isinstance(episode, StoredEpisode))
        on_arrival = any(episode.origin.opens_on_arrival for episode in stored)
        return (_all_arrived if on_arrival else StoredEpisodes), (self.shell, self.agents, self.steps)

    def __repr__(self) -> str:
        return f"<StoredEpisodes of {len(self.agents)} agents: {self.steps} steps>"


class _Pinned(NamedTuple):
    """The rows [start, stop) of a block that were not done when it was pinned."""

    generation: int
    start: int
    stop: int
    columns: dict[str, Array]


class _Memory:
    """A block's bytes, as NumPy asks for them; they stay pinned for as long as an array over them lives."""

    def __init__(self, view: BlockView) -> None:
        self.view = view
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (view._layout.block_bytes,), "data": (view._address, True),
        }  # fmt: skip


def _arrays(view: BlockView) -> dict[str, Array]:
    """The rows [start, stop) of a block by column, read-only. As `to_arrow`, in a tenth of the time."""
    layout, n = view._layout, len(view)
    memory = np.asarray(_Memory(view))
    return {
        column.name: np.ndarray((n, *column.shape), column.dtype, memory, offset + view.start * row_bytes)
        for column, offset, row_bytes in zip(view._schema.columns, layout.offsets, layout.row_bytes, strict=True)
    }


class Blocks:
    """Blocks that episodes lie in, looked up once. For one thread; short-lived, since it pins what it has."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str], Queue] = {}
        self._pinned: dict[tuple[Queue, int], _Pinned] = {}

    def take(self, handle: StoredEpisode) -> dict[str, Array]:
        """Return views of a handle's rows by column, and claim the rows."""
        place = handle.origin.store, handle.queue
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = _shared(handle.origin.store, False).queue(handle.queue)
        # Pinned first and then claimed: rows that nobody claims any more may be overwritten.
        try:
            pieces = [piece for first, n in handle.runs for piece in self._pieces(queue, first, n)]
        except StaleKey:
            raise StaleKey(_gone(handle)) from None
        runs = [np.arange(first, first + n, dtype=np.uint64) for first, n in handle.runs]
        keys = runs[0] if len(runs) == 1 else np.concatenate(runs)
        if queue.drop(keys) != len(keys):
            raise StaleKey(_gone(handle))
        if len(pieces) == 1:
            return pieces[0]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def _pieces(self, queue: Queue, first: int, n: int) -> Iterable[dict[str, Array]]:
        slot, generation = first & ((1 << _SLOT_BITS) - 1), first >> _SLOT_BITS
        per_block = queue._table._layout.rows
        while n:
            index, row = divmod(slot, per_block)
            here = min(n, per_block - row)
            pinned = self._pinned.get((queue, index))
            if pinned is None or pinned.generation != generation or pinned.stop < row + here:
                view = queue._table.block(index)
                pinned = self._pinned[queue, index] = _Pinned(view.generation, view.start, view.stop, _arrays(view))
            # A view begins with the block's first row that is not done.
            if pinned.generation != generation or not pinned.start <= row <= row + here <= pinned.stop:
                raise StaleKey
            at = row - pinned.start
            yield {name: values[at : at + here] for name, values in pinned.columns.items()}
            slot, n = slot + here, n - here


def opened(episodes: list[Any]) -> list[Any]:
    """Open every handle among `episodes`; one whose steps were given up meanwhile is left out, and logged."""
    blocks = Blocks()
    found: list[Any] = []
    for episode in episodes:
        if not isinstance(episode, StoredEpisode | StoredEpisodes):
            found.append(episode)
            continue
        try:
            found.append(episode.open(blocks))
        except StaleKey as gone:
            logger.warning("an episode is lost: %s", gone)
    return found


def _gone(handle: StoredEpisode) -> str:
    return f"{handle!r} was opened before, or given up by a writer that found no room. Each can be opened once"


def _arrived(*state: Any) -> Any:
    """What a handle becomes that opens on arrival: its episode, or nothing where that is lost."""
    handle = StoredEpisode(*state)
    origin = handle.origin
    if origin.store not in _attached:
        os.environ.setdefault("CONDUIT_RUNTIME_DIR", origin.runtime_dir)
        try:
            _attached[origin.store] = _shared(origin.store, False)
        except StoreNotFound:  # the algorithm has been stopped
            return []
    return next(iter(opened([handle])), [])  # RLlib flattens lists of episodes: an empty one is none


def _all_arrived(shell: Any, agents: Mapping[Any, Any], steps: int) -> Any:
    """As `_arrived`: the agents' episodes have arrived before."""
    lost = any(isinstance(episode, list) for episode in agents.values())
    return [] if lost else StoredEpisodes(shell, agents, steps).open()


# ---- what an episode is beside its steps

_BUFFERS = ("observations", "actions", "rewards")


def form_of(episode: Any) -> tuple[Any, ...] | None:
    """Return which columns an episode's buffers become, nested as they are; None where they are not alike in length."""
    buffers = {name: getattr(episode, name) for name in _BUFFERS}
    extra = episode.extra_model_outputs
    if not all(buffer.finalized for buffer in (*buffers.values(), *extra.values())):
        return None
    lookback = episode.observations.lookback
    if any(buffer.lookback != lookback for buffer in (episode.actions, episode.rewards, *extra.values())):
        return None
    return (
        _named("obs", episode.observations.data),
        _named("actions", episode.actions.data),
        {name: _named(name, buffer.data) for name, buffer in extra.items()},
    )


def columns_of(episode: Any, form: tuple[Any, ...]) -> dict[str, Array]:
    """Return the arrays behind the names of `form_of`: observations, and the others, which are one shorter."""
    columns: dict[str, Array] = {}
    _collect(form[0], episode.observations.data, columns)
    _collect(form[1], episode.actions.data, columns)
    columns["rewards"] = episode.rewards.data
    for name, buffer in episode.extra_model_outputs.items():
        _collect(form[2][name], buffer.data, columns)
    return columns


def kept_of(episode: Any) -> tuple[Any, ...]:
    """Return what an episode has beside its steps: small, and pickled with the handle."""
    infos = episode.infos
    return (
        episode.id_,
        (episode.agent_id, episode.module_id, episode.multi_agent_episode_id),
        (episode.is_terminated, episode.is_truncated, episode.t_started, episode.t),
        (episode._start_time, episode._last_step_time),
        episode.custom_data or None,
        (infos.data if any(infos.data) else len(infos.data), infos.lookback),
    )


def _episode(handle: StoredEpisode, columns: dict[str, Array]) -> Any:
    blank, (obs, actions, extra) = _unpacked(handle.form)
    id_, names, flags, times, custom, (infos, infos_lookback) = handle.kept
    episode = copy.copy(blank)
    episode.id_ = id_
    episode.agent_id, episode.module_id, episode.multi_agent_episode_id = names
    episode.is_terminated, episode.is_truncated, episode.t_started, episode.t = flags
    episode._start_time, episode._last_step_time = times
    episode._custom_data = custom or {}
    infos = [{} for _ in range(infos)] if isinstance(infos, int) else infos
    episode.infos = _filled(blank.infos, infos, infos_lookback, finalized=False)
    lookback, steps = handle.lookback, handle.lookback + handle.steps
    episode.observations = _filled(blank.observations, _nested(obs, columns, steps + 1), lookback)
    episode.actions = _filled(blank.actions, _nested(actions, columns, steps), lookback)
    episode.rewards = _filled(blank.rewards, columns["rewards"][:steps], lookback)
    episode.extra_model_outputs = {
        name: _filled(blank.infos, _nested(form, columns, steps), lookback) for name, form in extra.items()
    }
    return episode


def _filled(blank: Any, data: Any, lookback: int, *, finalized: bool = True) -> Any:
    """A buffer of the blank one's space. RLlib's constructor looks at the space anew, and at the length of dicts."""
    buffer = object.__new__(type(blank))  # as copy.copy, in a fifth of the time: there are eight an episode
    buffer.__dict__.update(blank.__dict__)
    buffer.data, buffer.lookback, buffer.finalized = data, lookback, finalized
    return buffer


def packed(form: Any) -> bytes:
    """A form on its way. Spaces of images are two more images, but all of one number."""
    return zlib.compress(pickle.dumps(form))


@lru_cache(maxsize=64)
def _unpacked(form: bytes) -> Any:
    """An episode of these spaces without steps, and which columns are what."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    (observation_space, action_space), names = pickle.loads(zlib.decompress(form))
    return SingleAgentEpisode(observation_space=observation_space, action_space=action_space), names


def _named(name: str, data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _named(f"{name}/{key}", value) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_named(f"{name}/{i}", value) for i, value in enumerate(data))
    return name


def _collect(form: Any, data: Any, columns: dict[str, Array]) -> None:
    if isinstance(form, str):
        columns[form] = data
    elif isinstance(form, Mapping):
        for key, below in form.items():
            _collect(below, data[key], columns)
    else:
        for below, value in zip(form, data, strict=True):
            _collect(below, value, columns)


def _nested(form: Any, columns: dict[str, Array], n: int) -> Any:
    if isinstance(form, str):
        return columns[form][:n]
    if isinstance(form, Mapping):
        return {key: _nested(below, columns, n) for key, below in form.items()}
    return tuple(_nested(below, columns, n) for below in form)
