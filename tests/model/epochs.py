"""Reader epochs: no reader returns bytes of a block's next life (process.cpp ReaderEpoch, sampler.cpp, evict.cpp).

One block of one row of two words, written anew in each life: both words then hold the number of the life. A keeper
(the writer that needs the block) evicts, retires, reclaims, gives and overwrites it. Readers enter, draw, copy the
words one by one, leave. A reader may be stopped anywhere: to the model that is just a step that comes late. How long
20 ms are is left open, so the keeper may expel any active reader at any scan, which covers whatever the clock says.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model.explorer import DEAD, DONE, Actor, Next, Violation, World, put
from tests.model.robust import UNLOCKED, orphan, take, unlock

__all__ = ["HARMLESS", "MUTATIONS", "make"]

MUTATIONS = {
    "no epoch check": "reclaim frees a retired block without looking at the readers",
    "< for <=": "reclaim frees the block although a reader of the very epoch of its retirement is active",
    "leave without CAS": "leave stores 0 and does not notice that the reader was expelled",
    "enter after draw": "the reader draws first and marks its slot afterwards",
    "readers_used late": "the high-water mark that the scan relies on is raised after the draw",
    "expel by store": "the reclaimer stores kExpelled instead of exchanging the value it saw",
    "expelled slot kept": "a reader that finds itself expelled leaves kExpelled in its slot",
    "no expulsion": "a reader that does not move is waited for, dead ones included",
    "claimant keeps readers": "whoever takes a dead process's slot does not clear its readers",
}
HARMLESS = {
    "draw without lock": "while memory is sequentially consistent, marking the slot first is enough; see weak.py",
    "progress unchecked": "leave() sees the expulsion too: progress() only ends a doomed copy early",
    "same entry number": "an expelled batch is drawn again, whoever was meant: the number serves the stall clock",
    "epoch not bumped": "readers that entered later then hold the block too: safe, but busy readers starve the writer",
}

FREE, OPEN, RETIRED = "free", "open", "retired"
IDLE, EXPELLED = (0, 0), (-1, -1)
NO_EPOCH = 1 << 20


class Reader(NamedTuple):
    """A reader thread's own variables."""

    left: int  # batches still to draw
    entry: int = 0
    state: tuple[int, int] = IDLE  # (entry number, epoch), as it put it into its slot
    life: int = 0  # of the block, when drawn
    first: int = 0  # the copies
    second: int = 0
    valid: bool = True


class Keeper(NamedTuple):
    """The reclaimer's own variables."""

    left: int  # lives still to give
    at: int = 0  # reader being looked at
    saw: tuple[int, int] = IDLE
    oldest: int = NO_EPOCH


class Store(World):
    def __init__(self, readers: int, batches: int, lives: int, crashes: int) -> None:
        super().__init__(["enter_load"] * readers + ["open_lock"], crashes)
        self.epoch = 1
        self.slots: tuple[tuple[int, int], ...] = (IDLE,) * readers
        self.used = (False,) * readers
        self.lock = UNLOCKED
        self.state, self.life, self.published, self.evicted, self.retired_epoch = OPEN, 1, True, False, 0
        self.words: tuple[int, int] = (1, 1)
        self.readers = (Reader(batches),) * readers
        self.keeper = Keeper(lives)


