"""Publication and the life of a block: no torn row is readable, no published row lost or changed, no block given away
while its owner can still write into it (writer.cpp append, evict.cpp, fold.cpp, recover.cpp).

Every actor is a writer in a process of its own; whoever needs a block folds, evicts, seals, reclaims and opens under
the index lock while the others publish without it. A killed writer's slot is taken by a new process, or by none.
Left out: links, priorities, the tree's journal, and the list of blocks still to fold (recomputed from the blocks).
"""

from __future__ import annotations

from tests.model.blocks import FREE, OPEN, RETIRED, Block, Local, Table
from tests.model.explorer import DEAD, DONE, Actor, Next, Violation, put
from tests.model.robust import ORPHAN, orphan, take, unlock

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


class WriterThread(Actor):
    """Writer::append, row by row, and TableCore::open_block."""

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, f"writer {me}", "append")
        self.mutation = mutation

    def mine(self, w: Table) -> Local:
        return w.local[self.me]

    def note(self, w: Table, **values: object) -> None:
        w.local = put(w.local, self.me, w.local[self.me]._replace(**values))  # type: ignore[arg-type]

    # ---- Writer::append

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
        if not by_add and (block.sealed or block.count != mine.row):
            return "release_block"  # the row goes into another block
        at = block.count
        w.change(mine.block, count=at + 1)
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

    # ---- TableCore::open_block, all of it under the index lock

    def open_locked(self, w: Table) -> Next:
        orphaned = w.lock == ORPHAN
        if not take(w, self.me):
            return None
        if orphaned and self.mutation != "no recovery":
            return "recover"
        self.note(w, at=0, stage=0)
        return "fold"

    def recover(self, w: Table) -> Next:
        """Derived state from the ground truth. (Order of birth: blocks keep theirs; here the old order has it.)"""
        opened = [b for b, k in enumerate(w.blocks) if k.state == OPEN]
        w.order = tuple([b for b in w.order if b in opened] + [b for b in opened if b not in w.order])
        self.note(w, at=0, stage=0)
        return "fold"

    def fold(self, w: Table) -> Next:
        """The acquire load of one block's pub."""
        at = self.mine(w).at
        if at == len(w.blocks):
            self.note(w, at=0)
            return "evict_surplus"
        block = w.blocks[at]
        if block.state == OPEN and block.count > block.folded:
            self.note(w, count=block.count, then="fold_next")
            return "fold_rows"
        self.note(w, at=at + 1)
        return "fold"

    def fold_next(self, w: Table) -> Next:
        self.note(w, at=self.mine(w).at + 1, count=0, then="")
        return self.fold(w)

    def fold_rows(self, w: Table) -> Next:
        """make_ready: from here on the rows can be drawn."""
        mine = self.mine(w)
        w.require_whole(mine.at, w.blocks[mine.at].folded, mine.count)
        w.change(mine.at, ready=mine.count)
        return "fold_block_leaves"

    def fold_block_leaves(self, w: Table) -> Next:
        mine = self.mine(w)
        w.change(mine.at, folded=mine.count)
        return mine.then

    def evict_surplus(self, w: Table) -> Next:
        """evict_head: rows above max_size go, from the oldest block on."""
        surplus = w.live() - w.max_size
        if surplus <= 0 or not w.order:
            return "find_free"
        head = w.order[0]
        block = w.blocks[head]
        self.note(w, at=head)
        if block.evicted < block.folded:
            w.change(head, evicted=min(block.folded, block.evicted + surplus))
            return "evict_surplus"
        return "evict_head_seal"

    def evict_head_seal(self, w: Table) -> Next:
        """fetch_or(kSealed): the count is final, though the owner may be in the middle of a row."""
        at = self.mine(w).at
        self.note(w, count=w.blocks[at].count, then="evict_surplus")
        if self.mutation == "seal by store":
            return "seal_store"
        w.change(at, sealed=True)
        return self.sealed(w)

    def seal_store(self, w: Table) -> Next:
        w.change(self.mine(w).at, sealed=True, count=self.mine(w).count)
        return self.sealed(w)

    def sealed(self, w: Table) -> Next:
        mine = self.mine(w)
        if w.blocks[mine.at].folded < mine.count and self.mutation != "retire unfolded":
            return "fold_rows"
        return "evict_rest" if mine.stage == 2 else "retire_before"

    def retire_before(self, w: Table) -> Next:
        """(retired_epoch, and what it is for: epochs.py)"""
        at = self.mine(w).at
        block = w.blocks[at]
        if not block.folded == block.evicted == block.count:
            raise Violation(f"block {at} retired with {block.count} rows published, {block.folded} of them folded")
        if self.mutation == "retire after order":
            w.order = tuple(b for b in w.order if b != at)
            return "retire_state_last"
        w.change(at, state=RETIRED)
        return "retire_after"

    def retire_state_last(self, w: Table) -> Next:
        w.change(self.mine(w).at, state=RETIRED)
        return self.retired(w)

    def retire_after(self, w: Table) -> Next:
        w.order = w.order[1:]
        return self.retired(w)

    def retired(self, w: Table) -> Next:
        if self.mine(w).stage == 2:
            self.note(w, at=0, count=0, then="")
            return "reclaim"
        self.note(w, at=0, count=0, then="")
        return "evict_surplus"

    def find_free(self, w: Table) -> Next:
        free = [b for b, k in enumerate(w.blocks) if k.state == FREE]
        if free:
            self.note(w, block=free[0])
            return "give"
        self.note(w, at=0, written=False)
        return "reclaim"

    def lives(self, w: Table, owner: int, claim: int) -> bool:
        """Process::alive: one load and one system call; the order in which a slot changes hands makes them one."""
        if self.mutation != "claim not compared" and w.claims[owner] != claim:
            return False
        return w.alive[owner]

    def reclaim(self, w: Table) -> Next:
        mine = self.mine(w)
        if mine.at == len(w.blocks):
            return self.reclaimed(w)
        block = w.blocks[mine.at]
        if block.state == RETIRED:
            held = not block.released and (
                self.mutation == "dead owner awaited" or self.lives(w, block.owner, block.claim)
            )
            if not held or self.mutation == "kReleased not awaited":
                return "reclaim_before"
            self.note(w, written=True)
        self.note(w, at=mine.at + 1)
        return "reclaim"

    def reclaim_before(self, w: Table) -> Next:
        w.change(self.mine(w).at, state=FREE)
        self.note(w, at=self.mine(w).at + 1)
        return "reclaim"

    def reclaimed(self, w: Table) -> Next:
        mine = self.mine(w)
        self.note(w, at=0)
        if any(k.state == FREE for k in w.blocks):
            return "find_free"
        if mine.stage == 0:
            self.note(w, stage=1)
            return "seal_dead"
        if mine.stage == 1 and not mine.written and w.order:
            self.note(w, stage=2)
            return "evict_block"
        return "wait_space"

    def wait_space(self, w: Table) -> Next:
        unlock(w, self.me)
        w.local = put(w.local, self.me, Local(self.mine(w).left, self.mine(w).claim))
        return "append"

    def seal_dead(self, w: Table) -> Next:
        mine = self.mine(w)
        if mine.at == len(w.blocks):
            self.note(w, at=0)
            return "fold"
        block = w.blocks[mine.at]
        self.note(w, at=mine.at + 1)
        if block.state != OPEN or block.released:
            return "seal_dead"
        if self.mutation != "seal the living" and self.lives(w, block.owner, block.claim):
            return "seal_dead"
        w.change(mine.at, sealed=True, released=True)
        return "seal_dead"

    def evict_block(self, w: Table) -> Next:
        """Room is short though nothing waits to be let go: the oldest block goes before its time."""
        at = w.order[0]
        self.note(w, at=at, count=w.blocks[at].count, then="evict_rest")
        w.change(at, sealed=True)
        return self.sealed(w)

    def evict_rest(self, w: Table) -> Next:
        at = self.mine(w).at
        w.change(at, evicted=w.blocks[at].folded)
        return "retire_before"

    def give(self, w: Table) -> Next:
        mine = self.mine(w)
        w.published = put(w.published, mine.block, (0,) * len(w.rows[0]))
        if self.mutation == "open before reset":
            w.change(mine.block, state=OPEN, folded=0, evicted=0, ready=0, owner=self.me, claim=mine.claim)
            return "give_reset"
        w.blocks = put(w.blocks, mine.block, Block(owner=self.me, claim=mine.claim))
        return "open_before_state"

    def give_reset(self, w: Table) -> Next:
        w.change(self.mine(w).block, count=0, sealed=False, released=False)
        return "open_after_state"

    def open_before_state(self, w: Table) -> Next:
        w.change(self.mine(w).block, state=OPEN)
        return "open_after_state"

    def open_after_state(self, w: Table) -> Next:
        w.order = (*w.order, self.mine(w).block)
        return "open_ordered"

    def open_ordered(self, w: Table) -> Next:
        unlock(w, self.me)
        mine = self.mine(w)
        w.local = put(w.local, self.me, Local(mine.left, mine.claim, block=mine.block))
        return "append"

    # ---- death, and a new process in the slot

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
