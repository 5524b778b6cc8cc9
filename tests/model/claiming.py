"""Taking a process slot after a fork: once, whichever threads of the child come first (process.cpp check, claim_slot).

A forked child claims a slot of its own at its first call. Two of its threads may make that call at the same time, and
they share one file description, so the byte lock lets both pass: only a mutex around check() keeps the second from
clearing the pins, and outdating the claim, that the first has begun to work with.
"""

from __future__ import annotations

from tests.model.explorer import DONE, Actor, Next, Violation, World, put

__all__ = ["MUTATIONS", "make"]

MUTATIONS = {
    "claim without mutex": "both threads of the child run claim_slot",
    "forked not asked again": "the second thread claims once more when it gets the mutex",
    "forked cleared first": "the flag that sends threads into claim_slot is cleared before the slot is clean",
}


class Child(World):
    def __init__(self, threads: int) -> None:
        super().__init__(["check"] * threads)
        self.forked = True
        self.mutex = -1
        self.claim = 1  # in the segment, as bumped by whoever had the slot before
        self.mine = 0  # Process::claim_, shared by the threads
        self.pins: tuple[bool, ...] = (True,) * threads  # the dead predecessor's
        self.owner_claim = (0,) * threads  # of the block that each thread's writer has open


class Thread(Actor):
    """The first call of one thread: check(), then a pin, a block, and some work with both."""

    mortal = False

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, f"thread {me}", "check")
        self.mutation = mutation

    def check(self, w: Child) -> Next:
        if not w.forked:
            return "pin_cas"
        return "attach_lock" if self.mutation == "claim without mutex" else "check_mutex"

    def check_mutex(self, w: Child) -> Next:
        if w.mutex >= 0:
            return None
        w.mutex = self.me
        return "attach_lock" if w.forked or self.mutation == "forked not asked again" else "check_done"

    def attach_lock(self, w: Child) -> Next:
        """F_OFD_SETLK through the one description: never refused to a thread of the same process."""
        if self.mutation == "forked cleared first":
            w.forked = False
        return "attach_bump"

    def attach_bump(self, w: Child) -> Next:
        w.claim += 1
        return "attach_claimed"

    def attach_claimed(self, w: Child) -> Next:
        w.mine = w.claim
        return "attach_clear"

    def attach_clear(self, w: Child) -> Next:
        w.pins = (False,) * len(w.pins)
        return "attach_cleaned"

    def attach_cleaned(self, w: Child) -> Next:
        w.forked = False
        return "pin_cas" if self.mutation == "claim without mutex" else "check_done"

    def check_done(self, w: Child) -> Next:
        w.mutex = -1
        return "pin_cas"

    def pin_cas(self, w: Child) -> Next:
        w.pins = put(w.pins, self.me, True)
        return "give"

    def give(self, w: Child) -> Next:
        w.owner_claim = put(w.owner_claim, self.me, w.mine)
        return "work"

    def work(self, w: Child) -> Next:
        if not w.pins[self.me]:
            raise Violation(f"thread {self.me} uses a view whose pin was cleared")
        if w.owner_claim[self.me] != w.claim:
            raise Violation(f"thread {self.me} writes into a block that others take for a dead process's")
        return DONE


def make(mutation: str = "", *, threads: int = 2) -> tuple[Child, list[Actor]]:
    return Child(threads), [Thread(i, mutation) for i in range(threads)]
