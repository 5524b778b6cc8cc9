"""How rows come into a table, done by chance to one table and its model at once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from conduit import Table, Writer
from conduit.writer import VectorWriter
from tests.property.everything.model import Episode, Model
from tests.property.everything.shapes import WRITERS, Columns, Shape
from tests.store_support import scalar_writer, vector_writer

ENDS = ["", "", "", "", "terminated", "truncated"]


@dataclass
class Single:
    writer: Writer
    episode: Episode | None = None


@dataclass
class Vector:
    """Environments that step together; of each its episode, and whether its last step ended it."""

    writer: VectorWriter
    mode: str
    episodes: list[Episode | None]
    ended: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ended = [False] * len(self.episodes)


class Writing:
    """Writers of a table, step by step and for environments that step together, and whole arrays."""

    table: Table

    def __init__(self, chance: random.Random, shape: Shape) -> None:
        self.chance, self.shape = chance, shape
        self.model = Model(shape.max_times_sampled)
        self.singles: list[Single] = []
        self.vector: Vector | None = None
        self.extended: Episode | None = None  # goes on with the next extend

    def close(self) -> None:
        """Close all writers. What they were writing is cut off."""
        for single in self.singles:
            single.writer.close()
            cut(single.episode)
        self.singles = []
        if self.vector is not None:
            self.vector.writer.close()
        self._forget_vector()

    def leave(self) -> None:
        """What was being written is cut off, also by writers that are not closed: the store is, for this process."""
        for episode in [self.extended, *(single.episode for single in self.singles)]:
            cut(episode)
        self._forget_vector()
        self.singles, self.extended = [], None

    def write(self) -> None:
        """One of some writers appends steps, one by one; an episode may end without a flag."""
        if not self.singles or (self.chance.random() < 0.15 and len(self.singles) < WRITERS - 2):
            self.singles.append(Single(scalar_writer(self.table)))
        single = self.chance.choice(self.singles)
        for _ in range(self.chance.randint(1, 12)):
            episode = single.episode = single.episode or self.model.begin()
            end = self.chance.choice(["", *ENDS])
            single.writer.append(**self.shape.row(episode.next, end))
            episode.steps += 1
            if end or self.chance.random() < 0.05:
                single.writer.end(self.shape.observation(episode.next))
                episode.end, episode.final, single.episode = end, True, None

    def close_writer(self) -> None:
        """What it was writing is cut off."""
        if self.singles:
            single = self.singles.pop(self.chance.randrange(len(self.singles)))
            single.writer.close()
            cut(single.episode)

    def extend(self) -> None:
        """Whole arrays of steps, with priorities or without; the last episode goes on with the next ones."""
        rows: list[Columns] = []
        next_obs: list[int] = []
        for _ in range(self.chance.randint(1, max(1, min(15, self.table.max_size // 2)))):
            episode = self.extended = self.extended or self.model.begin()
            end = self.chance.choice(ENDS)
            rows.append(self.shape.row(episode.next, end))
            episode.steps += 1
            next_obs.append(episode.next)
            if end:
                episode.end, episode.final, self.extended = end, True, None
        columns = {**self._columns(rows), "next_obs": self.shape.observations(next_obs)}
        priorities = None
        if self.table.spec.prioritized and self.chance.random() < 0.5:
            priorities = np.array([self.chance.choice([0.5, 1, 2, 3]) for _ in rows], np.float32)
        assert len(self.table.extend(columns, priorities=priorities, return_keys=True)) == len(rows)

    def write_vector(self) -> None:
        """Environments step together, in one of the three modes in which gymnasium's reset themselves."""
        if self.vector is None:
            mode, envs = self.chance.choice(["next_step", "same_step", "disabled"]), self.chance.choice([1, 2, 3])
            self.vector = Vector(vector_writer(self.table, envs, autoreset=mode), mode, [None] * envs)
        for _ in range(self.chance.randint(1, 8)):
            self._step_vector(self.vector)
        if self.chance.random() < 0.2:
            self.vector.writer.close()
            self._forget_vector()

    def _step_vector(self, vector: Vector) -> None:
        rows: list[Columns] = []
        final_obs = np.empty(len(vector.episodes), object)  # None where none has ended
        for env, begun in enumerate(vector.episodes):
            episode = vector.episodes[env] = begun or self.model.begin()
            if vector.mode == "next_step" and vector.ended[env]:  # the step after: its final observation alone counts
                rows.append(self.shape.row(episode.next, ""))
                self._end_vector(vector, env)
                continue
            end = self.chance.choice(["", "", "", "terminated", "truncated"])
            rows.append(self.shape.row(episode.next, end))
            episode.steps += 1
            if end:
                episode.end, vector.ended[env] = end, True
                final_obs[env] = self.shape.observation(episode.next)
        columns = self._columns(rows)
        if vector.mode == "next_step":
            vector.writer.append(**columns)
            return
        if vector.mode == "same_step":
            vector.writer.append(**columns, final_obs=final_obs if any(vector.ended) else None)
        else:
            vector.writer.append(**columns)
            if any(vector.ended):
                vector.writer.end(final_obs)
        for env, ended in enumerate(vector.ended):
            if ended:
                self._end_vector(vector, env)

    def _end_vector(self, vector: Vector, env: int) -> None:
        episode = vector.episodes[env]
        assert episode is not None
        episode.final, vector.episodes[env], vector.ended[env] = True, None, False

    def _forget_vector(self) -> None:
        for episode in self.vector.episodes if self.vector else ():
            cut(episode)
        self.vector = None

    def _columns(self, rows: list[Columns]) -> Columns:
        return self.shape.columns(rows, masked=self.chance.random() < 0.5)


def cut(episode: Episode | None) -> None:
    if episode is not None:
        episode.cut = True
