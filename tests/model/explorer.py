"""A small explicit-state model checker: every interleaving of a few threads over one shared memory.

A model is a `World` (the shared memory and each thread's private variables) and some `Actor`s. An actor is a program:
each of its methods is ONE step, as long as one atomic access, and returns the name of the step that comes next. So a
model reads like the code it models, and its method names are the names of functions and failpoints there.

`explore` visits every reachable state breadth first, so that the trace of a violation is a shortest one. It checks
  safety    no step raises `Violation` and `World.check` finds nothing wrong in any state;
  progress  from every state the actors can still all come to an end, without help from a crash or a timeout.
Processes die at any step: `Actor.crash` is taken at every label while the world's crash budget lasts.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["DEAD", "DONE", "Actor", "Result", "Violation", "World", "explore", "put"]

DONE = "done"
DEAD = "dead"  # killed, and nobody takes its place
_CRASH = "kill -9"

Next = str | tuple[str, ...] | None


class Violation(Exception):
    """A step did what the protocol promises never to happen."""


class World:
    """One state. Every attribute must be hashable and is replaced, never changed in place.

    Subclasses set all their attributes in `__init__`, in a fixed order.
    """

    def __init__(self, labels: Sequence[str], crashes: int = 0) -> None:
        self.labels = tuple(labels)  # the step that each actor takes next
        self.crashes = crashes  # kills that may still happen

    def copy(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def key(self) -> tuple[Any, ...]:
        return tuple(self.__dict__.values())

    def check(self) -> str | None:
        """What is wrong with this state, if anything is."""
        return None


class Actor:
    """A thread. `me` is its place in `World.labels`.

    A step takes the world, changes it, and returns the next step's name; None when it cannot go now (a lock that is
    held, a sleep), in which case it must have changed nothing; or a tuple of names, each of which may come next.
    """

    mortal = True
    helps = frozenset[str]()  # steps that progress must not rest on: timeouts

    def __init__(self, me: int, name: str, start: str) -> None:
        self.me = me
        self.name = name
        self.start = start

    def crash(self, w: Any) -> str:
        """What a kill leaves behind; returns the next label (DEAD, or the first step of whoever comes after)."""
        return DEAD


@dataclass(frozen=True)
class Result:
    """What an exploration found."""

    states: int
    transitions: int
    violation: str | None
    trace: tuple[str, ...]  # shortest way to the violation

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.states:,} states, {self.transitions:,} transitions: holds"
        steps = "\n".join(f"  {i + 1:2}. {step}" for i, step in enumerate(self.trace))
        return f"{self.violation}\n{steps}"


def put(items: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    """`items` with another value at one place."""
    return (*items[:at], value, *items[at + 1 :])


class _Graph:
    """States by number, how each was reached first, and who leads to whom without a crash or a timeout."""

    def __init__(self) -> None:
        self.ids: dict[tuple[Any, ...], int] = {}
        self.came: list[tuple[int, str]] = []
        self.before: list[list[int]] = []
        self.ended: list[int] = []

    def add(self, parent: int, step: str) -> None:
        self.came.append((parent, step))
        self.before.append([])

    def trace(self, number: int) -> tuple[str, ...]:
        steps: list[str] = []
        while number > 0:
            number, step = self.came[number]
            steps.append(step)
        return tuple(reversed(steps))

    def first_stuck(self) -> int | None:
        """The first state found from which the actors cannot all come to an end."""
        reaches = bytearray(len(self.came))
        todo = list(self.ended)
        for number in todo:
            reaches[number] = 1
        while todo:
            for number in self.before[todo.pop()]:
                if not reaches[number]:
                    reaches[number] = 1
                    todo.append(number)
        at = reaches.find(0)
        return None if at < 0 else at


Successor = tuple[str, World, bool]  # what happened, the state after it, whether progress may rest on it


def _step(w: World, actor: Actor, label: str) -> list[Successor]:
    twin = w.copy()
    try:
        following: Next = getattr(actor, label)(twin)
    except Violation as violation:
        violation.add_note(f"{actor.name}: {label}")
        raise
    if following is None:
        return []
    step, counts = f"{actor.name}: {label}", label not in actor.helps
    if isinstance(following, str):
        twin.labels = put(w.labels, actor.me, following)
        return [(step, twin, counts)]
    found: list[Successor] = []
    for name in following:
        branch = twin.copy()
        branch.labels = put(w.labels, actor.me, name)
        found.append((step, branch, counts))
    return found


def _successors(w: World, actors: Sequence[Actor]) -> list[Successor]:
    found: list[Successor] = []
    for actor in actors:
        label = w.labels[actor.me]
        if label in (DONE, DEAD):
            continue
        found += _step(w, actor, label)
        if actor.mortal and w.crashes > 0:
            twin = w.copy()
            twin.crashes -= 1
            twin.labels = put(w.labels, actor.me, actor.crash(twin))
            found.append((f"{actor.name}: {_CRASH} before {label}", twin, False))
    return found


def explore(world: World, actors: Sequence[Actor], *, limit: int = 3_000_000) -> Result:
    """Visit every state reachable from `world`. Raises RuntimeError above `limit` states."""
    collecting = gc.isenabled()
    gc.disable()  # nothing here is cyclic, and collections over millions of tuples would take most of the time
    try:
        return _explore(world, actors, limit)
    finally:
        if collecting:
            gc.enable()


def _explore(world: World, actors: Sequence[Actor], limit: int) -> Result:
    graph = _Graph()
    graph.ids[world.key()] = 0
    graph.add(0, "")
    queue = deque([world])
    transitions = 0
    for number in range(limit):
        if not queue:
            break
        w = queue.popleft()
        if all(label in (DONE, DEAD) for label in w.labels):
            graph.ended.append(number)
        try:
            successors = _successors(w, actors)
        except Violation as violation:
            trace = (*graph.trace(number), violation.__notes__[0])
            return Result(len(graph.came), transitions, str(violation), trace)
        for step, after, counts in successors:
            transitions += 1
            target = graph.ids.setdefault(after.key(), len(graph.came))
            if target == len(graph.came):
                graph.add(number, step)
                wrong = after.check()
                if wrong is not None:
                    return Result(len(graph.came), transitions, wrong, graph.trace(target))
                queue.append(after)
            if counts:
                graph.before[target].append(number)
    else:
        raise RuntimeError(f"more than {limit:,} states")
    stuck = graph.first_stuck()
    if stuck is None:
        return Result(len(graph.came), transitions, None, ())
    return Result(len(graph.came), transitions, "stuck: not all can come to an end from here", graph.trace(stuck))
