"""Weak memory: threads as lists of accesses that may be performed out of order.

The other models assume sequential consistency; where the code relies on an order outside the index lock, litmus.py
states the accesses with their memory orders, and this explorer performs them in every order that those allow. Memory
itself is one (multi-copy atomic, as on x86-64, ARMv8, RISC-V): a write seen by one other thread is seen by all.

An access may be performed before an earlier one of its thread unless
  the earlier one acquires, or the later one releases, or both are seq_cst;
  both are of the same variable, or the later one needs what the earlier one reads (data; for stores, also control).
Loads are not held back by branches (processors speculate), so a program loads first and judges afterwards.
A read-modify-write has two parts, of which the read acquires and the write releases (ARMv8's exclusive pair): other
accesses may come between them, only nobody else writes the variable then.
`x86=True` allows only what a store buffer does: loads overtake earlier stores of others, unless seq_cst (xchg).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.model.explorer import DONE, Actor, Next, Violation, World, put

__all__ = ["ACQ_REL", "ACQUIRE", "RELAXED", "RELEASE", "SEQ_CST", "Access", "load", "lock", "make", "rmw", "store"]
__all__ += ["unlock"]

RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = "relaxed", "acquire", "release", "acq_rel", "seq_cst"

Registers = Mapping[str, int]


@dataclass(frozen=True)
class Access:
    """One access. `into`: the register that receives what was read. `value`: what to write, None to write nothing."""

    kind: str  # load, store or rmw
    variable: str
    order: str
    into: str = ""
    value: Callable[[int, Registers], int | None] | None = None
    needs: frozenset[str] = frozenset()  # registers that decide whether or what to write
    waits_for: int | None = None  # blocks until the variable has this value
    label: str = ""  # what the code calls it

    def __str__(self) -> str:
        return f"{self.label}: {self.kind} {self.variable}, {self.order}"


def load(variable: str, into: str, order: str = RELAXED, label: str = "") -> Access:
    return Access("load", variable, order, into, label=label or f"load {variable}")


def store(
    variable: str, value: int, order: str = RELAXED, label: str = "", *, when: tuple[str, int] | None = None
) -> Access:
    """`when`: only if that register has that value."""

    def written(_: int, registers: Registers) -> int | None:
        return value if when is None or registers[when[0]] == when[1] else None

    needs = frozenset() if when is None else frozenset([when[0]])
    return Access("store", variable, order, value=written, needs=needs, label=label or f"store {variable}")


def rmw(variable: str, into: str, change: Callable[[int], int | None], order: str, label: str = "") -> Access:
    """`change` gives the new value, or None to leave it (a CAS that fails)."""
    return Access("rmw", variable, order, into, lambda old, _: change(old), label=label or f"rmw {variable}")


def lock(variable: str = "lock") -> Access:
    return Access("rmw", variable, ACQUIRE, "", lambda old, _: 1, waits_for=0, label="lock")


def unlock(variable: str = "lock") -> Access:
    return Access("store", variable, RELEASE, value=lambda old, _: 0, label="unlock")


@dataclass(frozen=True)
class _Part:
    """What is performed at once: an access, or the read or the write of a read-modify-write."""

    access: Access
    reads: bool
    writes: bool
    into: str  # register for what is read

    @property
    def acquires(self) -> bool:
        return self.reads and self.access.order in (ACQUIRE, ACQ_REL, SEQ_CST)

    @property
    def releases(self) -> bool:
        return self.writes and self.access.order in (RELEASE, ACQ_REL, SEQ_CST)


def _parts(thread: int, program: Sequence[Access]) -> list[_Part]:
    parts: list[_Part] = []
    for at, access in enumerate(program):
        into = access.into or f"old {thread}.{at}"
        if access.kind != "store":
            parts.append(_Part(access, True, False, into))
        if access.kind != "load":
            parts.append(_Part(access, False, True, into))
    return parts


def _may_overtake(late: _Part, early: _Part, x86: bool) -> bool:
    if early.access.variable == late.access.variable or (early.reads and early.into in late.access.needs):
        return False
    if early.access.order == late.access.order == SEQ_CST:
        return False
    if x86:
        return early.access.kind == "store" and late.access.kind == "load" and early.access.order != SEQ_CST
    return not early.acquires and not late.releases


class _Memory(World):
    """`todo`: parts still to be performed, a bit each, by thread. `reserved`: who is inside a read-modify-write."""

    def __init__(self, threads: Sequence[Sequence[_Part]], start: Mapping[str, int]) -> None:
        super().__init__([])
        names = {part.access.variable for thread in threads for part in thread}
        self.memory: tuple[tuple[str, int], ...] = tuple(sorted((name, start.get(name, 0)) for name in names))
        self.registers: tuple[tuple[tuple[str, int], ...], ...] = ((),) * len(threads)
        self.todo = tuple((1 << len(thread)) - 1 for thread in threads)
        self.reserved: tuple[tuple[str, int], ...] = ()


class _Performer(Actor):
    """One part of one thread: an actor for each, so that traces name it."""

    mortal = False

    def __init__(self, me: int, thread: int, at: int, program: Sequence[_Part], x86: bool) -> None:
        self.part = program[at]
        half = "" if self.part.access.kind != "rmw" else " (read)" if self.part.reads else " (write)"
        super().__init__(me, f"thread {thread}, {self.part.access}{half}", "perform")
        self.thread, self.at = thread, at
        self.barred_by = sum(1 << k for k in range(at) if not _may_overtake(program[at], program[k], x86))

    def perform(self, w: _Memory) -> Next:
        part, access = self.part, self.part.access
        memory, registers, reserved = dict(w.memory), dict(w.registers[self.thread]), dict(w.reserved)
        exclusive = access.kind == "rmw"
        if w.todo[self.thread] & self.barred_by:
            return None
        if (part.writes or exclusive) and reserved.get(access.variable, self.thread) != self.thread:
            return None
        old = memory[access.variable]
        if part.reads:
            if access.waits_for is not None and old != access.waits_for:
                return None
            registers[part.into] = old
            if exclusive:
                reserved[access.variable] = self.thread
        if part.writes:
            assert access.value is not None
            new = access.value(old, registers)
            memory[access.variable] = old if new is None else new
            reserved.pop(access.variable, None)
        w.memory, w.reserved = tuple(memory.items()), tuple(sorted(reserved.items()))
        w.registers = put(w.registers, self.thread, tuple(sorted(registers.items())))
        w.todo = put(w.todo, self.thread, w.todo[self.thread] & ~(1 << self.at))
        return DONE


class _Judge(Actor):
    """Looks at the registers and the memory when everything has been performed."""

    mortal = False

    def __init__(self, me: int, wrong: Callable[[dict[str, int]], str | None]) -> None:
        super().__init__(me, "outcome", "judge")
        self.wrong = wrong

    def judge(self, w: _Memory) -> Next:
        if any(w.todo):
            return None
        found: dict[str, int] = dict(w.memory)
        for registers in w.registers:
            found.update(registers)
        complaint = self.wrong(found)
        if complaint is not None:
            raise Violation(complaint)
        return DONE


def make(
    threads: Sequence[Sequence[Access]],
    wrong: Callable[[dict[str, int]], str | None],
    start: Mapping[str, int],
    *,
    x86: bool = False,
) -> tuple[World, list[Actor]]:
    """`wrong` gets the final variables and registers (their names must differ) and says what must not be, or None."""
    programs = [_parts(t, program) for t, program in enumerate(threads)]
    world = _Memory(programs, start)
    actors: list[Actor] = []
    for t, program in enumerate(programs):
        for at in range(len(program)):
            actors.append(_Performer(len(actors), t, at, program, x86))
    actors.append(_Judge(len(actors), wrong))
    world.labels = tuple(actor.start for actor in actors)
    return world, actors
