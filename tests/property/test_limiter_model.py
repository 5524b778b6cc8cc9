"""A table with a limiter beside a plain model of it: inserts, samples, discards, changes at run time."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conduit import AppendTimeout, ConfigError, SampleTimeout, limiters
from tests.store_support import fresh_store, plain_table

SETTINGS = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
MAX_SIZE = 20
RATIOS = st.sampled_from([0.1, 0.25, 1.0, 1.5, 3.0, 4.0])


class RatioMachine(RuleBasedStateMachine):
    """SampleToInsertRatio: what goes through, and what the counts say, is what Reverb's rule gives."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.loader: Any = None

    @initialize(ratio=RATIOS, min_size=st.integers(1, 8), buffer=st.one_of(st.none(), st.floats(0, 40)))
    def create(self, ratio: float, min_size: int, buffer: float | None) -> None:
        if buffer is not None:
            buffer = max(buffer, 1.0, ratio)
        store = self.stack.enter_context(fresh_store(max_processes=2))
        self.ratio, self.min_size, self.buffer = ratio, min_size, buffer
        limiter = limiters.SampleToInsertRatio(ratio, min_size, buffer)
        self.table = plain_table(store, MAX_SIZE, limiter=limiter)
        self.inserts = self.samples = self.live = 0
        self.cursor = 0.0

    def teardown(self) -> None:
        if self.loader is not None:
            self.loader.close()
        self.stack.close()

    @property
    def low(self) -> float:
        return 0.0 if self.buffer is None else self.min_size * self.ratio - self.buffer

    @property
    def high(self) -> float:
        return np.inf if self.buffer is None else self.min_size * self.ratio + self.buffer

    def admits(self, n: int) -> bool:
        return self.live >= self.min_size and self.cursor - n >= self.low - 1e-9

    def possible(self, n: int) -> bool:
        return self.buffer is None or n + self.ratio <= 2 * self.buffer + 1e-9

    def lets_in(self) -> bool:
        return self.cursor + self.ratio <= self.high + 1e-9 or self.live < self.min_size or self.live == 0

    @rule(n=st.integers(1, 12))
    def insert(self, n: int) -> None:
        expected = 0
        before = self.inserts
        while expected < n and self.lets_in():
            expected += 1
            self.inserts += 1
            self.cursor += self.ratio
            self.live = min(MAX_SIZE, self.live + 1)
        columns = {"x": np.arange(before, before + n)}
        if expected == n:
            assert self.table.extend(columns, timeout=0) == n
        else:
            missing = next(k for k in itertools.count(1) if self.cursor - k + self.ratio <= self.high + 1e-9)
            with pytest.raises(AppendTimeout, match=rf" {missing} more samples .* {expected} of {n} rows are in"):
                self.table.extend(columns, timeout=0)

    @rule(n=st.integers(1, 12))
    def sample(self, n: int) -> None:
        allowed = self.possible(n) and self.admits(n)
        assert self.table.can_sample(n) == allowed
        if allowed:
            assert len(self.table.sample(n, timeout=0)) == n
            self.samples += n
            self.cursor -= n
            return
        if not self.possible(n):
            with pytest.raises(ConfigError, match="can never be let through"):
                self.table.sample(n, timeout=0)
            return
        enough = (k for k in itertools.count(1) if self.cursor + k * self.ratio - n >= self.low - 1e-9)
        lacks = self.min_size - self.live
        said = f"lacks {lacks} rows" if lacks > 0 else f" {next(enough)} more inserts"
        with pytest.raises(SampleTimeout, match=said):
            self.table.sample(n, timeout=0)

    @precondition(lambda self: self.loader is None)
    @rule(n=st.integers(1, 3), delivered=st.integers(0, 2))
    def loaded(self, n: int, delivered: int) -> None:
        """A loader delivers some batches; what it has prepared beyond them comes back when it is closed."""
        if not self.possible(n):
            return
        with self.table.loader(n, prefetch=2) as loader:
            for _ in range(delivered):
                if not self.admits(n):
                    with pytest.raises(SampleTimeout):
                        loader.next(timeout=0)
                    break
                loader.next(timeout=10)
                self.samples += n
                self.cursor -= n

    @rule(ratio=RATIOS, min_size=st.integers(1, 8), buffer=st.floats(0, 40))
    def reconfigure(self, ratio: float, min_size: int, buffer: float) -> None:
        """The cursor stays; the band is the new one."""
        if self.buffer is not None:
            self.buffer = max(buffer, 1.0, ratio)
        self.ratio, self.min_size = ratio, min_size
        self.table.reconfigure(samples_per_insert=ratio, min_size=min_size, error_buffer=self.buffer)
        assert self.table.limiter == limiters.SampleToInsertRatio(ratio, min_size, self.buffer)

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.inserts = self.samples = self.live = 0
        self.cursor = 0.0

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "table"):
            return
        info = self.table.info()
        assert info.rows == self.live
        assert (info.limiter_inserts, info.limiter_samples, info.limiter_reserved) == (self.inserts, self.samples, 0)
        np.testing.assert_allclose(info.limiter_cursor, self.cursor, rtol=1e-9, atol=1e-6)
        assert self.buffer is None or np.isclose(info.limiter_high - info.limiter_low, 2 * self.buffer)
        if self.buffer is not None:
            assert self.table.can_insert(1) == self.lets_in()
        self.table.verify()


