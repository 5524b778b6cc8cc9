"""Waiting: no sampler sleeps on while the rows it waits for are there (sync.hpp announce, sampler.cpp wait_rows).

Writers publish a row each and announce it. Samplers take the index lock, fold, and go if there are rows enough; else
they wait: read the signal, set the flag, look once more, sleep. FUTEX_WAIT compares and falls asleep in one step.

What the flag cannot do alone, a clock does: every wait ends after a slice of 50 ms (binding_support.hpp kSliceNs). It
is needed in two places only, which the tests pin down by exploring without it: where a writer dies between publishing
and waking, and where somebody else folds the rows between a sampler's draw and its second look (which compares with
`folded`). The wait for space has no second look at all and rests on its clock: 0.5 ms, 10 ms for pins.
"""

from __future__ import annotations

from tests.model.explorer import DONE, Actor, Next, World, put
from tests.model.robust import UNLOCKED, orphan, take, unlock

__all__ = ["HARMLESS", "MUTATIONS", "make"]

MUTATIONS = {
    "no second look": "the waiter sleeps without looking again after it has set the flag",
    "flag after look": "the waiter looks first and sets the flag afterwards",
    "signal read last": "the waiter reads the signal after the second look",
    "no futex compare": "the sleep does not compare the signal with what was read",
    "announce first": "the writer looks at the flag before it publishes",
    "signal not bumped": "announce wakes without changing the signal",
    "flag cleared last": "announce clears the flag after it has bumped the signal and woken",
    "no wake": "announce bumps the signal without the futex call",
    "wake one": "announce wakes one sleeper of several",
}
HARMLESS = {
    "flag not cleared": "every later announcement then pays for a bump and a system call",
}


class Store(World):
    def __init__(self, writers: int, needs: tuple[int, ...], crashes: int, bystanders: int) -> None:
        n = len(needs)
        super().__init__(["append"] * writers + ["draw_locked"] * n + ["fold_locked"] * bystanders, crashes)
        self.lock = UNLOCKED
        self.pub = 0  # rows published
        self.folded = 0
        self.waiting, self.signal = 0, 0
        self.saw = (0,) * n  # what each sampler read of the signal
        self.asleep = (False,) * n


class WriterThread(Actor):
    """The publishing CAS of Writer::append, then announce(rows_waiting, rows_signal)."""

    def __init__(self, me: int, mutation: str) -> None:
        super().__init__(me, f"writer {me}", "append")
        self.mutation = mutation

    def append(self, w: Store) -> Next:
        return "announce_load" if self.mutation == "announce first" else "append_before_publish"

    def append_before_publish(self, w: Store) -> Next:
        w.pub += 1
        return DONE if self.mutation == "announce first" else "announce_load"

    def announce_load(self, w: Store) -> Next:
        if w.waiting == 0:
            return self.announced()
        return "announce_bump" if self.mutation in ("flag cleared last", "flag not cleared") else "announce_clear"

    def announce_clear(self, w: Store) -> Next:
        w.waiting = 0
        if self.mutation == "flag cleared last":
            return self.announced()
        return "announce_wake" if self.mutation == "signal not bumped" else "announce_bump"

    def announce_bump(self, w: Store) -> Next:
        w.signal += 1
        return self.announced() if self.mutation == "no wake" else "announce_wake"

    def announce_wake(self, w: Store) -> Next:
        if self.mutation == "wake one" and True in w.asleep:
            w.asleep = put(w.asleep, w.asleep.index(True), False)
        else:
            w.asleep = (False,) * len(w.asleep)
        return "announce_clear" if self.mutation == "flag cleared last" else self.announced()

    def announced(self) -> Next:
        return "append_before_publish" if self.mutation == "announce first" else DONE

    def crash(self, w: Store) -> str:
        return "append"  # another writer comes and appends its row


