"""The state of the publication model: blocks, rows, processes (layout.hpp Block, ProcessSlot, Table)."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.explorer import Violation, World, put
from tests.model.robust import UNLOCKED

__all__ = ["FREE", "OPEN", "RETIRED", "Block", "Local", "Table"]

FREE, OPEN, RETIRED = "free", "open", "retired"


class Block(NamedTuple):
    # pub, the writer's word, changed without the lock
    pub: int = 0  # its count
    sealed: bool = False
    released: bool = False
    # under the index lock
    state: str = FREE
    owner: int = -1
    claim: int = -1  # of the owner
    folded: int = 0
    evicted: int = 0
    # what the lock holder has put into the tree: rows [evicted, ready) have a leaf
    ready: int = 0


class Local(NamedTuple):
    """A writer's own variables."""

    left: int  # rows still to append
    claim: int = 0  # its process's, as it bumped it
    block: int = -1
    row: int = 0  # count of its own rows in the block
    id: int = 0  # of the row it is writing, no other row has it
    at: int = 0  # block that a loop has come to
    saw: int = 0  # of a block's count
    then: str = ""  # where fold and reclaim go on
    stage: int = 0  # of open_block


class Table(World):
    def __init__(self, rows: tuple[int, ...], blocks: int, per_block: int, max_size: int, crashes: int) -> None:
        super().__init__(["append"] * len(rows), crashes)
        self.lock = UNLOCKED
        self.max_size = max_size
        self.blocks = (Block(),) * blocks
        self.order: tuple[int, ...] = ()  # OPEN blocks, oldest first
        # Each row's bytes: two columns, and the index entry. A whole row has the same id three times.
        self.rows = (((0, 0, 0),) * per_block,) * blocks
        self.published = ((0,) * per_block,) * blocks  # ghost: the id that the publishing CAS was about
        self.alive = (True,) * len(rows)  # byte locks of the process slots
        self.claims = (0,) * len(rows)
        self.local = tuple(Local(n) for n in rows)

    def change(self, b: int, **values: Any) -> None:
        self.blocks = put(self.blocks, b, self.blocks[b]._replace(**values))

    def live(self) -> int:
        """live_steps: the lock holder keeps it as a number, recovery counts it anew."""
        return sum(max(0, k.folded - k.evicted) for k in self.blocks if k.state == OPEN)

    def whole(self, b: int, row: int) -> bool:
        return self.rows[b][row] == (self.published[b][row],) * 3 and self.published[b][row] > 0

    def require_whole(self, b: int, first: int, last: int) -> None:
        """Rows that someone is about to believe in must be the published ones."""
        for row in range(first, last):
            if not self.whole(b, row):
                raise Violation(
                    f"block {b} row {row} is read as (column, column, entry) = {self.rows[b][row]}, "
                    f"published was {self.published[b][row]}"
                )

    def check(self) -> str | None:
        for b, block in enumerate(self.blocks):
            if block.state == FREE:
                continue
            known = max(block.folded, block.ready)
            if known > block.pub and block.state == OPEN:
                return f"block {b}: {known} rows in the index, {block.pub} published"
            for row in range(block.pub):
                if self.published[b][row] and not self.whole(b, row):
                    return f"block {b} row {row}: a published row is {self.rows[b][row]}"
            if any(self.published[b][block.pub :]):
                return f"block {b}: a published row is above the count of {block.pub}"
        if len(set(self.order)) < len(self.order):
            return f"a block stands twice in the eviction order {self.order}"
        return None
