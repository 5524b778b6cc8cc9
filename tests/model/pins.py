"""Pins: the bytes under a live pin never change (process.cpp pin, unpin, claim_slot; evict.cpp pinned, reclaim).

A holder pins a block under the index lock, reads both words of its row through the view, drops the view, and may do it
again. A forked child of it inherits a copy of the view and drops that. A keeper retires the block, scans the ledgers,
reuses and overwrites it. A killed holder's place is taken by a new process, or by none.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model.explorer import DEAD, DONE, Actor, Next, Violation, World, put
from tests.model.robust import UNLOCKED, orphan, take, unlock

__all__ = ["MUTATIONS", "make"]

MUTATIONS = {
    "pins not scanned": "reclaim frees a retired block without looking at the ledgers",
    "pin without lock": "the block is seen live under the lock, the entry written after unlocking",
    "pins_used late": "the high-water mark that the scan relies on is raised after unlocking",
    "unpin before last read": "the entry is cleared while the view still reads",
    "dead pins honoured": "the scan does not ask whether an entry's process lives",
    "claimant keeps pins": "whoever takes a dead process's slot does not clear its ledger",
    "claimant clears late": "the new process works first and clears its predecessor's ledger afterwards",
    "forks not compared": "a forked child's copy of a view gives the parent's pin back",
}

FREE, OPEN, RETIRED = "free", "open", "retired"


class Holder(NamedTuple):
    """The pinning process's own variables."""

    left: int  # views still to take
    entry: int = -1  # of the ledger
    life: int = 0  # of the block, when it was pinned
    unclean: bool = False  # (mutation) the predecessor's ledger is still to be cleared


class Store(World):
    def __init__(self, views: int, lives: int, crashes: int, entries: int, children: int) -> None:
        super().__init__(["pin_locked", "open_lock", *["fork"] * children], crashes)
        self.lock = UNLOCKED
        self.alive = True  # the byte lock of the holder's process slot
        self.pins = (False,) * entries  # whether the entry names the block
        self.pins_used = 0
        self.state, self.life, self.published = OPEN, 1, True
        self.words: tuple[int, int] = (1, 1)
        self.holder = Holder(views)
        self.inherited = -1  # the entry of the view that the child has a copy of
        self.lives = lives  # the keeper still has to give
        self.at = self.used = 0  # its place in the ledger, and where that ends


class HolderThread(Actor):
    """TableCore::pin_block, reads through the view, Process::unpin; after a kill, Process::claim_slot."""

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, "holder", "pin_locked")
        self.mutation = mutation

    def pin_locked(self, w: Store) -> Next:
        if w.holder.left == 0:
            return DONE
        return "pin_check" if take(w, self.me) else None

    def pin_check(self, w: Store) -> Next:
        """The block must hold a live row: its generation is noted, its entry written before anyone can retire it."""
        if w.state != OPEN or not w.published:
            return "stale"
        w.holder = w.holder._replace(life=w.life)
        return "pin_unlock" if self.mutation == "pin without lock" else "pin_cas"

    def stale(self, w: Store) -> Next:
        unlock(w, self.me)
        w.holder = Holder(w.holder.left - 1)
        return "pin_locked"

    def pin_cas(self, w: Store) -> Next:
        entry = w.pins.index(False)
        w.pins = put(w.pins, entry, True)
        w.holder = w.holder._replace(entry=entry)
        if self.mutation == "pins_used late":
            return "pin_unlock"
        return "pin_written"

    def pin_written(self, w: Store) -> Next:
        w.pins_used = max(w.pins_used, w.holder.entry + 1)
        late = self.mutation in ("pin without lock", "pins_used late")
        return "view_first" if late else "pin_unlock"

    def pin_unlock(self, w: Store) -> Next:
        unlock(w, self.me)
        if self.mutation == "pin without lock":
            return "pin_cas"
        if w.holder.unclean:
            return "attach_claimed"
        return "pin_written" if self.mutation == "pins_used late" else "view_first"

    def view_first(self, w: Store) -> Next:
        self.look(w, 0)
        return "unpin" if self.mutation == "unpin before last read" else "view_second"

    def view_second(self, w: Store) -> Next:
        self.look(w, 1)
        return self.ended(w) if self.mutation == "unpin before last read" else "unpin"

    def look(self, w: Store, word: int) -> None:
        if w.words[word] != w.holder.life:
            raise Violation(f"a view of life {w.holder.life} shows word {w.words[word]}")

    def unpin(self, w: Store) -> Next:
        w.pins = put(w.pins, w.holder.entry, False)
        return "view_second" if self.mutation == "unpin before last read" else self.ended(w)

    def ended(self, w: Store) -> Next:
        w.holder = Holder(w.holder.left - 1)
        return "pin_locked"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        w.alive = False
        w.holder = Holder(w.holder.left)
        return "gone"

    def gone(self, w: Store) -> Next:
        """The byte lock of the slot is free: a new process takes it, or nobody does."""
        return ("attach_lock", DEAD)

    def attach_lock(self, w: Store) -> Next:
        w.alive = True  # from here on the predecessor's pins look like a living process's: they only hold longer
        if self.mutation == "claimant clears late":
            w.holder = w.holder._replace(unclean=True)
            return "pin_locked"
        return "pin_locked" if self.mutation == "claimant keeps pins" else "attach_claimed"

    def attach_claimed(self, w: Store) -> Next:
        w.pins = (False,) * len(w.pins)
        return "attach_cleaned"

    def attach_cleaned(self, w: Store) -> Next:
        w.pins_used = 0
        if w.holder.unclean:
            w.holder = w.holder._replace(unclean=False)
            return "view_first"
        return "pin_locked"


