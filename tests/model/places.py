"""Places of blocks: rows move between frames of memory and the disk, and nobody notices (tier.cpp, evict.cpp).

One sealed block of two words: the first is a number that may be rewritten, the second never changes. It lies in a
frame or on disk; a mover carries it there and back. A reader draws and copies the words, each from where the block lies
at that moment; a viewer pins the block and reads through the address it then had; a rewriter stores another number
under the lock; a keeper retires the block and opens its next life in a free frame; a stranger takes free frames for
other blocks. Processes die anywhere. A sync may fail: then the disk shows what it had at the last sync that did not.
That a number which is stored on disk may be lost by a failing write-back, which nobody is told of, is known and left
out: it counts as synced.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.model.explorer import DEAD, DONE, Actor, Next, Violation, World, put
from tests.model.robust import ORPHAN, UNLOCKED, orphan, take, unlock

__all__ = ["HARMLESS", "MUTATIONS", "make"]

MUTATIONS = {
    "placed before sync": "the block lies on disk as soon as it is written, whatever the sync then says",
    "lives not looked at": "the block is neither pinned while it is written nor compared then: it may have begun anew",
    "other pins not looked at": "settle lets go of the frame of a block that somebody has pinned meanwhile",
    "rewritten not looked at": "settle takes what it wrote for the block's bytes, though a number was stored meanwhile",
    "rewritten on disk not looked at": "a block comes back with the number that was replaced on disk meanwhile",
    "copied not cleared": "a block that came back and was rewritten is let go of without being written again",
    "frame free at once": "the frame that was left is given away while readers still copy from it",
    "recovery frees frames": "after a holder's death, frames without a block are given away under their readers",
    "dead mover's frame kept": "the frame that a dead mover had taken never comes free",
    "drop without asking": "a block whose bytes are on disk already is let go of although somebody holds a view",
}
HARMLESS = {
    "generation not compared": "the mover's own pin keeps the block in its life: the comparison is a second lock",
    "mover without pin": "one mover is told by the generation; two, not modelled, might write to one place at once",
}

FREE, OPEN, RETIRED = "free", "open", "retired"
DISK, NOWHERE = -1, -2
EMPTY, USED, LEAVING, TAKEN, OTHER = "empty", "used", "leaving", "taken", "other"  # frames; OTHER: a stranger's block
LOST = (-9, -9)  # bytes that nobody wrote there


Words = tuple[tuple[int, int], tuple[int, int]]


class Frame(NamedTuple):
    state: str = EMPTY
    copied: bool = False  # the disk has the same bytes
    rewritten: bool = False  # since a mover chose it
    epoch: int = 0  # it was left in


class Mover(NamedTuple):
    """The mover's own variables."""

    left: int  # rounds
    frame: int = -1
    life: int = 0
    rewritten: int = 0
    failed: bool = False


class Reader(NamedTuple):
    left: int
    life: int = 0
    version: int = 0
    place: int = NOWHERE


class Viewer(NamedTuple):
    left: int
    life: int = 0
    place: int = NOWHERE


