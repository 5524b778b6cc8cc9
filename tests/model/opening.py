"""Opening a block: what whoever needs one does for all under the index lock (evict.cpp, fold.cpp, recover.cpp).

Recover what a dead holder left, fold what is published, evict the surplus, reclaim, seal what dead owners had open, and
give. The other writers publish meanwhile: each access to `pub` is a step of its own. Part of the publication model.
"""

from __future__ import annotations

from tests.model.blocks import FREE, OPEN, RETIRED, Block, Local, Table
from tests.model.explorer import Actor, Next, Violation, put
from tests.model.robust import ORPHAN, take, unlock

__all__ = ["Opener"]


class Opener(Actor):
    """TableCore::open_block."""

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, f"writer {me}", "append")
        self.mutation = mutation

    def mine(self, w: Table) -> Local:
        return w.local[self.me]

    def note(self, w: Table, **values: object) -> None:
        w.local = put(w.local, self.me, w.local[self.me]._replace(**values))  # type: ignore[arg-type]

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
        if block.state == OPEN and block.pub > block.folded:
            self.note(w, saw=block.pub, then="fold_next")
            return "fold_rows"
        self.note(w, at=at + 1)
        return "fold"

    def fold_next(self, w: Table) -> Next:
        self.note(w, at=self.mine(w).at + 1, saw=0, then="")
        return self.fold(w)

    def fold_rows(self, w: Table) -> Next:
        """make_ready: from here on the rows can be drawn."""
        mine = self.mine(w)
        w.require_whole(mine.at, w.blocks[mine.at].folded, mine.saw)
        w.change(mine.at, ready=mine.saw)
        return "fold_block_leaves"

    def fold_block_leaves(self, w: Table) -> Next:
        mine = self.mine(w)
        w.change(mine.at, folded=mine.saw)
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
        self.note(w, saw=w.blocks[at].pub, then="evict_surplus")
        if self.mutation == "seal by store":
            return "seal_store"
        w.change(at, sealed=True)
        return self.sealed(w)

    def seal_store(self, w: Table) -> Next:
        w.change(self.mine(w).at, sealed=True, pub=self.mine(w).saw)
        return self.sealed(w)

    def sealed(self, w: Table) -> Next:
        mine = self.mine(w)
        if w.blocks[mine.at].folded < mine.saw and self.mutation != "retire unfolded":
            return "fold_rows"
        return "evict_rest" if mine.stage == 2 else "retire_before"

    def retire_before(self, w: Table) -> Next:
        """(retired_epoch, and what it is for: epochs.py)"""
        at = self.mine(w).at
        block = w.blocks[at]
        if not block.folded == block.evicted == block.pub:
            raise Violation(f"block {at} retired with {block.pub} rows published, {block.folded} of them folded")
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
            self.note(w, at=0, saw=0, then="")
            return "reclaim"
        self.note(w, at=0, saw=0, then="")
        return "evict_surplus"

    def find_free(self, w: Table) -> Next:
        free = [b for b, k in enumerate(w.blocks) if k.state == FREE]
        if free:
            self.note(w, block=free[0])
            return "give"
        self.note(w, at=0)
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
        if mine.stage == 1 and w.order:
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
        """Room is short (idle writers, many open blocks): the oldest block goes before its time."""
        at = w.order[0]
        self.note(w, at=at, saw=w.blocks[at].pub, then="evict_rest")
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
        w.change(self.mine(w).block, pub=0, sealed=False, released=False)
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