class ChildThread(Actor):
    """A child forked at some moment of a view's life: its copy of the view is dropped with its memory."""

    mortal = False

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, "forked child", "fork")
        self.mutation = mutation

    def fork(self, w: Store) -> Next:
        if w.labels[0] in (DONE, DEAD):
            return DONE
        if w.holder.entry < 0 or w.labels[0] not in ("view_first", "view_second"):
            return None
        w.inherited = w.holder.entry
        return "unpin"

    def unpin(self, w: Store) -> Next:
        """The handle remembers how often its process had been forked: not its own, so nothing is done."""
        if self.mutation == "forks not compared":
            w.pins = put(w.pins, w.inherited, False)
        w.inherited = -1
        return DONE


class KeeperThread(Actor):
    """TableCore::open_block and the append that follows: evicts, reclaims, overwrites."""

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, "keeper", "open_lock")
        self.mutation = mutation

    def open_lock(self, w: Store) -> Next:
        if w.lives == 0:
            return DONE
        return "retire" if take(w, self.me) else None

    def retire(self, w: Store) -> Next:
        w.at = w.used = 0
        if w.state == FREE:
            return "give"
        w.state = RETIRED
        return "reclaim_before" if self.mutation == "pins not scanned" else "pinned_used"

    def pinned_used(self, w: Store) -> Next:
        w.used = w.pins_used
        return "pinned_entry" if w.used else "reclaim_before"

    def pinned_entry(self, w: Store) -> Next:
        if w.pins[w.at]:
            return "wait_space" if self.mutation == "dead pins honoured" else "pinned_alive"
        return self.next_entry(w)

    def pinned_alive(self, w: Store) -> Next:
        return "wait_space" if w.alive else self.next_entry(w)

    def next_entry(self, w: Store) -> Next:
        w.at += 1
        return "pinned_entry" if w.at < w.used else "reclaim_before"

    def wait_space(self, w: Store) -> Next:
        unlock(w, self.me)
        return "open_lock"

    def reclaim_before(self, w: Store) -> Next:
        w.state, w.at, w.used = FREE, 0, 0
        return "give"

    def give(self, w: Store) -> Next:
        w.life, w.published = w.life + 1, False
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
        w.lives -= 1
        return "open_lock"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        return "open_lock"  # another writer goes on with what it finds


def make(
    mutation: str = "", *, views: int = 2, lives: int = 3, crashes: int = 1, entries: int = 2, children: int = 1
) -> tuple[Store, list[Actor]]:
    actors: list[Actor] = [HolderThread(0, mutation), KeeperThread(1, mutation)]
    return Store(views, lives, crashes, entries, children), actors + [ChildThread(2, mutation)] * children