class Store(World):
    def __init__(
        self, frames: int, rounds: int, batches: int, views: int, rewrites: int, lives: int, crashes: int
    ) -> None:
        starts = ["choose_lock", "enter", "pin_locked", "rewrite_lock", "retire_lock", "stranger_lock"]
        super().__init__(starts, crashes)
        self.lock = UNLOCKED
        self.epoch = 1
        self.slot = 0  # epoch of the reader that is active
        self.mover_alive = self.viewer_alive = self.reader_alive = True
        self.mover_pins = self.viewer_pins = False
        self.state, self.life, self.published, self.retired_epoch = OPEN, 1, True, 0
        self.version = 0  # ghost: of the number that was stored last
        self.place = 0
        self.rewritten_on_disk = 0
        self.frames = (Frame(USED), *[Frame()] * (frames - 1))
        self.memory: tuple[Words, ...] = (((1, 0), (1, 0)), *[(LOST, LOST)] * (frames - 1))
        self.disk: Words = (LOST, LOST)
        self.synced: Words = (LOST, LOST)  # ghost
        self.mover = Mover(rounds)
        self.reader = Reader(batches)
        self.viewer = Viewer(views)
        self.rewrites, self.lives, self.strangers = rewrites, lives, 1
        self.stranger_frame = -1

    def at(self, place: int) -> Words:
        if place == NOWHERE:
            raise Violation("rows are read of a block that lies nowhere")
        return self.disk if place == DISK else self.memory[place]

    def store(self, place: int, word: int, value: tuple[int, int]) -> None:
        if place == DISK:
            self.disk = put(self.disk, word, value)  # type: ignore[assignment]
        else:
            self.memory = put(self.memory, place, put(self.memory[place], word, value))

    def mark(self, frame: int, **values: object) -> None:
        self.frames = put(self.frames, frame, self.frames[frame]._replace(**values))  # type: ignore[arg-type]

    def pinned_by_others(self) -> bool:
        return self.viewer_pins and self.viewer_alive

    def pinned(self) -> bool:
        return self.pinned_by_others() or (self.mover_pins and self.mover_alive)

    def check(self) -> str | None:
        """What was stored last is what the block shows, whenever nobody is about to change it."""
        if self.lock != UNLOCKED or self.state != OPEN or not self.published:
            return None
        shown = self.at(self.place)
        if shown != ((self.life, self.version), (self.life, 0)):
            return f"the block shows {shown} in place {self.place}; life {self.life}, version {self.version} was stored"
        return None


class TierActor(Actor):
    """What is done under the index lock by whoever holds it."""

    def __init__(self, me: int, name: str, start: str, mutation: str) -> None:
        super().__init__(me, name, start)
        self.mutation = mutation

    def lock(self, w: Store) -> bool:
        orphaned = w.lock == ORPHAN
        if not take(w, self.me):
            return False
        if orphaned:
            self.recover(w)
        return True

    def recover(self, w: Store) -> None:
        """recover_frames: the places of blocks that are not free are the truth."""
        if w.state == FREE:
            w.place = NOWHERE
        for f, frame in enumerate(w.frames):
            if f == w.place:
                w.mark(f, state=USED, copied=frame.copied and frame.state == USED)
            elif frame.state not in (TAKEN, OTHER):
                if self.mutation == "recovery frees frames":
                    w.mark(f, state=EMPTY)
                else:
                    self.leave_frame(w, f)

    def leave_frame(self, w: Store, f: int) -> None:
        if self.mutation == "frame free at once":
            w.mark(f, state=EMPTY, copied=False, rewritten=False)
            return
        w.mark(f, state=LEAVING, copied=False, rewritten=False, epoch=w.epoch)
        w.epoch += 1

    def reclaim_frames(self, w: Store) -> None:
        for f, frame in enumerate(w.frames):
            left = frame.state == LEAVING and not (w.reader_alive and w.slot and w.slot <= frame.epoch)
            orphaned = frame.state == TAKEN and not w.mover_alive and self.mutation != "dead mover's frame kept"
            if left or orphaned:
                w.mark(f, state=EMPTY)

    def free_frame(self, w: Store) -> int:
        """One that is empty, or -1."""
        return next((f for f, frame in enumerate(w.frames) if frame.state == EMPTY), -1)


