"""The roles that append rows. Each says on the board what it tries and what was acknowledged."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import conduit
from tests.crash import rows
from tests.crash.board import Board, Field

__all__ = ["EpisodeExtender", "EpisodeWriter", "PlainWriter", "Role", "RowWriter", "VectorWriter", "Writers"]


class Role:
    """One process's part. Made after attaching, before its failpoints are armed."""

    def __init__(self, store: conduit.Store, board: Board, line: int, chance: random.Random) -> None:
        self.store = store
        self.board = board
        self.line = line
        self.writer_id = board.get(line, Field.WRITER)
        self.chance = chance
        self.count = 0

    def step(self) -> None:
        """Do one operation."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what the role holds, before the store is closed."""


class PlainWriter(Role):
    """Appends plain rows: `extend` and `append` by turns, with and without priorities."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.table = self.store.table("plain")
        self.next = 0

    def step(self) -> None:
        n = self.chance.randint(1, 12)
        self.board.set(self.line, Field.PLAIN_TRIED, self.next + n)
        columns = rows.plain_rows(self.writer_id, self.next, n)
        weights = rows.priority_of(columns["writer"], columns["serial"]) if self.chance.random() < 0.5 else None
        self.table.extend(columns, priorities=weights)
        self.next += n
        self.board.set(self.line, Field.PLAIN_ACKED, self.next)


class RowWriter(PlainWriter):
    """Appends plain rows one at a time, by a writer that it sometimes closes."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.writer = self.table.writer()

    def step(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            self.board.set(self.line, Field.PLAIN_TRIED, self.next + 1)
            columns = rows.plain_rows(self.writer_id, self.next, 1)
            self.writer.append(**{name: column[0] for name, column in columns.items()})
            self.next += 1
            self.board.set(self.line, Field.PLAIN_ACKED, self.next)
        if self.chance.random() < 0.05:
            self.writer.close()
            self.writer = self.table.writer()

    def close(self) -> None:
        self.writer.close()


class EpisodeWriter(Role):
    """Appends the steps of episodes one at a time, `end` with every final observation."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.table = self.store.table("episodic")
        self.writer = self.table.writer()
        self.next = 0

    def step(self) -> None:
        n = self.chance.randint(1, 12)
        columns = rows.episode_rows(self.writer_id, self.next, n)
        for k in range(n):
            self.board.set(self.line, Field.EPISODIC_TRIED, self.next + 1)
            if rows.is_final(self.next):
                self.writer.end(columns["obs"][k])
            else:
                self.writer.append(**{name: column[k] for name, column in columns.items()})
            self.next += 1
            self.board.set(self.line, Field.EPISODIC_ACKED, self.next)

    def close(self) -> None:
        self.writer.close()


class EpisodeExtender(Role):
    """Appends whole pieces of episodes by `extend`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.table = self.store.table("episodic")
        self.next = 0

    def step(self) -> None:
        n = self.chance.randint(1, 12)
        after = self.next + n
        if rows.is_final(after):  # its final observation goes in with the step before it
            after += 1
        columns = rows.episode_rows(self.writer_id, self.next, after - self.next)
        steps = ~rows.is_final(columns["serial"])
        columns = {name: column[steps] for name, column in columns.items()}
        columns["next_obs"] = rows.payload(columns["writer"], columns["serial"] + 1)
        self.board.set(self.line, Field.EPISODIC_TRIED, after)
        self.table.extend(columns)
        self.next = after
        self.board.set(self.line, Field.EPISODIC_ACKED, after)


class VectorWriter(Role):
    """Appends the steps of three environments together; the rows of each bear an id of their own."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.writer = self.store.table("episodic").writer(num_envs=len(rows.siblings(0)))
        self.next = 0

    def step(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            self.board.set(self.line, Field.EPISODIC_TRIED, self.next + 1)
            each = [rows.episode_rows(who, self.next, 1) for who in rows.siblings(self.writer_id)]
            step: dict[str, Any] = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
            if rows.is_final(self.next):  # of such a row only the observation counts
                step |= {name: np.zeros_like(column) for name, column in step.items() if name != "obs"}
            self.writer.append(**step)
            self.next += 1
            self.board.set(self.line, Field.EPISODIC_ACKED, self.next)

    def close(self) -> None:
        self.writer.close()


class Writers(Role):
    """The surviving writer: plain rows and episodes by turns."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.parts = (PlainWriter(*given), EpisodeWriter(*given))

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def close(self) -> None:
        for part in self.parts:
            part.close()