class ReaderThread(Actor):
    """Sampler::sample: enter, draw under the lock, copy, leave. Alone in its process."""

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, f"reader {me}", "enter_load")
        self.mutation = mutation

    def mine(self, w: Store) -> Reader:
        return w.readers[self.me]

    def note(self, w: Store, mine: Reader) -> None:
        w.readers = put(w.readers, self.me, mine)

    def mark(self, w: Store, value: tuple[int, int]) -> None:
        w.slots = put(w.slots, self.me, value)

    def enter_load(self, w: Store) -> Next:
        mine = self.mine(w)
        if mine.left == 0:
            return DONE
        entry = 1 if self.mutation == "same entry number" else mine.entry + 1
        self.note(w, Reader(mine.left, entry, (entry, w.epoch), mine.life))
        return "draw_locked" if self.mutation == "enter after draw" and mine.life == 0 else "enter_cas"

    def enter_cas(self, w: Store) -> Next:
        if w.slots[self.me] != IDLE:
            return None  # naps until a slot is idle
        self.mark(w, self.mine(w).state)
        if self.mutation == "readers_used late":
            return "draw_locked"
        return "reader_entered"

    def reader_entered(self, w: Store) -> Next:
        w.used = put(w.used, self.me, True)
        if self.mutation in ("enter after draw", "readers_used late"):
            return "gather_first"
        return "draw" if self.mutation == "draw without lock" else "draw_locked"

    def draw_locked(self, w: Store) -> Next:
        return "draw" if take(w, self.me) else None

    def draw(self, w: Store) -> Next:
        """fold, then find: only rows that are published, of an open block, and not evicted have a leaf."""
        drawable = w.state == OPEN and w.published and not w.evicted
        self.note(w, self.mine(w)._replace(life=w.life if drawable else 0))
        if self.mutation == "draw without lock":
            return "gather_first" if drawable else "leave_cas"
        return "draw_done" if drawable else "too_few"

    def draw_done(self, w: Store) -> Next:
        unlock(w, self.me)
        if self.mutation == "enter after draw":
            return "enter_load"
        return "reader_entered" if self.mutation == "readers_used late" else "gather_first"

    def too_few(self, w: Store) -> Next:
        unlock(w, self.me)
        return self.end_of_batch(w) if self.mutation == "enter after draw" else "leave_cas"

    def gather_first(self, w: Store) -> Next:
        self.note(w, self.mine(w)._replace(first=w.words[0]))
        return "gather_second" if self.mutation == "progress unchecked" else "progress_cas"

    def progress_cas(self, w: Store) -> Next:
        mine = self.mine(w)
        if w.slots[self.me] != mine.state:
            self.note(w, mine._replace(valid=False))
            return "leave_cas"
        entry = mine.entry if self.mutation == "same entry number" else mine.entry + 1
        self.note(w, mine._replace(entry=entry, state=(entry, mine.state[1])))
        self.mark(w, (entry, mine.state[1]))
        return "gather_second"

    def gather_second(self, w: Store) -> Next:
        self.note(w, self.mine(w)._replace(second=w.words[1]))
        return "leave_cas"

    def leave_cas(self, w: Store) -> Next:
        if w.slots[self.me] == self.mine(w).state or self.mutation == "leave without CAS":
            self.mark(w, IDLE)
            return self.reader_left(w)
        self.note(w, self.mine(w)._replace(valid=False))
        return self.reader_left(w) if self.mutation == "expelled slot kept" else "leave_reset"

    def leave_reset(self, w: Store) -> Next:
        self.mark(w, IDLE)
        return self.reader_left(w)

    def reader_left(self, w: Store) -> Next:
        """Return the batch, or draw another."""
        mine = self.mine(w)
        if mine.life and mine.valid and (mine.first, mine.second) != (mine.life, mine.life):
            raise Violation(f"a batch drawn from life {mine.life} was returned with words {mine.first}, {mine.second}")
        return self.end_of_batch(w)

    def end_of_batch(self, w: Store) -> Next:
        mine = self.mine(w)
        self.note(w, Reader(mine.left - 1, mine.entry))
        return "enter_load"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        return "gone"

    def gone(self, w: Store) -> Next:
        """The byte lock of the slot is free: a new process takes it, or nobody does."""
        self.note(w, Reader(self.mine(w).left))
        return ("attach_claimed", DEAD)

    def attach_claimed(self, w: Store) -> Next:
        if self.mutation != "claimant keeps readers":
            self.mark(w, IDLE)
        return "attach_cleaned"

    def attach_cleaned(self, w: Store) -> Next:
        w.used = put(w.used, self.me, False)
        return "enter_load"


