"""The reported drift is never below the true total variation distance; what a loader hands over is within its bound."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit import Loader, Table
from tests.store_support import column_of, fresh_store, keys_of, plain_table, prioritized

MAX_SIZE = 24
PRIORITIES = st.one_of(
    st.floats(0.0, 10.0, width=32),
    st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e6, 1e30]),
)
CHANGES = st.one_of(
    st.tuples(st.just("extend"), st.lists(PRIORITIES, min_size=1, max_size=10)),
    st.tuples(st.just("update"), st.lists(st.tuples(st.integers(0, 99), PRIORITIES), min_size=1, max_size=8)),
    st.tuples(st.just("again"), st.integers(0, 99)),
    st.tuples(st.just("alpha"), st.sampled_from([0.0, 0.5, 0.6, 1.0, 2.0])),
    st.tuples(st.just("eps"), st.sampled_from([0.0, 1e-3, 1.0])),
    st.tuples(st.just("beta"), st.sampled_from([0.0, 0.4, 1.0])),
    st.tuples(st.just("clear"), st.none()),
)
Masses = dict[int, float]


class Model:
    """Rows by number with their priorities; evicts the oldest."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows: dict[int, float] = {}
        self.count = 0
        self.alpha, self.eps = 1.0, 0.0

    def change(self, what: str, value: Any) -> None:
        match what:
            case "extend":
                numbers = np.arange(self.count, self.count + len(value))
                self.count += len(value)
                self.table.extend({"x": numbers}, priorities=value)
                self.rows.update(zip(numbers.tolist(), value, strict=True))
                for old in list(self.rows)[: max(0, len(self.rows) - MAX_SIZE)]:
                    del self.rows[old]
            case "update" | "again":
                live = list(self.rows)
                if not live:
                    return
                if what == "again":  # the same value: nothing changes
                    value = [(value, self.rows[live[value % len(live)]])]
                numbers = [live[i % len(live)] for i, _ in value]
                keys = dict(zip(column_of(self.table).tolist(), keys_of(self.table), strict=True))
                self.table.update_priorities(np.array([keys[x] for x in numbers]), [p for _, p in value])
                for x, (_, p) in zip(numbers, value, strict=True):
                    self.rows[x] = p
            case "alpha":
                self.alpha = value
                self.table.reconfigure(alpha=value)
            case "eps":
                self.eps = value
                self.table.reconfigure(eps=value)
            case "beta":
                self.table.reconfigure(beta=value)
            case "clear":
                self.rows.clear()
                self.table.clear()

    def probabilities(self) -> Masses:
        bases = {x: float(np.float32(p)) + self.eps for x, p in self.rows.items()}
        masses = {x: base**self.alpha if base > 0 else 0.0 for x, base in bases.items()}
        total = sum(masses.values())
        return {x: m / total for x, m in masses.items() if m > 0} if total > 0 else {}


def distance(p: Masses, q: Masses) -> float:
    """Total variation; nothing to draw is as far from everything as can be."""
    if not p or not q:
        return float(bool(p) != bool(q))
    return sum(abs(p.get(x, 0.0) - q.get(x, 0.0)) for x in {*p, *q}) / 2


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGES, min_size=1, max_size=40))
def test_the_bound_is_never_below_the_distance(changes: list[tuple[str, Any]]) -> None:
    with fresh_store() as store:
        model = Model(plain_table(store, MAX_SIZE, sampler=prioritized()))
        core = model.table._native
        marks = [(core.mark(0), model.probabilities())]
        for change in changes:
            model.change(*change)
            now = model.probabilities()
            for mark, then in marks:
                bound, changed = core.drift(0, mark)
                assert 0.0 <= bound <= 1.0
                if then and now:
                    assert bound * (1 + 1e-9) + 1e-12 >= distance(then, now)
                if not changed:
                    assert bound == 0.0
                    assert then == now
            marks.append((core.mark(0), now))
        assert core.drift(0, core.mark(0)) == (0.0, False)
        model.table.verify()


def test_a_giant_that_came_and_went_hides_nothing() -> None:
    with fresh_store() as store:
        model = Model(plain_table(store, MAX_SIZE, sampler=prioritized(alpha=4.0)))
        model.alpha = 4.0
        core = model.table._native
        model.change("extend", [1.0] * 10)
        model.change("update", [(0, 3e38)])
        model.change("update", [(0, 1.0)])
        mark, then = core.mark(0), model.probabilities()
        for bound in (0.05, 0.095):
            model.change("extend", [1.0] if bound < 0.06 else [0.5])
            seen, changed = core.drift(0, mark)
            assert changed
            assert distance(then, model.probabilities()) <= seen < 0.2


def hand_over(loader: Loader) -> tuple[list[int], npt.NDArray[np.float64]]:
    batch = next(loader)
    return batch["x"].tolist(), batch.probabilities


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(CHANGES, max_size=3), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.05, 0.3, None]),
    st.integers(0, 3),
)
def test_what_is_handed_over_is_within_the_bound(
    turns: list[list[tuple[str, Any]]], bound: float | None, depth: int
) -> None:
    """At each turn all of `depth` batches are ready, drawn at known moments; then the table changes."""
    with fresh_store() as store:
        model = Model(plain_table(store, MAX_SIZE, sampler=prioritized()))
        with model.table.loader(16, prefetch=depth, max_priority_drift=bound, stream=0) as loader:
            model.change("extend", [1.0] * 5)
            waiting: list[Masses] = []  # what each batch ahead was drawn from
            redrawn = 0
            for turn in turns:
                for change in turn:
                    model.change(*change)
                if not model.probabilities():
                    model.change("extend", [1.0])
                now = model.probabilities()
                numbers, probabilities = hand_over(loader)
                metrics = loader.metrics()
                drawn_from = now if metrics.redrawn > redrawn or not waiting else waiting[0]
                assert np.allclose(probabilities, [drawn_from[x] for x in numbers], rtol=1e-9)
                true = distance(drawn_from, now)
                assert metrics.drift_last * (1 + 1e-9) + 1e-12 >= true
                if bound is not None:
                    assert true <= bound + 1e-9
                end = time.monotonic() + 20
                while loader.metrics().ready < depth:
                    assert time.monotonic() < end
                    time.sleep(1e-4)
                waiting = waiting[metrics.redrawn - redrawn or 1 :]
                redrawn = metrics.redrawn
                waiting += [now] * (depth - len(waiting))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(CHANGES, max_size=2), min_size=1, max_size=8))
def test_an_exact_loader_draws_what_sample_draws(turns: list[list[tuple[str, Any]]]) -> None:
    with fresh_store() as store:
        models = [Model(plain_table(store, MAX_SIZE, name, sampler=prioritized(beta=0.5))) for name in "abc"]
        plain, *tables = (model.table for model in models)
        one, two = tables
        loaders = [
            one.loader(8, prefetch=1, max_priority_drift=0, stream=1),
            two.loader(8, prefetch=3, max_priority_drift=0, stream=1),
        ]
        for turn in [[("extend", [1.0] * 5)], *turns]:
            for model in models:
                for change in turn:
                    model.change(*change)
                if not model.probabilities():
                    model.change("extend", [1.0])
            expected = plain.sample(8, stream=1)
            for loader in loaders:
                batch = next(loader)
                for name in ("keys", "probabilities", "weights"):
                    assert np.array_equal(getattr(batch, name), getattr(expected, name))
        for loader in loaders:
            loader.close()
