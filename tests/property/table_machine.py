"""A table beside a plain model of it, operation by operation: what both kinds of tables have in common."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conduit import StaleKey, Table, samplers, windows
from tests.property.table_model import ModelWriter, Row, TableModel
from tests.store_support import PLAIN, fresh_store, schema

MAX_WRITERS = 60  # so many blocks to spare that none is evicted early, however many writers come and go
PRIORITIES = st.one_of(st.just(0.0), st.floats(2**-10, 1024, width=32))
SETTINGS = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
STEP = schema(obs="i8", action="i8", reward="f4", terminated="?", truncated="?", x="i8")


class TableMachine(RuleBasedStateMachine):
    """Operations that every table has, and what must hold after each. `steps` is 0 for plain rows."""

    prioritized = True
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.serial = itertools.count()
        self.writers: list[tuple[Any, ModelWriter]] = []
        self.stale: list[int] = []
        self.keys: dict[int, int] = {}  # by obs, of every row ever seen

    @initialize(capacity=st.integers(1, 40), alpha=st.sampled_from([0.0, 0.5, 0.6, 1.0]), seed=st.integers(0, 99))
    def create(self, capacity: int, alpha: float, seed: int) -> None:
        store = self.stack.enter_context(fresh_store(max_processes=2))
        sampler = samplers.Prioritized(alpha, 0.7) if self.prioritized else samplers.Uniform()
        self.table: Table = store.create_table(
            "t", STEP if self.steps else PLAIN, capacity, sampler=sampler,
            window=windows.NStep(self.steps, 0.9) if self.steps else None, max_writers=MAX_WRITERS, seed=seed,
        )  # fmt: skip
        rows = self.table.spec.block_layout().rows
        self.model = TableModel(capacity, rows, self.steps, 0.9, alpha if self.prioritized else 0.0)
        self.extender = self.model.writer(1)
        self.max_before = np.float32(1.0)

    def teardown(self) -> None:
        self.stack.close()

    # ---- what both kinds of table can do

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 99))
    def close_writer(self, which: int) -> None:
        real, model = self.writers.pop(which % len(self.writers))
        real.close()
        self.model.close(model)

    @rule()
    def clear(self) -> None:
        self.stale += [self.keys[row.obs] for row in self.model.live]
        self.table.clear()
        self.model.clear([model for _, model in self.writers] + [self.extender])

    @precondition(lambda self: self.prioritized and self.model.live)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        live = self.model.live
        rows = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=8))
        stale = data.draw(st.lists(st.sampled_from(self.stale), max_size=2)) if self.stale else []
        values = np.array(data.draw(st.lists(PRIORITIES, min_size=len(rows), max_size=len(rows))), np.float32)
        keys = np.array([self.keys[row.obs] for row in rows] + stale, np.uint64)
        result = self.table.update_priorities(keys, np.concatenate([values, np.ones(len(stale), np.float32)]))
        assert (result.applied, result.stale) == (len(rows), len(stale))
        for row, value in zip(rows, values, strict=True):
            row.raw = value

    @precondition(lambda self: self.prioritized)
    @rule(alpha=st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0]))
    def configure(self, alpha: float) -> None:
        self.table.reconfigure(alpha=alpha)
        self.model.alpha = alpha

    # ---- what must hold after each of them

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "table"):
            return
        live = self.model.live
        assert len(self.table) == len(live)
        self._check_rows()
        self._resolve_defaults()
        info = self.table.info()
        ready = self.model.ready
        assert info.ready_rows == len(ready)
        assert info.evicted_early == 0
        assert info.appended - info.evicted == len(live)
        if self.prioritized:
            raw = self.table.priorities(self._keys(live))
            expected = [np.nan if row.raw is None else row.raw for row in live]
            np.testing.assert_array_equal(raw, np.array(expected, np.float32))
            assert info.max_priority == max((row.raw for row in ready if row.raw is not None), default=-1.0)
        np.testing.assert_allclose(info.total_priority, sum(map(self.model.mass, ready)), rtol=1e-12)
        self._check_windows(ready, [row for row in live if not row.ready])
        self._check_draws()
        self.table.verify()
        self.max_before = max((row.raw for row in ready), default=np.float32(1.0))  # type: ignore[type-var]
        self.model.newly_ready.clear()

    def _keys(self, rows: list[Row]) -> Any:
        return np.array([self.keys[row.obs] for row in rows], np.uint64)

    def _check_rows(self) -> None:
        """Live rows lie in eviction order; a key names one row for ever."""
        name = "obs" if self.steps else "x"
        finals = {row.obs for block in self.model.blocks for row in block.rows if row.final}
        seen = []
        for block in self.table.blocks():
            for obs, key in zip(np.asarray(block.to_arrow().column(name)).tolist(), block.keys.tolist(), strict=True):
                assert self.keys.setdefault(obs, key) == key
                if obs not in finals:
                    seen.append(obs)
        assert seen == [row.obs for row in self.model.live]
        assert len(set(self.keys.values())) == len(self.keys)

    def _resolve_defaults(self) -> None:
        """Rows that became drawable without a priority got the largest there was."""
        waiting = [row for row in self.model.newly_ready if row.raw is None]
        given = {row.raw for row in self.model.newly_ready if row.raw is not None}
        if not self.prioritized:
            for row in waiting:
                row.raw = np.float32(1)
            return
        for row in [row for row in waiting if row.live]:
            row.raw = self.table.priorities(self._keys([row]))[0]
            # an append that crosses blocks lets evictions come in between: then it is the largest of what was left
            left = {other.raw for other in self.model.live if other.raw is not None}
            assert row.raw in {self.max_before, *given, *left}
        for row in [row for row in waiting if not row.live]:
            row.raw = self.max_before

    def _check_windows(self, ready: list[Row], waiting: list[Row]) -> None:
        if ready:
            self._check_batch(self.table.rows(self._keys(ready)), ready)
        for row in waiting:
            with pytest.raises(StaleKey):
                self.table.rows(self._keys([row]))

    def _check_draws(self) -> None:
        chances = self.model.probabilities()
        if not chances:
            return
        batch = self.table.sample(16)
        name = "obs" if self.steps else "x"
        drawn = [chances[obs] for obs in batch[name].tolist()]  # KeyError: a row that cannot be drawn
        np.testing.assert_allclose(batch.probabilities, drawn, rtol=1e-9)
        beta = 0.7 if self.prioritized else 0.0
        np.testing.assert_allclose(batch.weights, (min(drawn) / np.array(drawn)) ** beta, rtol=1e-6)
        by_obs = {row.obs: row for row in self.model.ready}
        rows = [by_obs[obs] for obs in batch[name].tolist()]
        assert batch.keys.tolist() == self._keys(rows).tolist()
        self._check_batch(batch, rows)

    def _check_batch(self, batch: Any, rows: list[Row]) -> None:
        if self.steps == 0:
            assert batch["x"].tolist() == [row.obs for row in rows]
            return
        found = [self.model.window(row) for row in rows]
        assert batch["obs"].tolist() == batch["action"].tolist() == batch["x"].tolist() == [row.obs for row in rows]
        assert batch["next_obs"].tolist() == [window.next_obs for window in found]
        assert batch["n_step"].tolist() == [window.m for window in found]
        assert batch["terminated"].tolist() == [window.terminated for window in found]
        assert batch["truncated"].tolist() == [window.truncated for window in found]
        np.testing.assert_allclose(batch["discount"], [window.discount for window in found], rtol=1e-6)
        np.testing.assert_allclose(batch["reward"], [window.reward for window in found], rtol=1e-5, atol=1e-5)
