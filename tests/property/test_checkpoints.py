"""A restored store goes on as the one that was saved: the same calls give the same batches and keys."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit import ConduitError, Store, Table, limiters, removers, samplers, schedules, windows
from tests.store_support import EPISODIC, PLAIN, fresh_store

Make = Callable[[Store], Table]
Ops = list[tuple[str, int]]


def rows(**options: Any) -> Make:
    return lambda store: store.create_table("t", PLAIN, 40, seed=7, max_writers=2, **options)


def steps(**options: Any) -> Make:
    fixed = {"seed": 7, "max_writers": 2, "mean_episode_length": 4.0}
    return lambda store: store.create_table("t", EPISODIC, 60, **fixed, **options)


TABLES: dict[str, Make] = {
    "uniform": rows(),
    "prioritized": rows(sampler=samplers.Prioritized(0.7, 0.4)),
    "stratified": rows(sampler=samplers.Prioritized(0.7, schedules.Linear(0.4, 1.0, 50), stratified=True)),
    "fifo": rows(sampler=samplers.Fifo()),
    "lifo": rows(sampler=samplers.Lifo()),
    "without replacement": rows(sampler=samplers.WithoutReplacement()),
    "times": rows(max_times_sampled=3),
    "newest leaves": rows(remover=removers.Lifo()),
    "least leaves": rows(remover=removers.LowestPriority(), sampler=samplers.Prioritized(1.0, 0.5)),
    "ratio": rows(limiter=limiters.SampleToInsertRatio(3, min_size=4)),
    "n-step": steps(window=windows.NStep(3, gamma=0.9), sampler=samplers.Prioritized(0.6, 0.4)),
    "sequence": steps(window=windows.Sequence(4, burn_in=1, period=2), sampler=samplers.Prioritized(0.6, 0.4)),
    "episode": steps(window=windows.Episode(6)),
    "two windows": steps(
        window={"a": windows.NStep(2, gamma=0.9), "b": windows.FrameStack(3)},
        sampler={"a": samplers.Prioritized(1.0, 1.0), "b": samplers.WithoutReplacement()},
    ),
    "times, steps": steps(window=windows.NStep(2, gamma=0.9), max_times_sampled=2),
}

ops = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(1, 25)),
        st.tuples(st.just("sample"), st.integers(1, 8)),
        st.tuples(st.just("update"), st.integers(0, 1000)),
    ),
    max_size=30,
)


class Hand:
    """Does the same to whichever table it is given, and remembers what came of it."""

    def __init__(self, table: Table, appended: int = 0, last: Any = ()) -> None:
        self.table = table
        self.appended = appended
        self.last = last

    def do(self, op: str, number: int) -> Any:
        return getattr(self, op)(number)

    def extend(self, n: int) -> Any:
        first, self.appended = self.appended, self.appended + n
        values = np.arange(first, first + n)
        columns: dict[str, Any] = {"x": values}
        if self.table.schema.is_episodic:  # whole episodes, of different lengths
            ends = values % 3 == 0
            ends[-1] = True
            columns = {
                "obs": values, "action": values, "reward": values.astype("f4"), "terminated": ends,
                "truncated": np.zeros(n, bool), "next_obs": values + 1,
            }  # fmt: skip
        priorities = None if n % 2 else 1.0 + values % 5
        prioritized = self.table.spec.prioritized
        return self.table.extend(columns, priorities=priorities if prioritized else None, timeout=0)

    def sample(self, n: int) -> Any:
        found: list[Any] = []
        for window in self.table.batch_schemas:
            try:
                batch = self.table.sample(n, window=window, timeout=0)
            except ConduitError as error:
                found.append(type(error).__name__)
                continue
            self.last = batch.keys
            found.append({name: array.tolist() for name, array in batch.items()})
            found.append([batch.keys.tolist(), batch.probabilities.tolist(), batch.weights.tolist()])
        return found

    def update(self, number: int) -> Any:
        if len(self.last) == 0 or not self.table.spec.views[0].prioritized:
            return None
        return self.table.update_priorities(self.last, 0.5 + (np.arange(len(self.last)) * 7 + number) % 11)


@pytest.mark.parametrize("kind", TABLES)
@settings(max_examples=8, deadline=None)
@given(before=ops, after=ops)
def test_goes_on_as_if_never_interrupted(kind: str, before: Ops, after: Ops) -> None:
    with fresh_store() as store, tempfile.TemporaryDirectory() as folder:
        hand = Hand(TABLES[kind](store))
        for op in before:
            hand.do(*op)
        store.checkpoint(folder)
        with Store.restore(folder, f"{store.name}-again", "16MiB") as restored:
            twin = Hand(restored["t"], hand.appended, hand.last)
            twin.table.verify()
            assert len(twin.table) == len(hand.table)
            for op in after:
                assert twin.do(*op) == hand.do(*op), op
            twin.table.verify()
            assert twin.sample(3) == hand.sample(3)
