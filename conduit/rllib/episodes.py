"""Episodes of on-policy algorithms: their steps lie in a queue, what travels is a handle, and each is opened once.

Opening claims the rows, so that they belong to one process, and gives views of the blocks that they lie in: read-only,
and valid for as long as somebody has them. Steps that lie in two blocks are put together: a copy. What an episode is
beside its rows is in forms.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from conduit.blocks import BlockView
from conduit.delivery import Consumer
from conduit.queue import Queue
from conduit.rllib.bootstrap import Extended, extend
from conduit.rllib.forms import rebuilt
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

    def open(self, blocks: Blocks | None = None, *, extended: bool = False) -> Any:
        """Return the episode; `extended` by the step that RLlib's learners add to each. It can be had once.

        Raises:
            StaleKey: it was opened before, in any process, or given up by a writer that found no room.
        """
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

    def open(self, blocks: Blocks | None = None, *, extended: bool = False) -> Any:
        """Return the `SingleAgentEpisode`; see above."""
        columns = (blocks or Blocks()).take(self)
        return rebuilt(self.form, self.kept, columns, self.lookback, self.steps, extended=extended)

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

    def open(self, blocks: Blocks | None = None, *, extended: bool = False) -> Any:
        """Return the `MultiAgentEpisode`; see above."""
        blocks = blocks or Blocks()
        found = self.shell.agent_episodes = {}
        for agent, episode in self.agents.items():
            if isinstance(episode, StoredEpisode):
                found[agent] = episode.open(blocks, extended=extended)
            else:
                found[agent] = extend(episode) if extended else episode
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
        self._queues: dict[tuple[str, str], tuple[Queue, Consumer]] = {}
        self._pinned: dict[tuple[Queue, int], _Pinned] = {}

    def take(self, handle: StoredEpisode) -> dict[str, Array]:
        """Return views of a handle's rows by column, and claim the rows."""
        place = handle.origin.store, handle.queue
        if place not in self._queues:
            queue = _shared(handle.origin.store, False).queue(handle.queue)
            self._queues[place] = queue, queue._consumer(None)
        queue, consumer = self._queues[place]
        # Pinned first and then claimed: rows that nobody claims any more may be overwritten.
        try:
            pieces = [piece for first, n in handle.runs for piece in self._pieces(queue, first, n)]
        except StaleKey:
            raise StaleKey(_gone(handle)) from None
        runs = [np.arange(first, first + n, dtype=np.uint64) for first, n in handle.runs]
        keys = runs[0] if len(runs) == 1 else np.concatenate(runs)
        if consumer.drop(keys) != len(keys):
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


def opened(episodes: Sequence[Any], *, extended: bool = False) -> list[Any]:
    """Open every handle among `episodes`; one whose steps were given up meanwhile is left out, and logged.

    `extended`: every episode, by the step that RLlib's learners add to each.
    """
    blocks = Blocks()
    found: list[Any] = Extended() if extended else []
    for episode in episodes:
        if not isinstance(episode, _Stored):
            found.append(extend(episode) if extended else episode)
            continue
        try:
            found.append(episode.open(blocks, extended=extended))
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
