"""What a store and its tables say of themselves is what happened."""

from __future__ import annotations

import os

import numpy as np
import pytest

from conduit import Store, StoreMetrics, Table, TableMetrics
from tests.store_support import (
    episode,
    episodes,
    fresh_store,
    keys_of,
    plain_table,
    prioritized,
    scalar_writer,
    step,
    vector_writer,
)
from tests.worker import worker

BLOCK = 8


def test_metrics_of_a_store() -> None:
    with fresh_store("32MiB") as store:
        before = store.metrics()
        assert isinstance(before, StoreMetrics)
        assert (before.name, before.host_memory, before.processes, before.tables) == (store.name, 32 << 20, 1, {})
        plain_table(store, 10_000, "a")
        plain_table(store, 10, "b")
        with Store.attach(store.name), Store.attach(store.name, read_only=True):
            after = store.metrics()
        assert after.processes == 3
        assert list(after.tables) == ["a", "b"]
        reserved = sum(table.data_bytes + table.index_bytes for table in after.tables.values())
        assert after.reserved_bytes - before.reserved_bytes >= reserved
        with pytest.raises(AttributeError):
            after.name = "other"  # type: ignore[misc]


def test_a_record_has_a_value_for_every_field() -> None:
    with fresh_store() as store:
        info = plain_table(store, 10).info()
        assert isinstance(info, TableMetrics)
        assert info.disk is None
        fields = {name: value for name, value in info._asdict().items() if name != "disk"}
        assert all(isinstance(value, str | int | float | tuple) for value in fields.values())
        assert (info.name, info.max_size, info.max_priority, info.blocks_free) == ("t", 10, 1.0, 11)
        assert info.limiter == "MinSize(1)"
        others = {"name", "max_size", "max_priority", "blocks_free", "data_bytes", "index_bytes", "limiter"}
        counts = [field for field in info._fields if field not in others]
        assert not any(getattr(info, name) for name in counts)


def test_counts_of_rows() -> None:
    with fresh_store() as store:
        table = plain_table(store, 3 * BLOCK, sampler=prioritized())
        table.extend({"x": np.arange(20)})
        with scalar_writer(table) as writer:
            for i in range(10):
                writer.append(x=i)
            assert table.info().open_writers == 2
        info = table.info()
        assert (info.rows, info.ready_rows, info.appended, info.evicted, info.evicted_early) == (24, 24, 30, 6, 0)
        assert info.open_writers == 1
        for _ in range(3):
            table.sample(7)
        keys = keys_of(table)
        table.extend({"x": np.arange(1)})
        table.update_priorities(keys, np.full(24, 3.0))
        info = table.info()
        assert (info.sampled, info.batches, info.updated, info.stale_updates) == (21, 3, 23, 1)
        assert (info.total_priority, info.max_priority) == (70.0, 3.0)
        assert info.recoveries == info.discarded_batches == 0


def test_counts_of_episodes_are_of_steps() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=2)
        with scalar_writer(table) as writer:
            episode(writer, range(5), [1] * 5, "terminated", 5)
            for i in range(3):
                step(writer, 10 + i)
            info = table.info()
            assert (info.rows, info.appended, info.ready_rows) == (8, 8, 6)


def test_rows_that_left_early_for_want_of_blocks_are_counted() -> None:
    with fresh_store() as store:
        table = episodes(store, 10 * BLOCK, mean_episode_length=1_000, max_writers=1)
        with scalar_writer(table) as writer:
            for e in range(200):
                episode(writer, [e], [1.0], "terminated", -1)
        info = table.info()
        assert info.rows < 80
        assert info.evicted_early > 0
        assert info.appended - info.evicted == info.rows == len(table)
        table.verify()


def test_blocks_and_pins() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4 * BLOCK, max_writers=2)
        blocks = table.spec.block_layout().blocks
        table.extend({"x": np.arange(20)})
        info = table.info()
        assert (info.blocks_open, info.blocks_free, info.blocks_retired, info.blocks_pinned) == (3, blocks - 3, 0, 0)
        views = table.blocks()[:1]
        for _ in range(3):
            table.extend({"x": np.arange(8)})
        info = table.info()
        assert (info.blocks_retired, info.blocks_pinned) == (1, 1)
        assert info.blocks_open + info.blocks_free + info.blocks_retired == blocks
        views.clear()
        assert table.info().blocks_pinned == 0


def test_seconds_are_sums_over_calls() -> None:
    with fresh_store() as store:
        table = plain_table(store, 50_000, sampler=prioritized())
        seen = table.info()
        table.extend({"x": np.arange(50_000)})
        table.extend({"x": np.arange(50_000)})
        for _ in range(20):
            batch = table.sample(1_000)
            table.update_priorities(batch.keys, np.ones(1_000))
        info = table.info()
        for stage in ("append_s", "draw_s", "gather_s", "fold_s", "update_s"):
            assert 0 == getattr(seen, stage) < getattr(info, stage) < 10
        assert info.sample_wait_s == info.append_wait_s == 0


def test_a_vector_writer_counts_whole_steps() -> None:
    with fresh_store() as store:
        table = episodes(store, 100)
        obs, zeros = np.arange(5), np.zeros(5, bool)
        with vector_writer(table, 5) as writer:
            for _ in range(3):
                writer.append(obs=obs, action=obs, reward=zeros.astype("f4"), terminated=zeros, truncated=zeros)
            assert table.info().appended == 15
            assert table.info().open_writers == 1


def test_bytes_of_a_table_are_what_its_rows_need() -> None:
    """At most 1.05 times the rows and 24 bytes of index a row, open blocks aside."""
    with fresh_store("64MiB") as store:
        n = 200_000
        for name, made in (("plain", plain_table), ("steps", episodes)):
            table = made(store, n, name=name, sampler=prioritized())
            info, layout = table.info(), table.spec.block_layout()
            finals = n // 25 if name == "steps" else 0
            spare = (8 + 1) * layout.block_bytes
            assert info.data_bytes - spare <= 1.05 * (n + finals) * table.schema.row_bytes
            assert info.index_bytes <= 24 * (n + finals + 9 * layout.rows)


def test_who_writes_and_who_reads() -> None:
    with fresh_store() as store, worker() as other:
        table = plain_table(store, 100)
        assert (table.info().writers, table.info().readers) == ((), ())
        table.extend({"x": np.arange(10)})
        table.sample(4)
        other.call(_read, table, 3)
        queue = store.create_queue("q", table.schema, 10)
        with queue.writer() as writer:
            writer.append(x=1)
            assert [who.pid for who in queue._table.info().writers] == [os.getpid()]
        assert [(who.pid, who.blocks) for who in table.info().writers] == [(os.getpid(), 1)]
        readers = {who.pid: who for who in table.info().readers}
        assert readers.keys() == {os.getpid(), other.pid}
        assert (readers[os.getpid()].batches, readers[os.getpid()].rows) == (1, 4)
        assert (readers[other.pid].batches, readers[other.pid].rows) == (3, 6)
        assert 0 <= readers[other.pid].idle_s < 3600
        other.kill()
        assert [who.pid for who in table.info().readers] == [os.getpid()]


def _read(table: Table, batches: int) -> None:
    for _ in range(batches):
        table.sample(2)