class MoverThread(TierActor):
    """TableCore::move_blocks: choose_moves, carry_out, settle."""

    def choose_lock(self, w: Store) -> Next:
        if w.mover.left == 0:
            return DONE
        return "choose" if self.lock(w) else None

    def choose(self, w: Store) -> Next:
        self.reclaim_frames(w)
        w.mover = Mover(w.mover.left - 1)
        sealed = w.state == OPEN and w.published
        blind = self.mutation == "drop without asking" and w.place >= 0 and w.frames[w.place].copied
        if not sealed or (w.pinned() and not blind):
            return "choose_done"
        w.mover = w.mover._replace(life=w.life, rewritten=w.rewritten_on_disk)
        if w.place == DISK:
            return "tier_take" if self.free_frame(w) >= 0 else "choose_done"
        if w.frames[w.place].copied:
            return "drop"
        w.mover = w.mover._replace(frame=w.place)
        w.mover_pins = self.mutation not in ("mover without pin", "lives not looked at")
        w.mark(w.place, rewritten=False)
        return "tier_chosen"

    def choose_done(self, w: Store) -> Next:
        unlock(w, self.me)
        return "choose_lock"

    def drop(self, w: Store) -> Next:
        left, w.place = w.place, DISK
        w.mover = w.mover._replace(frame=left)
        return "settle_leave"

    # to disk

    def tier_chosen(self, w: Store) -> Next:
        unlock(w, self.me)
        return "write_first"

    def write_first(self, w: Store) -> Next:
        w.store(DISK, 0, w.memory[w.mover.frame][0])
        return "write_second"

    def write_second(self, w: Store) -> Next:
        w.store(DISK, 1, w.memory[w.mover.frame][1])
        return "settle_lock" if self.mutation == "placed before sync" else ("sync", "sync_fails")

    def sync(self, w: Store) -> Next:
        w.synced = w.disk
        return "choose_lock" if self.mutation == "placed before sync" else "settle_lock"

    def sync_fails(self, w: Store) -> Next:
        w.disk = w.synced
        w.mover = w.mover._replace(failed=True)
        return "choose_lock" if self.mutation == "placed before sync" else "settle_lock"

    def settle_lock(self, w: Store) -> Next:
        return "settle_unpin" if self.lock(w) else None

    def settle_unpin(self, w: Store) -> Next:
        w.mover_pins = False
        return "settle_place"

    def settle_place(self, w: Store) -> Next:
        f = w.mover.frame
        blind = self.mutation in ("generation not compared", "lives not looked at")
        stays = w.state == OPEN and (blind or w.life == w.mover.life)
        rewritten = w.frames[f].rewritten and self.mutation != "rewritten not looked at"
        others = w.pinned_by_others() and self.mutation != "other pins not looked at"
        if w.mover.failed or not stays or w.place != f or rewritten or others:
            return "settle_done"
        w.place = DISK
        return "settle_leave"

    def settle_leave(self, w: Store) -> Next:
        self.leave_frame(w, w.mover.frame)
        return "settle_done"

    def settle_done(self, w: Store) -> Next:
        unlock(w, self.me)
        return ("sync", "sync_fails") if self.mutation == "placed before sync" else "choose_lock"

    # back into memory

    def tier_take(self, w: Store) -> Next:
        f = self.free_frame(w)
        w.mark(f, state=TAKEN, copied=True, rewritten=False)
        w.mover = w.mover._replace(frame=f)
        w.mover_pins = True
        return "tier_taken"

    def tier_taken(self, w: Store) -> Next:
        unlock(w, self.me)
        return "read_first"

    def read_first(self, w: Store) -> Next:
        w.store(w.mover.frame, 0, w.disk[0])
        return "read_second"

    def read_second(self, w: Store) -> Next:
        w.store(w.mover.frame, 1, w.disk[1])
        return "bring_lock"

    def bring_lock(self, w: Store) -> Next:
        return "bring" if self.lock(w) else None

    def bring(self, w: Store) -> Next:
        w.mover_pins = False
        stays = w.state == OPEN and w.life == w.mover.life and w.place == DISK
        same = w.rewritten_on_disk == w.mover.rewritten or self.mutation == "rewritten on disk not looked at"
        w.mark(w.mover.frame, state=USED if stays and same else EMPTY)
        return "bring_placed" if stays and same else "choose_done"

    def bring_placed(self, w: Store) -> Next:
        w.place = w.mover.frame
        return "choose_done"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        w.mover_alive = False
        return DEAD


