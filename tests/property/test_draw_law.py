"""Probabilities, weights and draws of prioritized tables against the formulas, at the most extreme priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit import Table, samplers, schedules
from tests.store_support import column_of, fresh_store, keys_of, plain_table

MAX_SIZE = 24
TINY, HUGE = 1e-45, float(np.finfo(np.float32).max)  # the smallest float32 above 0, and the largest
PRIORITIES = st.one_of(st.sampled_from([0.0, TINY, 1e-30, 1e-6, 1.0, 1.0, 1e6, HUGE]), st.floats(0.0, HUGE, width=32))
BETAS = st.one_of(
    st.sampled_from([0.0, 0.4, 1.0]),
    st.builds(schedules.Linear, st.floats(0, 1), st.floats(0, 1), st.integers(1, 6)),
    st.builds(schedules.Exponential, st.floats(0.01, 1), st.floats(0.01, 1), st.integers(1, 6)),
)
SAMPLERS = st.builds(
    samplers.Prioritized, st.sampled_from([0.0, 1e-3, 0.5, 0.6, 1.0, 2.0, 4.0]), BETAS,
    st.sampled_from([0.0, 1e-6, 1.0]), normaliser=st.sampled_from(["batch", "table"]), stratified=st.booleans(),
)  # fmt: skip
CHANGES = st.one_of(
    st.tuples(st.just("extend"), st.lists(PRIORITIES, min_size=1, max_size=MAX_SIZE)),
    st.tuples(st.just("default"), st.integers(1, 5)),
    st.tuples(st.just("update"), st.lists(st.tuples(st.integers(0, 99), PRIORITIES), min_size=1, max_size=8)),
    st.tuples(st.just("alpha"), st.sampled_from([0.0, 0.5, 1.0, 4.0])),
    st.tuples(st.just("eps"), st.sampled_from([0.0, 1e-3, 1e30])),
    st.tuples(st.just("sample"), st.integers(1, 40)),
)
Floats = npt.NDArray[np.float64]


class Model:
    """Priorities by row, oldest first, and the batches that have been drawn."""

    def __init__(self, table: Table, sampler: samplers.Prioritized) -> None:
        self.table, self.sampler = table, sampler
        self.alpha, self.eps = sampler.alpha, sampler.eps
        self.rows: dict[int, np.float32] = {}
        self.serial = self.batches = 0

    def comes(self, priority: np.float32 | None) -> None:
        largest = max(self.rows.values(), default=np.float32(1))
        self.rows[self.serial] = largest if priority is None else priority
        self.serial += 1
        if len(self.rows) > MAX_SIZE:
            del self.rows[next(iter(self.rows))]

    def change(self, what: str, value: Any) -> None:
        match what:
            case "extend":
                self.table.extend({"x": self.serial + np.arange(len(value))}, priorities=value)
                for priority in value:
                    self.comes(np.float32(priority))
            case "default":
                for _ in range(value):  # one by one: each is taken in beside the one before
                    self.table.extend({"x": [self.serial]})
                    assert len(self.table) > 0
                    self.comes(None)
            case "update":
                live = list(self.rows)
                numbers = [live[i % len(live)] for i, _ in value] if live else []
                keys = dict(zip(column_of(self.table).tolist(), keys_of(self.table), strict=True))
                self.table.update_priorities(
                    np.array([keys[x] for x in numbers], np.uint64), [p for _, p in value[: len(numbers)]]
                )
                for x, (_, p) in zip(numbers, value, strict=False):
                    self.rows[x] = np.float32(p)  # of a row that is named twice the last
            case "alpha":
                self.alpha = value
                self.table.reconfigure(alpha=value)
            case "eps":
                self.eps = value
                self.table.reconfigure(eps=value)
            case "sample":
                self.sample(value)

    def probabilities(self) -> dict[int, float]:
        """Of all rows that can be drawn."""
        bases = np.array(list(self.rows.values()), np.float64) + self.eps
        with np.errstate(divide="ignore"):
            masses = np.where(bases > 0, bases**self.alpha, 0.0)
        total = masses.sum()
        return {x: m / total for x, m in zip(self.rows, masses.tolist(), strict=True) if m > 0}

    def sample(self, n: int) -> None:
        chances = self.probabilities()
        assert self.table.can_sample(n) == bool(chances)
        if not chances:
            return
        batch = self.table.sample(n, timeout=0)
        drawn: Floats = np.array([chances[x] for x in batch["x"].tolist()])  # KeyError: a row that cannot be drawn
        np.testing.assert_allclose(batch.probabilities, drawn, rtol=1e-9)
        least = min(chances.values()) if self.sampler.normaliser == "table" else drawn.min()
        schedule = self.sampler.beta
        beta = schedule if isinstance(schedule, float | int) else schedule(self.batches)
        np.testing.assert_allclose(batch.weights, (least / drawn) ** beta, rtol=1e-5, atol=1e-37)
        assert (batch.weights <= 1).all()
        self.batches += 1
        if self.sampler.stratified:  # slices that lie within a row's mass are its own; two more may reach into it
            for x, p in chances.items():
                assert abs(int((batch["x"] == x).sum()) - n * p) < 2


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SAMPLERS, st.lists(CHANGES, min_size=1, max_size=25))
def test_every_batch_follows_the_formulas(sampler: samplers.Prioritized, changes: list[tuple[str, Any]]) -> None:
    with fresh_store() as store:
        model = Model(plain_table(store, MAX_SIZE, sampler=sampler), sampler)
        for change in [*changes, ("sample", 30)]:
            model.change(*change)
            model.table.verify()
        assert model.table.priorities(keys_of(model.table)).tolist() == list(model.rows.values())
