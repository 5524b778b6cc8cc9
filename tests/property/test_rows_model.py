"""Plain tables against a model, operation by operation (hypothesis, stateful)."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.property.table_machine import PRIORITIES, SETTINGS, TableMachine
from tests.property.table_model import Row


class PrioritizedRows(TableMachine):
    @rule()
    def open_writer(self) -> None:
        if len(self.writers) < 4:
            self.writers.append((self.table.writer(), self.model.writer(1)))

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 99), priority=st.none() | PRIORITIES)
    def append(self, which: int, priority: float | None) -> None:
        real, model = self.writers[which % len(self.writers)]
        priority = priority if self.prioritized else None
        row = Row(next(self.serial), raw=None if priority is None else np.float32(priority))
        real.append(x=row.obs, priority=priority)
        self.model.append(model, [(0, row)])

    @rule(share=st.floats(0, 1), given=st.booleans(), data=st.data())
    def extend(self, share: float, given: bool, data: st.DataObject) -> None:
        n = round(share * min(self.model.capacity, 20))
        rows = [Row(next(self.serial)) for _ in range(n)]
        priorities = None
        if given and self.prioritized:
            priorities = np.array(data.draw(st.lists(PRIORITIES, min_size=n, max_size=n)), np.float32)
            for row, priority in zip(rows, priorities, strict=True):
                row.raw = priority
        columns = {"x": np.array([row.obs for row in rows], np.int64)}
        assert self.table.extend(columns, priorities=priorities) == n
        self.model.append(self.extender, [(0, row) for row in rows])


class UniformRows(PrioritizedRows):
    prioritized = False


TestPrioritizedRows = PrioritizedRows.TestCase
TestUniformRows = UniformRows.TestCase
TestPrioritizedRows.settings = TestUniformRows.settings = SETTINGS
