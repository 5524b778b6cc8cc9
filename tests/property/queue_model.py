"""What a queue must deliver, in plain Python: rows in lists, and who has them.

Rows come out by the births of their blocks, then by their places there; a group is complete with its last row, and
groups come out in that order. A model tells whoever plays it what the next delivery, refusal or count has to be.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CONSUMERS = ("a", "b")


@dataclass
class Row:
    """A row, and who has acknowledged it. `place`: its block and its place there."""

    x: int
    value: int
    tokens: int
    version: int
    place: tuple[int, int]
    since: int  # rows that were appended at once have one age
    score: float = 0.0
    done: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(CONSUMERS, False))
    again: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(CONSUMERS, False))  # was out, and came back


@dataclass
class Out:
    """A delivery that is out: its rows as they were delivered, and those that are left of them."""

    batch: Any
    consumer: str
    rows: list[Row]
    left: list[Row]
    lost: bool = False


@dataclass
class Counts:
    """What is counted of one consumer group."""

    delivered: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    stale_rows: int = 0
    dropped_rows: int = 0


class TooLarge(Exception):
    """The first row (group) is above max_tokens by itself."""


class QueueModel:
    """`rows` in the order of their publication; only those that some group has not acknowledged are kept."""

    def __init__(self, max_size: int, staleness: int, group: int, capacity: int) -> None:
        self.max_size, self.staleness, self.group, self.capacity = max_size, staleness, group, capacity
        self.rows: list[Row] = []
        self.out: list[Out] = []
        self.version = 0
        self.ended = False
        self.grouped: set[str] = set()  # consumers that have asked for groups: their rows leave by whole groups
        self.counts = {name: Counts() for name in CONSUMERS}
        self.appended = 0
        self._blocks = itertools.count()
        self._open: dict[Any, list[int]] = {}  # of each producer: block, rows in it

    # ---- what is there

    def live(self) -> list[Row]:
        return [row for row in self.rows if not all(row.done.values())]

    def away(self, consumer: str) -> set[int]:
        return {row.x for out in self.out if out.consumer == consumer and not out.lost for row in out.left}

    def waiting(self, consumer: str) -> list[Row]:
        """In the order of delivery."""
        away = self.away(consumer)
        found = [row for row in self.rows if not row.done[consumer] and row.x not in away]
        return sorted(found, key=lambda row: row.place)

    def too_old(self, row: Row) -> bool:
        return row.version < self.version - self.staleness

    def groups(self, consumer: str) -> tuple[list[list[Row]], dict[int, list[Row]]]:
        """Complete groups, in the order of their completion, and what there is of others."""
        partial: dict[int, list[Row]] = {}
        ready: list[list[Row]] = []
        waiting = {row.x for row in self.waiting(consumer)}
        for row in [row for row in self.rows if row.x in waiting]:
            members = partial.setdefault(row.value, [])
            members.append(row)
            if len(members) == self.group:
                ready.append(partial.pop(row.value))
        return ready, partial

    # ---- rows come in

    def refuses(self, n: int) -> bool:
        """Whether `n` rows find no room, once what nobody will be given has made some."""
        if len(self.live()) + n > self.max_size:
            for consumer in CONSUMERS:
                if consumer not in self.grouped:
                    self.drop_stale(consumer)
        return len(self.live()) + n > self.max_size

    def append(self, producer: Any, rows: Sequence[tuple[int, int, int]], version: int) -> None:
        """Rows of (x, value, tokens)."""
        at = self._open.setdefault(producer, [-1, 0])
        for x, value, tokens in rows:
            if at[0] < 0 or at[1] == self.capacity:
                at[:] = [next(self._blocks), 0]
            self.rows.append(Row(x, value, tokens, version, (at[0], at[1]), self.appended))
            at[1] += 1
        self.appended += len(rows)

    def leaves(self, producer: Any) -> None:
        """What it appends from now on goes into another block."""
        self._open.pop(producer, None)

    # ---- and out

    def drop_stale(self, consumer: str) -> None:
        self.finish(consumer, [row for row in self.waiting(consumer) if self.too_old(row)], "stale_rows")

    def next(self, consumer: str, n: int, max_tokens: int | None, partial: bool) -> list[Row]:
        """The rows of the next batch; none if there is none. Raises TooLarge."""
        self.drop_stale(consumer)
        return self._fill(consumer, [[row] for row in self.waiting(consumer)], n, max_tokens, partial)

    def next_groups(self, consumer: str, n: int, max_tokens: int | None, partial: bool) -> list[Row]:
        """As `next`, of whole groups; those that are too stale are dropped on the way."""
        self.grouped.add(consumer)
        return self._fill(consumer, self.groups(consumer)[0], n, max_tokens, partial)

    def _fill(self, consumer: str, units: list[list[Row]], n: int, max_tokens: int | None, partial: bool) -> list[Row]:
        rows: list[Row] = []
        left = max_tokens
        for unit in units:
            if any(map(self.too_old, unit)):
                self.finish(consumer, unit, "stale_rows")
                continue
            if left is not None:
                left -= sum(max(0, row.tokens) for row in unit)
                if left < 0:
                    if not rows:
                        raise TooLarge
                    return rows
            rows += unit
            if len(rows) + len(unit) > n:
                return rows
        return rows if partial or self.ended else []

    def given(self, batch: Any, consumer: str, rows: list[Row]) -> Out:
        self.counts[consumer].delivered += len(rows)
        self.counts[consumer].redelivered += sum(row.again[consumer] for row in rows)
        self.out.append(Out(batch, consumer, list(rows), list(rows)))
        return self.out[-1]

    def finish(self, consumer: str, rows: Sequence[Row], why: str) -> None:
        """They are done for this consumer group."""
        for row in rows:
            assert not row.done[consumer]
            row.done[consumer] = True
        counts = self.counts[consumer]
        setattr(counts, why, getattr(counts, why) + len(rows))
        self.rows = self.live()

    def acknowledged(self, out: Out, rows: Sequence[Row]) -> None:
        xs = {row.x for row in rows}
        self.finish(out.consumer, [row for row in out.left if row.x in xs], "acknowledged")
        out.left = [row for row in out.left if row.x not in xs]
        if not out.left:
            self.out.remove(out)

    def comes_back(self, out: Out) -> None:
        """Its rows wait again; the holder does not know unless it has asked for that."""
        if not out.lost:
            for row in out.left:
                row.again[out.consumer] = True
        out.lost = True

    def cleared(self) -> None:
        self.rows = []
        self._open.clear()
        for out in self.out:
            out.lost = True

    def reopened(self, capacity: int, max_size: int) -> None:
        """Restored: what was out waits again, and producers begin anew."""
        for out in self.out:
            self.comes_back(out)
        self.out.clear()
        self._open.clear()
        self.capacity, self.max_size = capacity, max_size

    def over(self, consumer: str) -> bool:
        """Whether there is nothing that could be delivered later, where there is nothing now."""
        return self.ended and not self.away(consumer)
