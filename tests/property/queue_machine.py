"""A queue beside the model of `queue_model.py`: rows that come in, and what deliveries hold."""

from __future__ import annotations

import itertools
import os
import tempfile
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from conduit import (
    AppendTimeout,
    CapacityError,
    Column,
    Queue,
    QueueBatch,
    QueueEnded,
    QueueLoader,
    Ragged,
    SampleTimeout,
    Schema,
    StalePolicy,
    Store,
)
from tests.property.queue_model import CONSUMERS, Out, QueueModel, Row, TooLarge
from tests.shm_support import private_runtime_dir

GROUP = 3
BY_VALUE: dict[str, Any] = {"group_by": "value", "group_size": GROUP}
NUMBERS = (Column("x", "int64"), Column("value", "int32"), Column("score", "float64", mutable=True))
# Room for values that never makes a block full before its rows do: the model says where a row lies by counting rows.
TOKENS = {"number": Column("tokens", "int8"), "varying": Column("tokens", "uint16", (None,), mean_length=12)}
consumers = st.sampled_from(CONSUMERS)
_stores = itertools.count()


class QueueInAndOut(RuleBasedStateMachine):
    """Two producers and two consumer groups, of one thread; whatever comes out is what the model gives."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(private_runtime_dir())
        self.folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.serial = itertools.count()
        self.keys: dict[int, int] = {}  # of rows that have been delivered
        self.exact = True  # no loader leases ahead, which would count too

    @initialize(
        max_size=st.integers(GROUP, 40), staleness=st.integers(0, 2), tokens=st.sampled_from(sorted(TOKENS)),
    )  # fmt: skip
    def create(self, max_size: int, staleness: int, tokens: str) -> None:
        self.varying = tokens == "varying"
        self.store = Store.create(self._name(), "16MiB", max_processes=3)
        # blocks enough that whole rows, not blocks, are what runs short
        self.queue: Queue = self.store.create_queue(
            "q", Schema((*NUMBERS, TOKENS[tokens])), max_size, consumers=CONSUMERS, max_staleness=staleness,
            max_writers=60,
        )  # fmt: skip
        self.model = QueueModel(max_size, staleness, GROUP, self.queue.spec.block_layout().rows)
        self.writer = self.queue.writer(timeout=0.0)

    def _name(self) -> str:
        return f"queue-{os.getpid()}-{next(_stores)}"

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.model.out.clear()
            self.writer.close()
            self.store.close()
        self.stack.close()

    # ---- rows come in

    @rule(
        single=st.booleans(), age=st.integers(0, 3),
        rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=12),
    )  # fmt: skip
    def append(self, single: bool, rows: list[tuple[int, int]], age: int) -> None:
        rows = rows[:1] if single else rows[: self.model.max_size]
        version, n = self.model.version - age, len(rows)
        xs = [next(self.serial) for _ in rows]
        tokens: Any = [length for _, length in rows]
        if self.varying:
            tokens = Ragged(np.arange(sum(tokens), dtype=np.uint16), np.cumsum([0, *tokens]))
        columns: dict[str, Any] = {
            "x": np.array(xs), "value": np.array([value for value, _ in rows], np.int32), "score": np.zeros(n),
            "tokens": tokens if self.varying else np.array(tokens, np.int8), "policy_version": np.full(n, version),
        }  # fmt: skip

        def act() -> None:
            if single:
                self.writer.append(**{name: column[0] for name, column in columns.items()})
            else:
                self.queue.extend(columns, timeout=0.0)

        if self.model.ended:
            with pytest.raises(QueueEnded):
                act()
        elif age > self.model.staleness:
            with pytest.raises(StalePolicy):
                act()
        elif self.model.refuses(n):
            with pytest.raises(AppendTimeout):
                act()
        else:
            act()
            made = [(x, value, length) for x, (value, length) in zip(xs, rows, strict=True)]
            self.model.append("writer" if single else "extend", made, version)

    # ---- and out

    @rule(consumer=consumers, n=st.integers(1, 12), max_tokens=st.none() | st.integers(1, 40), partial=st.booleans())
    def take(self, consumer: str, n: int, max_tokens: int | None, partial: bool) -> None:
        n = min(n, self.model.max_size)
        self._take(consumer, False, n, max_tokens, partial)

    @rule(consumer=consumers, m=st.integers(1, 3), max_tokens=st.none() | st.integers(1, 60), partial=st.booleans())
    def take_groups(self, consumer: str, m: int, max_tokens: int | None, partial: bool) -> None:
        n = min(m, self.model.max_size // GROUP) * GROUP
        self._take(consumer, True, n, max_tokens, partial)

    def _take(self, consumer: str, groups: bool, n: int, max_tokens: int | None, partial: bool) -> None:
        options: dict[str, Any] = {"consumer": consumer, "partial": partial, "timeout": 0.0}
        if max_tokens is not None:
            options |= {"max_tokens": max_tokens, "tokens": "tokens"}
        if groups:
            options |= BY_VALUE
        expected = self.model.next_groups if groups else self.model.next
        try:
            rows = expected(consumer, n, max_tokens, partial)
        except TooLarge:
            with pytest.raises(CapacityError):
                self.queue.sample(n, **options)
            return
        if rows:
            self._receive(self.queue.sample(n, **options), consumer, rows)
            return
        with pytest.raises(QueueEnded if self.model.over(consumer) else SampleTimeout):
            self.queue.sample(n, **options)

    @rule(consumer=consumers)
    def drain(self, consumer: str) -> None:
        rows = self.model.next(consumer, self.model.max_size, None, partial=True)
        batch = self.queue.drain(consumer=consumer)
        if rows:
            self._receive(batch, consumer, rows)
        assert len(batch) == len(rows)

    @rule(
        consumer=consumers, n=st.integers(1, 4), prefetch=st.integers(0, 3), timeout=st.sampled_from([0.0, 10.0]),
        grouped=st.booleans(), then=st.sampled_from(["keep", "ack", "release"]),
    )  # fmt: skip
    def load(self, consumer: str, n: int, prefetch: int, timeout: float, grouped: bool, then: str) -> None:
        """A loader's batches, one after the other, are those of `sample`; what it leased beyond them comes back."""
        ready = self.model.groups(consumer)[0] if grouped else []
        if any(self.model.too_old(row) for group in ready for row in group):
            prefetch = 0  # else its thread drops them when it comes by
        n = min(n, self.model.max_size // GROUP) * GROUP if grouped else min(n, self.model.max_size)
        mine: list[Out] = []
        with self.queue.loader(n, consumer=consumer, prefetch=prefetch, **(BY_VALUE if grouped else {})) as loader:
            while len(mine) < 4:
                expected = self.model.next_groups if grouped else self.model.next
                if not (rows := expected(consumer, n, None, False)):
                    with pytest.raises(QueueEnded if self.model.over(consumer) else SampleTimeout):
                        loader.next(timeout=0.0)
                    break
                mine.append(self._receive(_patiently(loader, timeout), consumer, rows))
        self.exact = self.exact and prefetch == 0
        for out in mine:
            if then == "ack":
                assert out.batch.ack() == len(out.left)
                self.model.acknowledged(out, out.left)
            elif then == "release":
                self._release(out)

    def _receive(self, batch: QueueBatch, consumer: str, rows: list[Row]) -> Out:
        assert batch["x"].tolist() == [row.x for row in rows]
        assert batch["value"].tolist() == [row.value for row in rows]
        assert batch["policy_version"].tolist() == [row.version for row in rows]
        assert batch["score"].tolist() == [row.score for row in rows]
        lengths = batch["tokens"].lengths if self.varying else batch["tokens"]
        assert lengths.tolist() == [row.tokens for row in rows]
        for row, key in zip(rows, batch.keys.tolist(), strict=True):
            assert self.keys.setdefault(row.x, key) == key
        return self.model.given(batch, consumer, rows)

    def _release(self, out: Out) -> None:
        out.batch.release()
        assert out.batch.unacknowledged == 0
        assert out.batch.ack() == 0
        self.model.comes_back(out)
        self.model.out.remove(out)



def _patiently(loader: QueueLoader, timeout: float) -> QueueBatch:
    """Asks again and again, by chance at the moment in which the loader's thread has a batch in its hand."""
    while True:
        try:
            batch: QueueBatch = loader.next(timeout=timeout)
        except SampleTimeout:
            continue
        return batch
