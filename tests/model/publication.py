"""Publication and the life of a block: no torn row is readable, no published row lost or changed, no block given away
while its owner can still write into it (writer.cpp append, evict.cpp, fold.cpp, recover.cpp).

Every actor is a writer in a process of its own; whoever needs a block folds, evicts, seals, reclaims and opens under
the index lock (opening.py) while the others publish without it. A killed writer's slot is taken by a new process, or
by none. Left out: links, priorities, the tree's journal, the list of blocks still to fold (recomputed from the blocks),
and blocks that a writer reserves in advance.
"""

from __future__ import annotations

from tests.model.blocks import Local, Table
from tests.model.explorer import DEAD, DONE, Actor, Next, put
from tests.model.opening import Opener
from tests.model.robust import orphan

__all__ = ["HARMLESS", "MUTATIONS", "make"]

MUTATIONS = {
    "publish first": "the count is raised before the bytes are written",
    "publish before entry": "the count is raised before the index entry is written",
    "publish by add": "the owner adds to pub without noticing that it was sealed",
    "seal by store": "the evictor loads pub and stores it with kSealed instead of fetch_or",
    "kReleased not awaited": "reclaim frees a sealed block although its owner still writes",
    "dead owner awaited": "reclaim waits for kReleased from an owner that is dead",
    "seal the living": "seal_dead does not ask whether the owner is alive",
    "claim not compared": "a new process in the dead owner's slot passes for the owner",
    "retire unfolded": "the evictor retires a block it has just sealed without folding its last rows",
    "open before reset": "give makes the block OPEN before it resets pub",
    "no recovery": "the next holder of an orphaned lock goes on without rebuilding the order",
}
HARMLESS = {
    "retire after order": "under the lock nobody sees the difference, and recovery rebuilds the order from the states",
}


class WriterThread(Opener):
    """Writer::append, row by row; a kill, and the next process in the slot."""

    def append(self, w: Table) -> Next:
        mine = self.mine(w)
        if mine.block < 0:
            return "open_locked" if mine.left else DONE
        if mine.left == 0 or mine.row == len(w.rows[0]):
            return "release_block"
        self.note(w, id=100 * (self.me + 1) + 10 * mine.claim + mine.left)
        return "append_before_publish" if self.mutation == "publish first" else "write_column_0"

    def write(self, w: Table, part: int) -> None:
        mine = self.mine(w)
        block = w.rows[mine.block]
        at = mine.row - (self.mutation == "publish first" or (self.mutation == "publish before entry" and part == 2))
        w.rows = put(w.rows, mine.block, put(block, at, put(block[at], part, mine.id)))

    def write_column_0(self, w: Table) -> Next:
        self.write(w, 0)
        return "write_column_1"

    def write_column_1(self, w: Table) -> Next:
        self.write(w, 1)
        return "append_before_publish" if self.mutation == "publish before entry" else "append_row_written"

    def append_row_written(self, w: Table) -> Next:
        self.write(w, 2)
        return "append" if self.mutation in ("publish first", "publish before entry") else "append_before_publish"

    def append_before_publish(self, w: Table) -> Next:
        """CAS(count -> count + 1): fails when somebody has sealed."""
        mine = self.mine(w)
        block = w.blocks[mine.block]
        by_add = self.mutation == "publish by add"
        if not by_add and (block.sealed or block.pub != mine.row):
            return "release_block"  # the row goes into another block
        at = block.pub
        w.change(mine.block, pub=at + 1)
        w.published = put(w.published, mine.block, put(w.published[mine.block], at, mine.id))
        self.note(w, row=mine.row + 1, left=mine.left - 1)
        if self.mutation == "publish first":
            return "write_column_0"
        return "append_row_written" if self.mutation == "publish before entry" else "append"

    def release_block(self, w: Table) -> Next:
        w.change(self.mine(w).block, sealed=True, released=True)
        mine = self.mine(w)
        w.local = put(w.local, self.me, Local(mine.left, mine.claim))
        return "append"

    def crash(self, w: Table) -> str:
        orphan(w, self.me)
        w.alive = put(w.alive, self.me, False)
        w.local = put(w.local, self.me, Local(self.mine(w).left))
        return "gone"

    def gone(self, w: Table) -> Next:
        return ("attach_lock", DEAD)

    def attach_lock(self, w: Table) -> Next:
        w.alive = put(w.alive, self.me, True)
        return "attach_claimed"

    def attach_claimed(self, w: Table) -> Next:
        w.claims = put(w.claims, self.me, w.claims[self.me] + 1)
        self.note(w, claim=w.claims[self.me])
        return "append"


def make(
    mutation: str = "",
    *,
    rows: tuple[int, ...] = (2, 2),
    blocks: int = 2,
    per_block: int = 2,
    max_size: int = 1,
    crashes: int = 1,
) -> tuple[Table, list[Actor]]:
    world = Table(rows, blocks, per_block, max_size, crashes)
    return world, [WriterThread(i, mutation) for i in range(len(rows))]
