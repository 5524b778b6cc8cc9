"""Tables whose rows leave one by one against a list of rows (hypothesis, stateful)."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conduit import Table, removers, samplers, windows
from tests.property.table_machine import PRIORITIES, SETTINGS
from tests.store_support import PLAIN, fresh_store

WINDOWS = {"order": windows.Row(), "mass": windows.Row()}


@dataclass
class Row:
    x: int
    priority: np.float32


class Slots(RuleBasedStateMachine):
    """`rows` is what is live, oldest first."""

    remover: removers.Remover

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.serial = itertools.count()
        self.rows: list[Row] = []
        self.writers: list[Any] = []
        self.keys: dict[int, int] = {}
        self.gone: set[int] = set()
        self.appended = 0

    @initialize(capacity=st.integers(1, 24), seed=st.integers(0, 99))
    def create(self, capacity: int, seed: int) -> None:
        store = self.stack.enter_context(fresh_store(max_processes=2))
        self.capacity = capacity
        self.table: Table = store.create_table(
            "t", PLAIN, capacity, window=WINDOWS, remover=self.remover, seed=seed, max_writers=4,
            sampler={"order": samplers.Fifo(), "mass": samplers.Prioritized(1.0)},
        )  # fmt: skip

    def teardown(self) -> None:
        self.stack.close()

    def leaves_next(self) -> int:
        if isinstance(self.remover, removers.Lifo):
            return len(self.rows) - 1
        return min(range(len(self.rows)), key=lambda i: self.rows[i].priority)  # of equal ones the first

    def comes(self, x: int, priority: float | None) -> None:
        if len(self.rows) == self.capacity:
            self.gone.add(self.rows.pop(self.leaves_next()).x)
        default = max((row.priority for row in self.rows), default=np.float32(1))
        self.rows.append(Row(x, default if priority is None else np.float32(priority)))
        self.appended += 1

    @rule(data=st.data(), n=st.integers(1, 24), given=st.booleans())
    def extend(self, data: st.DataObject, n: int, given: bool) -> None:
        n = min(n, self.capacity)
        new = [next(self.serial) for _ in range(n)]
        priorities = data.draw(st.lists(PRIORITIES, min_size=n, max_size=n)) if given else None
        self.table.extend({"x": new}, priorities=priorities)
        for i, x in enumerate(new):
            self.comes(x, None if priorities is None else priorities[i])

    @precondition(lambda self: len(self.writers) < 3)
    @rule()
    def open_writer(self) -> None:
        self.writers.append(self.table.writer())

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 9), priority=st.none() | PRIORITIES)
    def append(self, which: int, priority: float | None) -> None:
        x = next(self.serial)
        self.writers[which % len(self.writers)].append(x=x, priority=priority)
        self.comes(x, priority)

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 9))
    def close_writer(self, which: int) -> None:
        self.writers.pop(which % len(self.writers)).close()

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        places = data.draw(st.lists(st.integers(0, len(self.rows) - 1), min_size=1, max_size=8))
        values = data.draw(st.lists(PRIORITIES, min_size=len(places), max_size=len(places)))
        stale = [self.keys[x] for x in sorted(self.gone & self.keys.keys())[:2]]
        keys = np.array([self.keys[self.rows[i].x] for i in places] + stale, np.uint64)
        result = self.table.update_priorities(keys, values + [1.0] * len(stale), window="mass")
        assert (result.applied, result.stale) == (len(places), len(stale))
        for i, value in zip(places, values, strict=True):
            self.rows[i].priority = np.float32(value)

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.gone |= {row.x for row in self.rows}
        self.rows = []

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "table"):
            return
        assert len(self.table) == len(self.rows)
        info = self.table.info(window="mass")
        assert (info.appended, info.evicted) == (self.appended, self.appended - len(self.rows))
        assert (info.evicted_early, info.blocks_open) == (0, len(self.rows))
        mass = sum(float(row.priority) for row in self.rows)
        np.testing.assert_allclose(info.total_priority, mass, rtol=1e-12)
        self.table.verify()
        if not self.rows:
            return
        batch = self.table.sample(len(self.rows))
        assert batch["x"].tolist() == [row.x for row in self.rows]
        for x, key in zip(batch["x"].tolist(), batch.keys.tolist(), strict=True):
            assert self.keys.setdefault(x, key) == key
        assert len(set(self.keys.values())) == len(self.keys)
        np.testing.assert_array_equal(
            self.table.priorities(batch.keys, window="mass"), np.array([row.priority for row in self.rows])
        )
        if mass > 0:
            drawn = self.table.sample(8, window="mass")
            chances = {row.x: float(row.priority) / mass for row in self.rows}
            np.testing.assert_allclose(drawn.probabilities, [chances[x] for x in drawn["x"].tolist()], rtol=1e-9)


class LifoSlots(Slots):
    remover = removers.Lifo()


class LowestPrioritySlots(Slots):
    remover = removers.LowestPriority()


TestLifoSlots = LifoSlots.TestCase
TestLowestPrioritySlots = LowestPrioritySlots.TestCase
TestLifoSlots.settings = TestLowestPrioritySlots.settings = SETTINGS