class ReaderThread(TierActor):
    """Sampler::sample: enter, draw, copy, leave."""

    def enter(self, w: Store) -> Next:
        if w.reader.left == 0:
            return DONE
        w.slot = w.epoch
        return "draw_lock"

    def draw_lock(self, w: Store) -> Next:
        return "draw" if self.lock(w) else None

    def draw(self, w: Store) -> Next:
        drawn = w.state == OPEN and w.published
        w.reader = Reader(w.reader.left - 1, w.life if drawn else 0, w.version)
        return "draw_done"

    def draw_done(self, w: Store) -> Next:
        unlock(w, self.me)
        return "placed_first" if w.reader.life else "leave"

    def placed_first(self, w: Store) -> Next:
        w.reader = w.reader._replace(place=w.place)
        return "gather_first"

    def gather_first(self, w: Store) -> Next:
        life, version = w.at(w.reader.place)[0]
        if life != w.reader.life or version < w.reader.version:
            raise Violation(f"a row of life {w.reader.life}, version {w.reader.version}, is read as {(life, version)}")
        return "placed_second"

    def placed_second(self, w: Store) -> Next:
        w.reader = w.reader._replace(place=w.place)
        return "gather_second"

    def gather_second(self, w: Store) -> Next:
        if w.at(w.reader.place)[1] != (w.reader.life, 0):
            raise Violation(f"a row of life {w.reader.life} is read as {w.at(w.reader.place)[1]}")
        return "leave"

    def leave(self, w: Store) -> Next:
        w.slot = 0
        w.reader = Reader(w.reader.left)
        return "enter"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        w.reader_alive = False
        return DEAD


class ViewerThread(TierActor):
    """TableCore::pin_block, reads through the view, Process::unpin. Numbers that may change are copied into a view."""

    def pin_locked(self, w: Store) -> Next:
        if w.viewer.left == 0:
            return DONE
        return "pin" if self.lock(w) else None

    def pin(self, w: Store) -> Next:
        if w.state != OPEN or not w.published:
            w.viewer = Viewer(w.viewer.left - 1)
            return "pin_none"
        w.viewer = Viewer(w.viewer.left - 1, w.life)
        w.viewer_pins = True
        return "pin_done"

    def pin_none(self, w: Store) -> Next:
        unlock(w, self.me)
        return "pin_locked"

    def pin_done(self, w: Store) -> Next:
        unlock(w, self.me)
        return "address"

    def address(self, w: Store) -> Next:
        w.viewer = w.viewer._replace(place=w.place)
        return "look"

    def look(self, w: Store) -> Next:
        if w.at(w.viewer.place)[1] != (w.viewer.life, 0):
            raise Violation(f"a view of life {w.viewer.life} shows {w.at(w.viewer.place)[1]}")
        return ("look_again", "unpin")

    def look_again(self, w: Store) -> Next:
        self.look(w)
        return "unpin"

    def unpin(self, w: Store) -> Next:
        w.viewer_pins = False
        return "pin_locked"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        w.viewer_alive = False
        return DEAD


class RewriterThread(TierActor):
    """TableCore::rewrite: first it notes that it will, then it stores; a reader may see either number."""

    mortal = False

    def rewrite_lock(self, w: Store) -> Next:
        if w.rewrites == 0:
            return DONE
        return "note" if self.lock(w) else None

    def note(self, w: Store) -> Next:
        w.rewrites -= 1
        if w.state != OPEN or not w.published:
            return "rewrite_done"
        if w.place == DISK:
            w.rewritten_on_disk += 1
        else:
            copied = w.frames[w.place].copied and self.mutation == "copied not cleared"
            w.mark(w.place, copied=copied, rewritten=True)
        return "rewritten"

    def rewritten(self, w: Store) -> Next:
        w.version += 1
        w.store(w.place, 0, (w.life, w.version))
        if w.place == DISK:
            w.synced = put(w.synced, 0, w.disk[0])  # type: ignore[assignment]
        return "rewrite_done"

    def rewrite_done(self, w: Store) -> Next:
        unlock(w, self.me)
        return "rewrite_lock"


