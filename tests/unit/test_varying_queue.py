"""Queues and loaders of rows that vary in length, and such rows between processes."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import AppendTimeout, CapacityError, Column, Queue, Schema, Store, samplers
from tests.store_support import fresh_store
from tests.varying import SCHEMA, columns, faults
from tests.worker import worker

GROUPED = Schema((Column("prompt", "int64"), Column("tokens", "int32", (None,), mean_length=8)))


def produce(name: str, kind: str, first: int, n: int, most: int) -> int:
    """In a process of its own: rows of chance lengths into the table or queue "t", some at a time; how many."""
    chance = np.random.default_rng(first)
    with Store.attach(name) as store:
        target = store.queue("t") if kind == "queue" else store.table("t")
        for at in range(first, first + n, 7):
            serials = range(at, min(at + 7, first + n))
            target.extend(columns(serials, chance.integers(0, most, len(serials))), timeout=60.0)
    return n


def test_rows_through_a_queue_between_processes() -> None:
    with fresh_store() as store, worker() as one, worker() as two:
        queue = store.create_queue("t", SCHEMA, 60, max_writers=2)
        one.start(produce, store.name, "queue", 0, 300, 60)
        two.start(produce, store.name, "queue", 1_000, 300, 60)
        seen: list[int] = []
        while len(seen) < 600:
            batch = queue.sample(min(20, 600 - len(seen)), timeout=60.0)
            assert faults(batch) == []
            seen += batch["serial"].tolist()
            batch.ack()
        assert (one.result(), two.result()) == (300, 300)
        for first in (0, 1_000):
            assert [serial for serial in seen if first <= serial < first + 300] == list(range(first, first + 300))
        queue._table.verify()


def test_rows_of_a_table_written_by_others() -> None:
    with fresh_store() as store, worker() as one, worker() as two:
        table = store.create_table("t", SCHEMA, 60, max_writers=3)
        one.start(produce, store.name, "table", 0, 700, 80)
        two.start(produce, store.name, "table", 1_000, 700, 80)
        with table.loader(16, timeout=60.0) as loader:
            for _ in range(50):
                assert faults(loader.next()) == []
        assert (one.result(), two.result()) == (700, 700)
        table.verify()
        assert faults(table.sample(50)) == []


def fill(queue: Queue) -> None:
    """Long rows, until there is no memory for another."""
    for serial in range(5, 100):
        queue.extend(columns([serial], [2_000]), timeout=0.0)


def test_a_row_longer_than_a_block_waits_for_a_run() -> None:
    with fresh_store() as store:
        queue = store.create_queue("t", SCHEMA, 100, max_writers=1)
        queue.extend(columns(range(4), [5, 1_000, 3, 800]))
        queue._table.verify()
        with queue.writer() as writer:
            writer.append(**{name: column[0] for name, column in columns([4], [1_200]).items()})
        batch = queue.sample(5)
        assert batch["serial"].tolist() == [0, 1, 2, 3, 4]
        assert faults(batch) == []
        with pytest.raises(AppendTimeout, match="no free block"):
            fill(queue)
        with pytest.raises(CapacityError):
            queue.extend(columns([1], [1_000_000]))
        batch.ack()
        queue._table.verify()
        while len(queue):
            batch = queue.sample(1)
            assert faults(batch) == []
            batch.ack()
        queue.extend(columns([1], [1_500]), timeout=0.0)
        queue._table.verify()


def test_tokens_are_counted_by_the_rows_own_lengths() -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", GROUPED, 100)
        lengths = [3, 1, 4, 2, 5, 9]
        queue.extend({"prompt": [7, 8, 7, 8, 9, 9], "tokens": [np.arange(n, dtype=np.int32) for n in lengths]})
        batch = queue.sample(max_tokens=10, tokens="tokens")
        assert batch["tokens"].lengths.tolist() == [3, 1, 4, 2]
        assert [part.tolist() for part in batch.split(2, by="tokens")] == [[1, 2], [0, 3]]
        assert [row.tolist() for row in batch["tokens"][batch.split(2, by="tokens")[1]]] == [[0, 1, 2], [0, 1]]
        batch.release()
        groups = queue.sample(max_tokens=10, tokens="tokens", group_by="prompt", group_size=2)
        assert groups["tokens"].lengths.tolist() == [3, 4, 1, 2]
        groups.ack()
        with pytest.raises(CapacityError, match="14 tokens"):
            queue.sample(max_tokens=10, tokens="tokens", group_by="prompt", group_size=2)


def test_what_a_loader_has_ready_is_bounded_in_bytes() -> None:
    """The plan says 8 tokens a row, and there are 4,000."""
    with fresh_store("64MiB") as store:
        table = store.create_table("t", GROUPED, 2_000, sampler=samplers.Uniform(), max_writers=1)
        table.extend({"prompt": np.zeros(4, np.int64), "tokens": [np.zeros(4_000, np.int32)] * 4})
        with table.loader(64, prefetch=8, max_staging="1MiB") as loader:
            for _ in range(4):
                assert len(loader.next()) == 64
                assert loader.metrics().ready <= 1  # 1 MB each: with one ready no second is begun
