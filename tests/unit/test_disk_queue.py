"""A backlog beyond what memory holds: rows wait on disk, and are delivered as if they were in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conduit import AppendTimeout, CapacityError, Column, Disk, DiskError, Queue, Schema, Store
from conduit.checkpoints import Changes
from tests.disk_support import SCHEMA, check, columns, largest_file, settled, tier
from tests.store_support import fresh_store
from tests.waiting import until
from tests.worker import worker


def create(store: Store, folder: Path, max_size: int = 20_000, schema: Schema = SCHEMA, **options: Any) -> Queue:
    """A queue of which 900 rows fit in memory."""
    options.setdefault("max_writers", 2)
    return store.create_queue("q", schema, max_size, disk=Disk(folder, "200KB"), **options)


def fill(queue: Queue, n: int, first: int = 0, step: int = 100, **options: Any) -> None:
    for at in range(first, first + n, step):
        queue.extend(columns(at, step), **options)


def take(queue: Queue, n: int, size: int = 250, **options: Any) -> list[int]:
    """The next n rows, acknowledged."""
    found: list[int] = []
    while len(found) < n:
        batch = queue.sample(min(size, n - len(found)), timeout=20.0, **options)
        check(batch)
        found += batch["x"].tolist()
        batch.ack()
    return found


def test_a_backlog_waits_on_disk_and_comes_in_order(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = create(store, tmp_path)
        fill(queue, 10_000)
        settled(queue._table)
        assert tier(queue._table)["blocks_on_disk"] > 8 * tier(queue._table)["frames"]
        queue._table.verify()
        assert take(queue, 500) == list(range(500))
        assert tier(queue._table)["rows_from_disk"] == 0  # what is delivered next has stayed in memory
        assert take(queue, 9_500) == list(range(500, 10_000))
        assert tier(queue._table)["rows_from_disk"] > 8_000
        queue._table.verify()
        assert len(queue) == 0
        fill(queue, 300, 10_000)
        assert take(queue, 300) == list(range(10_000, 10_300))


def test_leases_that_end_and_several_consumers(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = create(store, tmp_path, consumers=("a", "b"))
        fill(queue, 3_000)
        assert take(queue, 3_000, consumer="a") == list(range(3_000))
        held = queue.sample(2_000, consumer="b")
        fill(queue, 2_000, 3_000)
        settled(queue._table)
        queue._table.verify()
        assert len(queue) == 5_000
        held.release()
        assert take(queue, 5_000, consumer="b") == list(range(5_000))
        assert len(queue) == 2_000
        assert take(queue, 2_000, consumer="a") == list(range(3_000, 5_000))
        queue._table.verify()


def test_two_consumers_far_apart_are_both_served_from_memory(tmp_path: Path) -> None:
    """What goes to disk is what nobody comes to soon, between the two."""
    with fresh_store() as store:
        queue = create(store, tmp_path, consumers=("slow", "fast"))
        for first in range(0, 6_000, 100):
            fill(queue, 100, first)
            settled(queue._table)
            take(queue, 100, consumer="fast")
        assert tier(queue._table)["rows_from_disk"] <= 6_000 // 4
        assert take(queue, 6_000, consumer="slow") == list(range(6_000))


@pytest.mark.parametrize("of", ["groups", "tokens", "versions"])
def test_rows_that_are_looked_at_before_they_are_delivered(tmp_path: Path, of: str) -> None:
    schema = Schema(
        (*SCHEMA.columns, Column("prompt", np.dtype("i8")), Column("tokens", np.dtype("i4"), (None,), mean_length=10))
    )
    with fresh_store() as store:
        queue = create(store, tmp_path, schema=schema, max_staleness=1 if of == "versions" else None)
        for at in range(0, 4_000, 100):
            x = np.arange(at, at + 100)
            tokens = [np.full(i % 21, i, np.int32) for i in range(at, at + 100)]
            version = at // 1_000 if of == "versions" else None
            queue.extend({**columns(at, 100), "prompt": x % 2_000, "tokens": tokens}, policy_version=version)
        settled(queue._table)
        assert tier(queue._table)["blocks_on_disk"] > tier(queue._table)["frames"]
        found: list[int] = []
        if of == "groups":
            while len(found) < 4_000:
                batch = queue.sample(200, group_by="prompt", group_size=2, timeout=20.0)
                check(batch)
                x = batch["x"].reshape(-1, 2)
                assert (x[:, 1] == x[:, 0] + 2_000).all()
                found += batch["x"].tolist()
                batch.ack()
            assert sorted(found) == list(range(4_000))
        elif of == "tokens":
            while len(found) < 4_000:
                batch = queue.sample(None, max_tokens=2_000, tokens="tokens", timeout=0.5, partial=True)
                check(batch)
                assert batch["tokens"].lengths.tolist() == [i % 21 for i in batch["x"]]
                assert all((row == i).all() for i, row in zip(batch["x"], batch["tokens"], strict=True))
                assert batch["tokens"].lengths.sum() <= 2_000
                found += batch["x"].tolist()
                batch.ack()
            assert found == list(range(4_000))
        else:
            queue.policy_version = 3
            batch = queue.sample(2_000, timeout=20.0)
            assert batch["x"].tolist() == list(range(2_000, 4_000))
            batch.ack()
            assert len(queue) == 0
        queue._table.verify()


def test_what_goes_in_together_must_find_room_in_memory(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = create(store, tmp_path)
        with pytest.raises(CapacityError, match=r"3000 rows of queue 'q' go in together, and host_memory has room for"):
            queue.extend(columns(0, 3_000))
        rows = tier(queue._table)["frames"] * queue.spec.block_layout().rows
        for at in range(0, 10 * rows, rows):
            queue.extend(columns(at, rows))  # every block of memory is wanted at once
        assert take(queue, 10 * rows) == list(range(10 * rows))


def test_rows_change_wherever_they_lie(tmp_path: Path) -> None:
    schema = Schema((*SCHEMA.columns, Column("reward", np.dtype("f4"), mutable=True)))
    with fresh_store() as store:
        queue = create(store, tmp_path, schema=schema)
        keys: list[int] = []
        for at in range(0, 4_000, 100):
            put = queue.extend({**columns(at, 100), "reward": np.zeros(100, np.float32)}, return_keys=True)
            keys += put.tolist()
        settled(queue._table)
        for at in range(0, 4_000, 400):
            some = np.asarray(keys[at : at + 400], np.uint64)
            assert queue.update(some, reward=np.arange(at, at + 400, dtype=np.float32)).applied == 400
        batch = queue.sample(4_000)
        assert batch["reward"].tolist() == batch["x"].tolist() == list(range(4_000))


@pytest.mark.parametrize("change", [None, Changes(disk=False), Changes(max_size=30_000)], ids=str)
def test_a_checkpoint_and_a_restore(tmp_path: Path, change: Changes | None) -> None:
    (tmp_path / "rows").mkdir()
    with fresh_store("64MiB") as store:
        queue = create(store, tmp_path / "rows")
        fill(queue, 6_000)
        assert take(queue, 1_000) == list(range(1_000))
        held = queue.sample(300)
        store.checkpoint(tmp_path / "saved")
        tables = {} if change is None else {"q": change}
        with Store.restore(tmp_path / "saved", f"{store.name}-again", tables=tables) as again:
            restored = again.queue("q")
            restored._table.verify()
            assert restored.spec.tiered == (change is None or change.disk is not False)
            if restored.spec.tiered:
                assert tier(restored._table)["blocks_on_disk"] > tier(restored._table)["frames"]
            fill(restored, 1_000, 6_000)
            found = take(restored, 6_000)
            assert sorted(found) == list(range(1_000, 7_000))
            if change is None:
                assert found == list(range(1_000, 7_000))
            restored._table.verify()
        held.release()


def test_producers_and_consumers_of_other_processes(tmp_path: Path) -> None:
    with fresh_store() as store, worker() as one, worker() as two, worker() as dying:
        queue = create(store, tmp_path)
        one.start(_produce, store.name, 0, 3_000)
        two.start(_produce, store.name, 10_000, 3_000)
        until(lambda: len(queue) > 2_000)
        assert dying.call(_hold, store.name, 500) == 500
        dying.kill()
        found: list[int] = []
        while len(found) < 6_000:
            found += take(queue, 250)
        one.result()
        two.result()
        assert sorted(found) == [*range(3_000), *range(10_000, 13_000)]
        queue._table.verify()


def _produce(name: str, first: int, n: int) -> None:
    with Store.attach(name) as store:
        fill(store.queue("q"), n, first, timeout=60.0)


def _hold(name: str, n: int) -> int:
    store = Store.attach(name)
    batch = store.queue("q").sample(n)
    _held.extend((store, batch))
    return len(batch)


_held: list[Any] = []


def test_a_file_that_is_cut_off_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = create(store, tmp_path)
        fill(queue, 4_000)
        settled(queue._table)
        (path,) = tmp_path.iterdir()
        length = path.stat().st_size
        os.truncate(path, 8192)
        with pytest.raises(DiskError, match="cannot be reached on disk"):
            queue.sample(3_000)
        assert len(queue) == 4_000
        assert take(queue, 200) == list(range(200))  # in memory
        os.truncate(path, length)
        queue.clear()
        fill(queue, 3_000, 4_000)
        assert take(queue, 3_000) == list(range(4_000, 7_000))
        queue._table.verify()


def test_a_disk_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = create(store, tmp_path)
        with largest_file(4096), pytest.raises(DiskError, match="cannot be moved to disk"):
            fill(queue, 5_000, timeout=60.0)
        appended = len(queue)
        assert appended > 500
        assert appended % 100 == 0  # all of an append, or nothing
        fill(queue, 2_000, appended)
        assert take(queue, appended + 2_000) == list(range(appended + 2_000))
        queue._table.verify()


def test_who_waits_for_memory_is_told_so(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = create(store, tmp_path)
        assert queue._table._disk is not None
        fill(queue, 100)
        queue._table._disk.stop()
        with pytest.raises(AppendTimeout, match=r"no block of memory came free for queue 'q' within 0\.2 s"):
            fill(queue, 2_000, 100, timeout=0.2)
        queue._table.verify()
