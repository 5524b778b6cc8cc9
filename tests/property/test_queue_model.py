"""A queue beside a plain model of it: appends, deliveries, acknowledgements, returns, versions, consumer groups."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conduit import AppendTimeout, LeaseExpired, QueueBatch, SampleTimeout, StalePolicy
from tests.store_support import fresh_store, schema

CONSUMERS = ("a", "b")
SCHEMA = schema(x="i8", value="i4")
GROUP = 3


@dataclass
class Row:
    """A row, and who has acknowledged it. `place`: its block and its place there, which deliveries are ordered by."""

    x: int
    value: int
    version: int
    place: tuple[int, int]
    done: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(CONSUMERS, False))


@dataclass
class Out:
    """A delivery that is out."""

    batch: QueueBatch
    consumer: str
    rows: list[Row]
    lost: bool = False


class QueueMachine(RuleBasedStateMachine):
    """Two writers, of one thread; every delivery, also a group's, must be the one that the model gives."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.serial = itertools.count()
        self.rows: list[Row] = []  # in the order of their publication
        self.out: list[Out] = []
        self.version = 0
        self.grouped: set[str] = set()  # consumers that have asked for groups: their rows leave by whole groups
        self.stale: dict[str, int] = dict.fromkeys(CONSUMERS, 0)

    @initialize(max_size=st.integers(GROUP, 40), staleness=st.integers(0, 2))
    def create(self, max_size: int, staleness: int) -> None:
        store = self.stack.enter_context(fresh_store(max_processes=2))
        self.max_size, self.staleness = max_size, staleness
        # blocks enough that whole rows, not blocks, are what runs short
        self.queue = store.create_queue(
            "q", SCHEMA, max_size, consumers=CONSUMERS, max_staleness=staleness, max_writers=60
        )
        self.capacity = self.queue.spec.block_layout().rows
        self.blocks = itertools.count()
        self.open: list[list[int]] = [[-1, 0], [-1, 0]]  # of each writer: block, rows in it
        self.writers = [self.queue.writer(timeout=0.0), None]  # the other is the queue's extend

    def teardown(self) -> None:
        self.out.clear()
        self.stack.close()

    # ---- the model

    def live(self) -> list[Row]:
        return [row for row in self.rows if not all(row.done.values())]

    def waiting(self, consumer: str) -> list[Row]:
        """By place: the order of delivery."""
        away = {row.x for out in self.out if out.consumer == consumer and not out.lost for row in out.rows}
        found = [row for row in self.rows if not row.done[consumer] and row.x not in away]
        return sorted(found, key=lambda row: row.place)

    def too_old(self, row: Row) -> bool:
        return row.version < self.version - self.staleness

    def drop_stale(self, consumer: str) -> None:
        for row in self.waiting(consumer):
            if self.too_old(row):
                row.done[consumer] = True
                self.stale[consumer] += 1

    def groups(self, consumer: str) -> list[list[Row]]:
        """Complete groups, in the order of their completion; those that are too old are dropped on the way."""
        partial: dict[int, list[Row]] = {}
        ready: list[list[Row]] = []
        waiting = {row.x for row in self.waiting(consumer)}
        for row in [row for row in self.rows if row.x in waiting]:
            members = partial.setdefault(row.value, [])
            members.append(row)
            if len(members) == GROUP:
                ready.append(partial.pop(row.value))
        return ready

    # ---- operations

    @rule(writer=st.integers(0, 1), values=st.lists(st.integers(0, 3), min_size=1, max_size=12), age=st.integers(0, 3))
    def append(self, writer: int, values: list[int], age: int) -> None:
        values = values[:1] if writer == 0 else values[: self.max_size]
        version, n = self.version - age, len(values)
        xs = [next(self.serial) for _ in values]
        columns = {"x": np.array(xs), "value": np.array(values, np.int32), "policy_version": np.full(n, version)}

        def act() -> None:
            if writer == 0:
                self.writers[0].append(**{name: column[0] for name, column in columns.items()})  # type: ignore[union-attr]
            else:
                self.queue.extend(columns, timeout=0.0)

        if age > self.staleness:
            with pytest.raises(StalePolicy):
                act()
            return
        if len(self.live()) + n > self.max_size:  # what nobody will be given makes room
            for consumer in CONSUMERS:
                if consumer not in self.grouped:
                    self.drop_stale(consumer)
        if len(self.live()) + n > self.max_size:
            with pytest.raises(AppendTimeout):
                act()
        else:
            act()
            at = self.open[writer]
            for x, value in zip(xs, values, strict=True):
                if at[0] < 0 or at[1] == self.capacity:
                    at[:] = [next(self.blocks), 0]
                self.rows.append(Row(x, value, version, (at[0], at[1])))
                at[1] += 1

    @rule(consumer=st.sampled_from(CONSUMERS), n=st.integers(1, 12), partial=st.booleans())
    def take(self, consumer: str, n: int, partial: bool) -> None:
        n = min(n, self.max_size)
        self.drop_stale(consumer)
        rows = self.waiting(consumer)[:n]
        if not rows or (len(rows) < n and not partial):
            with pytest.raises(SampleTimeout):
                self.queue.sample(n, consumer=consumer, partial=partial, timeout=0.0)
            return
        self.receive(self.queue.sample(n, consumer=consumer, partial=partial, timeout=0.0), consumer, rows)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def take_group(self, consumer: str) -> None:
        self.grouped.add(consumer)
        ready = self.groups(consumer)
        while ready and any(map(self.too_old, ready[0])):
            for row in ready.pop(0):
                row.done[consumer] = True
                self.stale[consumer] += 1
        options: Any = {"consumer": consumer, "group_by": "value", "group_size": GROUP, "timeout": 0.0}
        if not ready:
            with pytest.raises(SampleTimeout):
                self.queue.sample(GROUP, **options)
            return
        self.receive(self.queue.sample(GROUP, **options), consumer, ready[0])

    def receive(self, batch: QueueBatch, consumer: str, rows: list[Row]) -> None:
        assert batch["x"].tolist() == [row.x for row in rows]
        assert batch["value"].tolist() == [row.value for row in rows]
        assert batch["policy_version"].tolist() == [row.version for row in rows]
        self.out.append(Out(batch, consumer, rows))

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 99), data=st.data())
    def acknowledge(self, which: int, data: st.DataObject) -> None:
        out = self.out[which % len(self.out)]
        n = len(out.rows)
        some = data.draw(st.none() | st.sets(st.integers(0, n - 1), min_size=1))
        chosen = range(n) if some is None else sorted(some)
        left = [int(key) for key in out.batch.keys]
        keys_of = {row.x: key for row, key in zip(self.delivered(out), left, strict=True)}
        keys = None if some is None else np.array([keys_of[out.rows[i].x] for i in chosen], np.uint64)
        if out.lost:
            with pytest.raises(LeaseExpired):
                out.batch.ack(keys)
            self.out.remove(out)
            return
        assert out.batch.ack(keys) == len(chosen)
        for i in chosen:
            out.rows[i].done[out.consumer] = True
        out.rows = [row for i, row in enumerate(out.rows) if i not in chosen]
        if not out.rows:
            self.out.remove(out)

    def delivered(self, out: Out) -> list[Row]:
        by_x = {row.x: row for row in self.rows}
        return [by_x[x] for x in out.batch["x"].tolist()]

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        out = self.out.pop(which % len(self.out))
        out.batch.release()

    @rule()
    def time_passes(self) -> None:
        """As if the time of every lease were over: the holders do not know."""
        self.queue._native.end_leases()
        for out in self.out:
            out.lost = True

    @rule(by=st.integers(1, 2))
    def learn(self, by: int) -> None:
        self.version += by
        self.queue.policy_version = self.version

    # ---- what must hold after each of them

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        live = self.live()
        assert len(self.queue) == len(live)
        info = self.queue.info()
        for consumer in CONSUMERS:
            group = info.consumers[consumer]
            waiting = self.waiting(consumer)
            away = sum(len(out.rows) for out in self.out if out.consumer == consumer and not out.lost)
            assert (group.undelivered, group.leased) == (len(waiting), away)
            assert group.stale_rows == self.stale[consumer]
        assert info.leases == sum(not out.lost for out in self.out)
        self.queue.verify()


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