class SamplerThread(Actor):
    """Sampler::sample until it may, and Sampler::wait_rows."""

    def __init__(self, me: int, at: int, need: int, mutation: str, sliced: bool, locked_look: bool) -> None:
        super().__init__(me, f"sampler {at}", "draw_locked")
        self.at = at  # its place in `saw` and `asleep`
        self.need = need
        self.mutation = mutation
        self.sliced = sliced
        self.locked_look = locked_look

    def draw_locked(self, w: Store) -> Next:
        return "fold" if take(w, self.me) else None

    def fold(self, w: Store) -> Next:
        w.folded = w.pub
        return "draw_done" if w.folded >= self.need else "too_few"

    def draw_done(self, w: Store) -> Next:
        unlock(w, self.me)
        return DONE

    def too_few(self, w: Store) -> Next:
        unlock(w, self.me)
        if self.mutation == "signal read last":
            return "wait_flag"
        return "wait_look" if self.mutation == "flag after look" else "wait_signal"

    def wait_signal(self, w: Store) -> Next:
        w.saw = put(w.saw, self.at, w.signal)
        return "futex_wait" if self.mutation in ("signal read last", "flag after look") else "wait_flag"

    def wait_flag(self, w: Store) -> Next:
        w.waiting = 1
        if self.mutation == "flag after look":
            return "wait_signal"
        return "futex_wait" if self.mutation == "no second look" else "wait_rows"

    def wait_look(self, w: Store) -> Next:
        """(flag after look) wait_rows in the wrong place."""
        return "draw_locked" if w.pub > w.folded else "wait_flag"

    def wait_rows(self, w: Store) -> Next:
        """The second look. `folded` may be ahead of what this sampler saw under the lock."""
        if self.locked_look:
            return "look_locked"
        if w.pub > w.folded:
            return "draw_locked"
        return "wait_signal" if self.mutation == "signal read last" else "futex_wait"

    def look_locked(self, w: Store) -> Next:
        """(locked_look) Another draw: it misses nothing, whoever has folded."""
        return "look_fold" if take(w, self.me) else None

    def look_fold(self, w: Store) -> Next:
        w.folded = w.pub
        return "draw_done" if w.folded >= self.need else "look_too_few"

    def look_too_few(self, w: Store) -> Next:
        unlock(w, self.me)
        return "futex_wait"

    def futex_wait(self, w: Store) -> Next:
        if w.saw[self.at] != w.signal and self.mutation != "no futex compare":
            return "draw_locked"
        w.asleep = put(w.asleep, self.at, True)
        return "asleep"

    def asleep(self, w: Store) -> Next:
        """Until woken, or until the slice is over."""
        if w.asleep[self.at] and not self.sliced:
            return None
        w.asleep = put(w.asleep, self.at, False)
        return "draw_locked"

    def crash(self, w: Store) -> str:
        orphan(w, self.me)
        w.asleep = put(w.asleep, self.at, False)
        return "draw_locked"  # another sampler comes


class Bystander(Actor):
    """Anyone else who folds: len(table), an update, a writer that opens a block."""

    mortal = False

    def fold_locked(self, w: Store) -> Next:
        return "fold" if take(w, self.me) else None

    def fold(self, w: Store) -> Next:
        w.folded = w.pub
        return "folded"

    def folded(self, w: Store) -> Next:
        unlock(w, self.me)
        return DONE


def make(
    mutation: str = "",
    *,
    writers: int = 2,
    needs: tuple[int, ...] = (1,),
    crashes: int = 0,
    bystanders: int = 0,
    sliced: bool = False,
    locked_look: bool = False,
) -> tuple[Store, list[Actor]]:
    """`sliced`: waits end by the clock too. `locked_look`: a second look that would need no clock but for kills."""
    n = len(needs)
    actors: list[Actor] = [WriterThread(i, mutation) for i in range(writers)]
    actors += [SamplerThread(writers + i, i, need, mutation, sliced, locked_look) for i, need in enumerate(needs)]
    actors += [Bystander(writers + n + i, f"bystander {i}", "fold_locked") for i in range(bystanders)]
    return Store(writers, needs, crashes, bystanders), actors