class KeeperThread(TierActor):
    """Retires the block, takes it back, opens it again in a free frame."""

    mortal = False

    def retire_lock(self, w: Store) -> Next:
        if w.lives == 0:
            return DONE
        return "retire" if self.lock(w) else None

    def retire(self, w: Store) -> Next:
        w.lives -= 1
        w.state, w.retired_epoch = RETIRED, w.epoch
        w.epoch += 1
        return "retired"

    def retired(self, w: Store) -> Next:
        unlock(w, self.me)
        return "reclaim_lock"

    def reclaim_lock(self, w: Store) -> Next:
        return "reclaim" if self.lock(w) else None

    def reclaim(self, w: Store) -> Next:
        self.reclaim_frames(w)
        read = w.reader_alive and 0 < w.slot <= w.retired_epoch
        return "reclaim_none" if read or w.pinned() else "take_back"

    def reclaim_none(self, w: Store) -> Next:
        unlock(w, self.me)
        return "reclaim_lock"

    def take_back(self, w: Store) -> Next:
        w.state, w.published = FREE, False
        return "free_place"

    def free_place(self, w: Store) -> Next:
        place, w.place = w.place, NOWHERE
        if place >= 0:
            w.mark(place, state=EMPTY, copied=False, rewritten=False)
        return "taken_back"

    def taken_back(self, w: Store) -> Next:
        unlock(w, self.me)
        return "open_lock"

    def open_lock(self, w: Store) -> Next:
        return "open" if self.lock(w) else None

    def open(self, w: Store) -> Next:
        self.reclaim_frames(w)
        f = self.free_frame(w)
        if f < 0:
            return "open_none"
        w.mark(f, state=USED, copied=False, rewritten=False)
        w.place = f
        return "open_state"

    def open_none(self, w: Store) -> Next:
        unlock(w, self.me)
        return "open_lock"

    def open_state(self, w: Store) -> Next:
        w.state, w.life, w.version = OPEN, w.life + 1, 0
        return "opened"

    def opened(self, w: Store) -> Next:
        unlock(w, self.me)
        return "append"

    def append(self, w: Store) -> Next:
        w.store(w.place, 0, (w.life, 0))
        w.store(w.place, 1, (w.life, 0))
        return "publish"

    def publish(self, w: Store) -> Next:
        w.published = True
        return "retire_lock"


class StrangerThread(TierActor):
    """Opens another block of the table, writes into its frame, and gives it back."""

    mortal = False

    def stranger_lock(self, w: Store) -> Next:
        if w.strangers == 0:
            return DONE
        return "stranger_take" if self.lock(w) else None

    def stranger_take(self, w: Store) -> Next:
        self.reclaim_frames(w)
        f = self.free_frame(w)
        if f >= 0:
            w.mark(f, state=OTHER, copied=False, rewritten=False)
            w.stranger_frame = f
        if f >= 0 or not any(frame.state in (LEAVING, TAKEN) for frame in w.frames):
            w.strangers -= 1  # or none will come free: it gives up
        return "stranger_taken"

    def stranger_taken(self, w: Store) -> Next:
        unlock(w, self.me)
        return "stranger_writes" if w.stranger_frame >= 0 else "stranger_lock"

    def stranger_writes(self, w: Store) -> Next:
        w.memory = put(w.memory, w.stranger_frame, (LOST, LOST))
        return "stranger_back"

    def stranger_back(self, w: Store) -> Next:
        if not self.lock(w):
            return None
        w.mark(w.stranger_frame, state=EMPTY)
        w.stranger_frame = -1
        return "stranger_gone"

    def stranger_gone(self, w: Store) -> Next:
        unlock(w, self.me)
        return "stranger_lock"


def make(
    mutation: str = "", *, frames: int = 2, rounds: int = 2, batches: int = 1, views: int = 0, rewrites: int = 0,
    lives: int = 0, crashes: int = 0,
) -> tuple[Store, list[Actor]]:  # fmt: skip
    threads: list[Actor] = [
        MoverThread(0, "mover", "choose_lock", mutation),
        ReaderThread(1, "reader", "enter", mutation),
        ViewerThread(2, "viewer", "pin_locked", mutation),
        RewriterThread(3, "rewriter", "rewrite_lock", mutation),
        KeeperThread(4, "keeper", "retire_lock", mutation),
        StrangerThread(5, "stranger", "stranger_lock", mutation),
    ]
    return Store(frames, rounds, batches, views, rewrites, lives, crashes), threads