class TimesMachine(RuleBasedStateMachine):
    """max_times_sampled, with and without QueueCapacity: no row more often than allowed, and none that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()

    @initialize(times=st.integers(1, 3), capacity=st.one_of(st.none(), st.integers(1, 12)), weighted=st.booleans())
    def create(self, times: int, capacity: int | None, weighted: bool) -> None:
        from conduit import samplers

        store = self.stack.enter_context(fresh_store(max_processes=2))
        self.times, self.capacity = times, capacity
        self.table = plain_table(
            store, MAX_SIZE, max_times_sampled=times, max_writers=60,
            sampler=samplers.Prioritized(1.0, 0.5) if weighted else samplers.Uniform(),
            limiter=limiters.MinSize(1) if capacity is None else limiters.QueueCapacity(capacity),
        )  # fmt: skip
        self.weighted = weighted
        self.next = 0
        self.uses: dict[int, int] = {}  # of the live rows, oldest first
        self.keys: dict[int, int] = {}
        self.gone = 0

    def teardown(self) -> None:
        self.stack.close()

    @rule(n=st.integers(1, 8))
    def insert(self, n: int) -> None:
        room = n if self.capacity is None else min(n, max(0, self.capacity - len(self.uses)))
        values = np.arange(self.next, self.next + n)
        given: dict[str, Any] = {"priorities": 1.0 + values % 5} if self.weighted else {}
        if room == n:
            self.table.extend({"x": values}, timeout=0, **given)
        else:
            with pytest.raises(AppendTimeout, match=rf"QueueCapacity.* {room} of {n} rows are in"):
                self.table.extend({"x": values}, timeout=0, **given)
        self.uses |= dict.fromkeys(range(self.next, self.next + room), 0)
        self.next += room
        len(self.table)  # folds, and evicts
        while len(self.uses) > MAX_SIZE:
            self.uses.pop(next(iter(self.uses)))

    @rule(n=st.integers(1, 12))
    def sample(self, n: int) -> None:
        left = sum(self.times - used for used in self.uses.values())
        # more rows than a smaller capacity was made for may still be there
        if n > (MAX_SIZE if self.capacity is None else max(self.capacity, len(self.uses))):
            with pytest.raises(ConfigError, match="never"):
                self.table.sample(n, timeout=0)
            return
        assert self.table.can_sample(n) == (left >= n)
        if left < n:
            with pytest.raises(SampleTimeout):
                self.table.sample(n, timeout=0)
            return
        batch = self.table.sample(n, timeout=0)
        masses = {x: 1.0 + x % 5 if self.weighted else 1.0 for x in self.uses}
        for x, probability in zip(batch["x"].tolist(), batch.probabilities, strict=True):
            np.testing.assert_allclose(probability, masses[x] / sum(masses.values()), rtol=1e-9)
            self.uses[x] += 1  # KeyError: a row that has left
            if self.uses[x] == self.times:
                del masses[x]
        used_up = [x for x, used in self.uses.items() if used >= self.times]
        for x in used_up:
            assert self.uses.pop(x) == self.times
        self.gone += len(used_up)
        stale = np.isnan(self.table.priorities(batch.keys))
        assert stale.tolist() == [x in used_up for x in batch["x"].tolist()]

    @rule(times=st.integers(1, 3))
    def reconfigure(self, times: int) -> None:
        self.table.reconfigure(max_times_sampled=times)
        self.times = times
        for x in [x for x, used in self.uses.items() if used >= times]:
            del self.uses[x]
            self.gone += 1

    @precondition(lambda self: self.capacity is not None)
    @rule(capacity=st.integers(1, 12))
    def resize(self, capacity: int) -> None:
        self.table.reconfigure(queue_capacity=capacity)
        self.capacity = capacity

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.uses.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "table"):
            return
        info = self.table.info()
        assert (info.rows, info.ready_rows) == (len(self.uses), len(self.uses))
        assert (info.sampled_out, info.evicted_early) == (self.gone, 0)
        total = sum(1.0 + x % 5 if self.weighted else 1.0 for x in self.uses)
        np.testing.assert_allclose(info.total_priority, total, rtol=1e-12)
        self.table.verify()


TestRatio = RatioMachine.TestCase
TestRatio.settings = SETTINGS
TestTimes = TimesMachine.TestCase
TestTimes.settings = SETTINGS
