"""Draws without replacement against a model: a set of rows that the epoch still has (hypothesis, stateful)."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conduit import Table, samplers
from tests.property.table_machine import SETTINGS
from tests.store_support import fresh_store, plain_table


class Epochs(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.serial = itertools.count()
        self.rows: list[int] = []  # live, oldest first
        self.left: set[int] = set()  # of them, what the epoch has not drawn
        self.epoch = 1

    @initialize(capacity=st.integers(1, 40), seed=st.integers(0, 99))
    def create(self, capacity: int, seed: int) -> None:
        self.capacity = capacity
        store = self.stack.enter_context(fresh_store(max_processes=2))
        once = samplers.WithoutReplacement()
        self.table: Table = plain_table(store, capacity, sampler=once, seed=seed, max_writers=1)

    def teardown(self) -> None:
        self.stack.close()

    @rule(n=st.integers(1, 40))
    def append(self, n: int) -> None:
        new = [next(self.serial) for _ in range(min(n, self.capacity))]
        self.table.extend({"x": new})
        self.rows = (self.rows + new)[-self.capacity :]
        self.left = (self.left | set(new)) & set(self.rows)

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.rows, self.left = [], set()

    @precondition(lambda self: self.rows)
    @rule(share=st.floats(0, 1))
    def draw(self, share: float) -> None:
        n = max(1, round(share * len(self.rows)))
        batch = self.table.sample(n)
        self.drawn(batch["x"].tolist(), batch.probabilities.tolist())
        assert self.table.rows(batch.keys)["x"].tolist() == batch["x"].tolist()

    @precondition(lambda self: self.rows)
    @rule(n=st.integers(1, 4), batches=st.integers(1, 3), ahead=st.integers(0, 3))
    def load(self, n: int, batches: int, ahead: int) -> None:
        n = min(n, len(self.rows))
        if ahead and len(self.left) < n * (
            batches + ahead
        ):  # what is undone of an epoch that is over does not come back
            return
        with self.table.loader(n, prefetch=ahead) as loader:
            for _ in range(batches):
                batch = next(loader)
                self.drawn(batch["x"].tolist(), batch.probabilities.tolist() if ahead == 0 else None)

    def drawn(self, rows: list[int], probabilities: list[float] | None) -> None:
        old = rows[: len(self.left)]
        assert len(set(rows)) == len(rows)
        assert set(old) <= self.left
        left = [len(self.left) - i for i in range(len(old))]
        self.left -= set(old)
        new = rows[len(old) :]
        if new:
            self.epoch += 1
            assert not set(new) & set(old)
            self.left = set(self.rows) - set(new)
            left += [len(self.rows) - len(old) - i for i in range(len(new))]
        if probabilities is not None:
            np.testing.assert_allclose(probabilities, [1 / x for x in left], rtol=1e-12)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "table"):
            return
        info = self.table.info()
        assert (info.rows, info.ready_rows, info.total_priority) == (len(self.rows), len(self.rows), len(self.left))
        assert info.epoch == self.epoch
        self.table.verify()


TestEpochs = Epochs.TestCase
TestEpochs.settings = SETTINGS
