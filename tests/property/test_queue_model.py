"""A queue beside the model of `queue_model.py`: appends, deliveries, acknowledgements, returns, versions, restores."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from conduit import ConduitError, LeaseExpired, StaleKey, Store
from conduit.checkpoints import Changes
from tests.property.queue_machine import GROUP, QueueInAndOut, consumers
from tests.property.queue_model import CONSUMERS


class QueueMachine(QueueInAndOut):
    """What becomes of what was delivered, and of the whole queue."""

    # ---- what becomes of them

    @precondition(lambda self: hasattr(self, "model") and self.model.out)
    @rule(which=st.integers(0, 99), data=st.data(), foreign=st.booleans())
    def acknowledge(self, which: int, data: st.DataObject, foreign: bool) -> None:
        """Some rows or all. A key that is none of the batch's, or was acknowledged before, undoes nothing."""
        out = self.model.out[which % len(self.model.out)]
        some = data.draw(st.none() | st.sets(st.integers(0, len(out.left) - 1), min_size=1))
        chosen = out.left if some is None else [out.left[i] for i in sorted(some)]
        keys = None if some is None else [self.keys[row.x] for row in chosen]
        if out.lost:
            with pytest.raises(LeaseExpired):
                out.batch.ack(keys)
            self.model.out.remove(out)
            return
        others = [key for x, key in self.keys.items() if x not in {row.x for row in out.left}]
        if keys is not None and foreign and others:
            with pytest.raises(StaleKey):
                out.batch.ack([*keys, data.draw(st.sampled_from(others))])
            return
        assert out.batch.ack(None if keys is None else keys + keys[:1]) == len(chosen)  # a key twice is one row
        self.model.acknowledged(out, chosen)

    @precondition(lambda self: hasattr(self, "model") and self.model.out)
    @rule(which=st.integers(0, 99), silently=st.booleans())
    def release(self, which: int, silently: bool) -> None:
        out = self.model.out[which % len(self.model.out)]
        if silently:
            self.model.comes_back(out)
            self.model.out.remove(out)
            out.batch = None  # the last reference
        else:
            self._release(out)

    @rule(consumer=consumers, data=st.data())
    def drop(self, consumer: str, data: st.DataObject) -> None:
        """Rows that are out with this group, done or gone are skipped."""
        if not self.keys:
            return
        xs = data.draw(st.sets(st.sampled_from(sorted(self.keys)), min_size=1, max_size=6))
        rows = [row for row in self.model.waiting(consumer) if row.x in xs]
        assert self.queue.drop([self.keys[x] for x in xs], consumer=consumer) == len(rows)
        self.model.finish(consumer, rows, "dropped_rows")

    @rule(consumer=consumers)
    def drop_incomplete(self, consumer: str) -> None:
        _, partial = self.model.groups(consumer)
        found = self.queue.incomplete("value", group_size=GROUP, consumer=consumer)
        oldest = sorted(partial, key=lambda value: (partial[value][0].since, value))
        assert [(value, n) for value, n, _ in found] == [(value, len(partial[value])) for value in oldest]
        rows = [row for rows in partial.values() for row in rows]
        assert self.queue.drop_incomplete("value", group_size=GROUP, older_than=1e6, consumer=consumer) == 0
        assert self.queue.drop_incomplete("value", group_size=GROUP, consumer=consumer) == len(rows)
        self.model.finish(consumer, rows, "dropped_rows")

    @rule(data=st.data(), score=st.floats(-9, 9))
    def update(self, data: st.DataObject, score: float) -> None:
        """A number is rewritten, of rows that some group has not acknowledged."""
        if not self.keys:
            return
        x = data.draw(st.sampled_from(sorted(self.keys)))
        live = [row for row in self.model.live() if row.x == x]
        assert self.queue.update([self.keys[x]], score=[score]).applied == len(live)
        for row in live:
            row.score = score

    # ---- time passes

    @rule()
    def leases_run_out(self) -> None:
        """As if the time of every lease were over: the holders do not know."""
        self.queue._native.end_leases()
        for out in self.model.out:
            self.model.comes_back(out)

    @rule(by=st.integers(1, 2))
    def learn(self, by: int) -> None:
        self.model.version += by
        self.queue.policy_version = self.model.version

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        self.model.cleared()

    @precondition(lambda self: hasattr(self, "model") and self.model.appended > 30)
    @rule()
    def end(self) -> None:
        self.queue.end()
        self.model.ended = True

    @rule()
    def writer_leaves(self) -> None:
        self.writer.close()
        self.writer = self.queue.writer(timeout=0.0)
        self.model.leaves("writer")

    @rule(more=st.integers(-4, 10))
    def restore(self, more: int) -> None:
        """Another store goes on with what this one has saved; what is out is out with nobody there, and waits again."""
        path, max_size = f"{self.folder}/{next(self.serial)}", max(self.model.max_size + more, GROUP)
        self.store.checkpoint(path)
        changes = {"q": Changes(max_size=max_size)}
        if len(self.model.live()) > max_size:  # nothing of a queue is dropped
            with pytest.raises(ConduitError):
                Store.restore(path, self._name(), tables=changes)
            return
        self.writer.close()
        self.store.close()
        self.store = Store.restore(path, self._name(), "16MiB", max_processes=3, tables=changes)
        self.queue = self.store.queue("q")
        self.writer = self.queue.writer(timeout=0.0)
        self.model.reopened(self.queue.spec.block_layout().rows, max_size)
        self.keys.clear()

    # ---- what must hold after each of them

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        live = len(self.model.live())
        info = self.queue.info()
        assert (len(self.queue), info.unacknowledged) == (live, live)
        assert (info.appended, info.acknowledged) == (self.model.appended, self.model.appended - live)
        for consumer in CONSUMERS:
            found, counts = info.consumers[consumer], self.model.counts[consumer]
            assert found.undelivered == len(self.model.waiting(consumer))
            assert found.leased == len(self.model.away(consumer))
            for name, count in vars(counts).items():
                if self.exact or "delivered" not in name:
                    assert getattr(found, name) == count, (consumer, name)
        assert info.leases == sum(not out.lost for out in self.model.out)
        self.queue.verify()


SETTINGS = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class TestQueue(QueueMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = SETTINGS


@pytest.mark.slow
@pytest.mark.timeout(0)
class TestQueueAtLength(QueueMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(SETTINGS, max_examples=2_000, stateful_step_count=60)
