"""A plain model of a table: what is live, what can be drawn, and what a window holds, from first principles.

It knows of the real table's inside just what decides the order of eviction: rows lie in blocks of a fixed size, each
filled by one writer; the block opened first is emptied first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class Row:
    obs: int  # unique: also the row's identity
    reward: float = 0.0
    end: str = ""  # "", "terminated", "truncated"
    final: bool = False
    raw: np.float32 | None = None  # None: the default, not known before the row can be drawn
    live: bool = True
    ready: bool = False


@dataclass(eq=False)
class Episode:
    rows: list[Row] = field(default_factory=list)
    cut: bool = False  # its writer has gone

    @property
    def ended(self) -> bool:
        return bool(self.rows) and self.rows[-1].final


@dataclass(eq=False)
class Block:
    rows: list[Row] = field(default_factory=list)
    evicted: int = 0
    sealed: bool = False


@dataclass(eq=False)
class ModelWriter:
    episodes: list[Episode]  # the running one of each environment
    block: Block | None = None


@dataclass(frozen=True)
class Window:
    reward: float
    next_obs: int
    terminated: bool
    truncated: bool
    discount: float
    m: int


class TableModel:
    """`n` is 0 for plain rows, else the steps of a window."""

    def __init__(self, capacity: int, block_rows: int, n: int, gamma: float, alpha: float) -> None:
        self.capacity, self.block_rows, self.n, self.gamma, self.alpha = capacity, block_rows, n, gamma, alpha
        self.blocks: list[Block] = []  # that may still hold live rows, oldest first
        self.episode_of: dict[Row, Episode] = {}
        self.newly_ready: list[Row] = []

    @property
    def live(self) -> list[Row]:
        """Live steps in eviction order."""
        return [row for block in self.blocks for row in block.rows[block.evicted :] if not row.final]

    @property
    def ready(self) -> list[Row]:
        return [row for row in self.live if row.ready]

    def writer(self, num_envs: int) -> ModelWriter:
        return ModelWriter([Episode() for _ in range(num_envs)])

    def append(self, writer: ModelWriter, rows: list[tuple[int, Row]]) -> None:
        """Append rows, each to the episode of an environment."""
        for env, row in rows:
            if writer.block is None or writer.block.sealed or len(writer.block.rows) == self.block_rows:
                self.take_in()  # whoever asks for a block takes in what is published
                writer.block = Block()
                self.blocks.append(writer.block)
            writer.block.rows.append(row)
            episode = writer.episodes[env]
            episode.rows.append(row)
            self.episode_of[row] = episode
            if row.final:
                writer.episodes[env] = Episode()
        self.take_in()

    def close(self, writer: ModelWriter) -> None:
        for episode in writer.episodes:
            episode.cut = True
        if writer.block is not None:
            writer.block.sealed = True
        self.take_in()

    def clear(self, writers: list[ModelWriter]) -> None:
        for block in self.blocks:
            block.sealed = True
            for row in block.rows:
                row.live = False
        self.blocks = []
        for writer in writers:
            writer.episodes = [Episode() for _ in writer.episodes]

    def take_in(self) -> None:
        """See which rows have their window by now, then evict what is above capacity."""
        for row in self.live:
            if not row.ready and self._complete(row):
                row.ready = True
                self.newly_ready.append(row)
        surplus = len(self.live) - self.capacity
        while surplus > 0:
            block = self.blocks[0]
            while block.evicted < len(block.rows):
                row = block.rows[block.evicted]
                if not row.final and surplus == 0:
                    return
                surplus -= not row.final
                row.live = False
                block.evicted += 1
            if not block.sealed and surplus == 0:
                return
            block.sealed = True
            self.blocks.pop(0)

    def _complete(self, row: Row) -> bool:
        if self.n == 0:
            return True
        episode = self.episode_of[row]
        after = len(episode.rows) - 1 - episode.rows.index(row)
        return after >= self.n or episode.ended or (episode.cut and after >= 1)

    def window(self, row: Row) -> Window:
        """The window that begins with a ready row."""
        rows = self.episode_of[row].rows
        first = rows.index(row)
        m, reward, last = 0, 0.0, row
        while m < self.n and first + m + 1 < len(rows) and not rows[first + m].final:
            last = rows[first + m]
            reward += self.gamma**m * last.reward
            m += 1
        discount = 0.0 if last.end == "terminated" else self.gamma**m
        return Window(reward, rows[first + m].obs, last.end == "terminated", last.end == "truncated", discount, m)

    def mass(self, row: Row) -> float:
        assert row.raw is not None
        return 0.0 if row.raw == 0 else float(row.raw) ** self.alpha

    def probabilities(self) -> dict[int, float]:
        """By obs, of the rows that can be drawn."""
        masses = {row.obs: self.mass(row) for row in self.ready}
        total = sum(masses.values())
        return {obs: mass / total for obs, mass in masses.items() if mass > 0}