class KeeperThread(Actor):
    """TableCore::open_block and the append that follows: the only one who evicts, reclaims and overwrites."""

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, "keeper", "open_lock")
        self.mutation = mutation

    def open_lock(self, w: Store) -> Next:
        if w.keeper.left == 0:
            return DONE
        return "evict" if take(w, self.me) else None

    def evict(self, w: Store) -> Next:
        w.keeper = Keeper(w.keeper.left)
        if w.state == FREE:
            return "give"
        if w.state == RETIRED:
            return "reclaim_scan"
        w.evicted = True
        return "retire_before"

    def retire_before(self, w: Store) -> Next:
        w.retired_epoch = w.epoch
        if self.mutation != "epoch not bumped":
            w.epoch += 1
        return "retire_state"

    def retire_state(self, w: Store) -> Next:
        w.state = RETIRED
        return "reclaim_scan"

    def reclaim_scan(self, w: Store) -> Next:
        """One load of one reader's slot. Whether an active one has stood still for too long is anybody's guess."""
        k = w.keeper
        if k.at == len(w.slots) or self.mutation == "no epoch check":
            return "reclaim_before"
        saw = w.slots[k.at]
        if not w.used[k.at] or saw in (IDLE, EXPELLED):
            w.keeper = k._replace(at=k.at + 1)
            return "reclaim_scan"
        w.keeper = k._replace(saw=saw)
        return "reclaim_counts" if self.mutation == "no expulsion" else ("reclaim_counts", "expel_before")

    def expel_before(self, w: Store) -> Next:
        k = w.keeper
        found = w.slots[k.at]
        if found == k.saw or self.mutation == "expel by store":
            w.slots = put(w.slots, k.at, EXPELLED)
            w.keeper = k._replace(at=k.at + 1)
            return "reclaim_scan"
        w.keeper = k._replace(saw=found)
        return "reclaim_counts"

    def reclaim_counts(self, w: Store) -> Next:
        k = w.keeper
        w.keeper = k._replace(at=k.at + 1, oldest=min(k.oldest, k.saw[1] if k.saw != EXPELLED else NO_EPOCH))
        return "reclaim_scan"

    def reclaim_before(self, w: Store) -> Next:
        held = w.retired_epoch > w.keeper.oldest if self.mutation == "< for <=" else w.retired_epoch >= w.keeper.oldest
        if held:
            return "wait_space"
        w.state = FREE
        return "give"

    def wait_space(self, w: Store) -> Next:
        unlock(w, self.me)
        return "open_lock"

    def give(self, w: Store) -> Next:
        w.life, w.published, w.evicted = w.life + 1, False, False
        return "open_before_state"

    def open_before_state(self, w: Store) -> Next:
        w.state = OPEN
        return "open_ordered"

    def open_ordered(self, w: Store) -> Next:
        unlock(w, self.me)
        return "append_first"

    def append_first(self, w: Store) -> Next:
        w.words = (w.life, w.words[1])
        return "append_second"

    def append_second(self, w: Store) -> Next:
        w.words = (w.words[0], w.life)
        return "append_before_publish"

    def append_before_publish(self, w: Store) -> Next:
        w.published = True
        w.keeper = w.keeper._replace(left=w.keeper.left - 1)
        return "open_lock"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        w.keeper = Keeper(w.keeper.left)
        return "open_lock"  # another writer goes on with what it finds


def make(
    mutation: str = "", *, readers: int = 2, batches: int = 1, lives: int = 2, crashes: int = 1
) -> tuple[Store, list[Actor]]:
    world = Store(readers, batches, lives, crashes)
    threads: list[Actor] = [ReaderThread(i, mutation) for i in range(readers)]
    return world, [*threads, KeeperThread(readers, mutation)]
