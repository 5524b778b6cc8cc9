"""The explorer itself: it finds what is there to be found, and nothing else."""

from __future__ import annotations

import pytest

from tests.model.explorer import DONE, Actor, Next, Violation, World, explore


class Counter(World):
    def __init__(self, threads: int) -> None:
        super().__init__(["load"] * threads)
        self.value = 0
        self.seen: tuple[int, ...] = (0,) * threads


class Adder(Actor):
    """value = value + 1, in two accesses or in one."""

    mortal = False

    def __init__(self, me: int, atomic: bool, last: bool) -> None:
        super().__init__(me, f"adder {me}", "load")
        self.atomic = atomic
        self.last = last

    def load(self, w: Counter) -> Next:
        if self.last and any(label != DONE for label in w.labels[: self.me]):
            return None
        if self.last and w.value != self.me:
            raise Violation(f"{w.value} of {self.me} counted")
        if self.atomic:
            w.value += 1
            return DONE
        w.seen = (*w.seen[: self.me], w.value, *w.seen[self.me + 1 :])
        return "store"

    def store(self, w: Counter) -> Next:
        w.value = w.seen[self.me] + 1
        return DONE


def adders(atomic: bool) -> list[Actor]:
    return [Adder(i, atomic, last=i == 2) for i in range(3)]


def test_lost_update_is_found_by_a_shortest_trace() -> None:
    result = explore(Counter(3), adders(atomic=False))
    assert result.violation == "1 of 2 counted"
    assert len(result.trace) == 5


def test_atomic_update_holds() -> None:
    result = explore(Counter(3), adders(atomic=True))
    assert result.violation is None
    assert result.states == 5


class Pair(World):
    def __init__(self) -> None:
        super().__init__(["first", "first"])
        self.locks: tuple[int, int] = (-1, -1)


class Philosopher(Actor):
    """Takes two locks, in an order of its own; may die."""

    def first(self, w: Pair) -> Next:
        return self.take(w, self.me, "second")

    def second(self, w: Pair) -> Next:
        return self.take(w, 1 - self.me, "give_back")

    def take(self, w: Pair, lock: int, then: str) -> Next:
        if w.locks[lock] >= 0:
            return None
        w.locks = (self.me, w.locks[1]) if lock == 0 else (w.locks[0], self.me)
        return then

    def give_back(self, w: Pair) -> Next:
        w.locks = (-1, -1)
        return DONE


def test_deadlock_is_found() -> None:
    result = explore(Pair(), [Philosopher(i, f"philosopher {i}", "first") for i in range(2)])
    assert result.violation is not None
    assert result.violation.startswith("stuck")
    assert len(result.trace) == 2


def test_death_with_a_lock_is_found() -> None:
    world = Pair()
    world.crashes = 1
    world.labels = ("first", DONE)
    result = explore(world, [Philosopher(0, "philosopher", "first"), Philosopher(1, "other", "first")])
    assert result.violation is None  # nobody is left to wait for the dead one's locks


def test_limit() -> None:
    with pytest.raises(RuntimeError, match="more than 3 states"):
        explore(Counter(3), adders(atomic=False), limit=3)
