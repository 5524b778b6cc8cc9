"""Queues: delivery until acknowledgement, leases, back-pressure, consumer groups, the end."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest

import conduit
from conduit import (
    AppendTimeout,
    CapacityError,
    ConfigError,
    ForkedHandle,
    LeaseExpired,
    NameTaken,
    QueueEnded,
    ReadOnlyStore,
    SampleTimeout,
    StaleKey,
    Store,
    StoreClosed,
    UnknownColumn,
)
from tests import queue_support
from tests.queue_support import put, queue_in, rest, taken
from tests.store_support import fresh_store, schema
from tests.waiting import until
from tests.worker import forked, workers

BLOCK = 8  # rows of a block of a small queue


def test_rows_come_once_in_order() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        queue.extend({"x": np.arange(10)})
        batch = queue.sample(4)
        assert (len(batch), batch["x"].tolist(), batch.unacknowledged) == (4, [0, 1, 2, 3], 4)
        assert taken(queue, 4) == [4, 5, 6, 7]
        assert batch.ack() == 4
        assert batch.ack() == 0
        assert rest(queue) == [8, 9]
        assert len(queue) == 0
        queue.verify()


def test_what_is_given_back_comes_again_first() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        queue.extend({"x": np.arange(30)})
        one, two = queue.sample(10), queue.sample(10)
        one.release()
        one.release()
        assert taken(queue, 15) == [*range(10), *range(20, 25)]
        assert two.ack() == 10
        assert queue.info().consumers["default"].redelivered == 10
        queue.verify()


def test_a_batch_that_is_dropped_goes_back() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        put(queue, 1, 2, 3)
        batch = queue.sample(3)
        array = batch["x"]
        del batch
        assert taken(queue, 3) == array.tolist() == [1, 2, 3]


def test_some_rows_of_a_batch() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        put(queue, *range(8))
        batch = queue.sample(6)
        assert batch.ack(batch.keys[[1, 3, 3]]) == 2
        with pytest.raises(StaleKey, match="position 1 of 2"):
            batch.ack(batch.keys[[0, 1]])
        with pytest.raises(StaleKey, match="position 0 of 1"):
            batch.ack(np.array([1 << 60], np.uint64))
        assert batch.unacknowledged == 4
        assert queue.ack(batch, batch.keys[:1]) == 1
        batch.release()
        assert rest(queue) == [2, 4, 5, 6, 7]
        queue.verify()


def test_a_late_acknowledgement_is_refused_and_changes_nothing() -> None:
    with fresh_store() as store:
        queue = queue_in(store, lease_timeout=0.05)
        put(queue, 1, 2)
        late = queue.sample(2)
        again = queue.sample(2, timeout=10.0)  # waits until the time is over
        assert again["x"].tolist() == [1, 2]
        with pytest.raises(LeaseExpired, match=r"0\.050 s were over"):
            late.ack()
        info = queue.info()
        assert (info.unacknowledged, info.expired_leases, info.consumers["default"].acknowledged) == (2, 1, 0)
        queue.verify()


def test_back_pressure_is_exact() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 10)
        put(queue, *range(9))
        with pytest.raises(AppendTimeout, match=r"9 of 10 rows are not acknowledged, none of them delivered\. Nothing"):
            put(queue, 9, 10, timeout=0.02)
        put(queue, 9)
        assert len(queue) == 10
        with queue.writer(timeout=0.02) as writer, pytest.raises(AppendTimeout, match="10 of 10"):
            writer.append(x=10)
        batch = queue.sample(4)
        with pytest.raises(AppendTimeout, match="4 of them are out with pid"):
            put(queue, 10, timeout=0.02)
        batch.ack(batch.keys[2:3])
        put(queue, 10, timeout=0.0)
        with pytest.raises(CapacityError, match="holds 10"):
            put(queue, *range(11))
        batch.release()
        assert rest(queue) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]
        queue.verify()


def test_an_append_that_waits_goes_in_when_there_is_room() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 16)
        put(queue, *range(16))
        thread = threading.Thread(target=put, args=(queue, *range(16, 32)))
        thread.start()
        seen = [x for _ in range(8) for x in taken(queue, 4, timeout=10.0)]
        thread.join()
        assert seen == list(range(32))
        queue.verify()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 200])
def test_an_append_of_any_size_is_whole(n: int) -> None:
    with fresh_store() as store:
        queue = queue_in(store, 200, max_writers=1)
        for turn in range(7):
            queue.extend({"x": np.arange(n) + turn * 1000})
            with pytest.raises(AppendTimeout):
                queue.extend({"x": np.arange(201 - n)}, timeout=0.0)
            assert rest(queue) == [turn * 1000 + i for i in range(n)]
        queue.verify()


def test_every_group_gets_every_row() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 20, consumers=("train", "reward"))
        put(queue, *range(20))
        with pytest.raises(ConfigError, match="train, reward: say which"):
            queue.sample(1)
        with pytest.raises(ConfigError, match="no consumer 'eval'"):
            queue.sample(1, consumer="eval")
        assert taken(queue, 20, consumer="train") == list(range(20))
        assert len(queue) == 20
        with pytest.raises(AppendTimeout):
            put(queue, 20, timeout=0.0)
        assert taken(queue, 5, consumer="reward") == [0, 1, 2, 3, 4]
        put(queue, *range(20, 25))
        assert rest(queue, consumer="train") == [20, 21, 22, 23, 24]
        assert rest(queue, consumer="reward") == list(range(5, 25))
        assert len(queue) == 0
        queue.verify()


def test_blocks_go_when_they_are_done_whichever_comes_first() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 200, max_writers=1)
        queue.extend({"x": np.arange(4 * BLOCK)})
        parts = [queue.sample(BLOCK) for _ in range(4)]
        parts[2].ack()
        queue.verify()
        assert len(queue.blocks()) == 3
        parts[0].ack()
        parts[3].ack()
        assert [view.to_arrow().column("x").to_pylist() for view in queue.blocks()] == [list(range(8, 16))]
        queue.verify()


def test_rows_that_stay_in_every_block_hold_up_appends_with_a_word() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 200, max_writers=1)
        first = queue.spec.block_layout().rows
        kept: list[conduit.QueueBatch] = []

        def fill() -> None:
            while len(kept) < 100:
                queue.extend({"x": np.arange(first)}, timeout=0.05)
                batch = queue.sample(first)
                batch.ack(batch.keys[1:])
                kept.append(batch)

        with pytest.raises(AppendTimeout, match=r"no free block.*lie in all blocks.*drop_incomplete"):
            fill()
        kept.pop(0).ack()
        queue.extend({"x": np.arange(first)})
        queue.verify()


def test_partial_batches() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        with pytest.raises(SampleTimeout, match=r"has not 4 rows .* 0 rows wait, 0 are out"):
            queue.sample(4, timeout=0.0, partial=True)
        put(queue, 1, 2)
        with pytest.raises(SampleTimeout, match="2 rows wait"):
            queue.sample(4, timeout=0.01)
        assert taken(queue, 4, timeout=0.01, partial=True) == [1, 2]
        assert len(queue.drain(timeout=0.01)) == 0
        threading.Timer(0.02, put, (queue, 7)).start()
        assert rest(queue, timeout=10.0) == [7]


def test_the_end() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        put(queue, *range(10))
        queue.end()
        queue.end()
        assert queue.ended
        with pytest.raises(QueueEnded, match="nothing was appended"):
            put(queue, 10)
        with queue.writer() as writer, pytest.raises(QueueEnded):
            writer.append(x=1)
        first = queue.sample(6)
        second = queue.sample(6, timeout=0.0)
        assert second["x"].tolist() == [6, 7, 8, 9]
        with pytest.raises(SampleTimeout, match="0 rows wait, 10 are out"):
            queue.sample(6, timeout=0.01)
        second.release()
        assert taken(queue, 6) == [6, 7, 8, 9]
        threading.Timer(0.02, first.ack).start()
        with pytest.raises(QueueEnded, match="has had every row"):
            queue.sample(6, timeout=10.0)
        assert len(queue.drain()) == 0


def test_a_loader_ends_with_the_queue() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 100)
        put(queue, *range(50))
        for prefetch in (0, 1, 3):
            with queue.loader(8, prefetch=prefetch) as loader:
                batch = loader.next()
                assert batch["x"].tolist() == list(range(8))
            assert queue.info().consumers["default"].leased == 8, "only what was handed over is out"
            batch.release()
        threading.Timer(0.02, queue.end).start()
        seen = []
        with queue.loader(8) as loader:
            for batch in loader:
                seen += batch["x"].tolist()
                batch.ack()
        assert seen == list(range(50))
        assert list(queue.loader(8, prefetch=0)) == []
        queue.verify()


def test_a_loader_begins_leases_anew_and_drops_those_that_ran_out() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 100, lease_timeout=0.2)
        put(queue, *range(24))
        with queue.loader(8, prefetch=1) as loader:
            first = loader.next()
            until(lambda: queue.info().leases == 2)
            time.sleep(0.3)  # both are over, and nobody has looked
            queue.sample(1).release()  # whoever takes rows looks
            with pytest.raises(LeaseExpired):
                first.ack()
            second = loader.next(timeout=10.0)
            assert second.ack() == 8
        queue.verify()


def test_a_loader_times_out_and_goes_on() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        with queue.loader(4, timeout=0.02) as loader:
            with pytest.raises(SampleTimeout, match="has not 4 rows"):
                loader.next()
            put(queue, 1, 2, 3, 4)
            assert loader.next(timeout=10.0)["x"].tolist() == [1, 2, 3, 4]
        with pytest.raises(StoreClosed, match="this loader is closed"):
            loader.next()
        copy = pickle.loads(pickle.dumps(loader))
        assert repr(copy).startswith("<QueueLoader of 'q'")
        copy.close()


def test_settings_are_checked() -> None:
    with fresh_store() as store:
        for options in (
            {"consumers": ()},
            {"consumers": ("a", "a")},
            {"consumers": [str(i) for i in range(9)]},
            {"consumers": ("",)},
            {"max_staleness": -1},
            {"lease_timeout": 0.0},
            {"schema": 3},
            {"schema": schema(x="i8", policy_version="f4"), "max_staleness": 1},
        ):
            with pytest.raises(ConfigError):
                queue_in(store, **options)  # type: ignore[arg-type]
        queue = queue_in(store, consumers=("a", "b"))
        assert queue_in(store, consumers=("a", "b"), exist_ok=True) is queue is store.queue("q")
        with pytest.raises(NameTaken):
            queue_in(store, exist_ok=True)
        with pytest.raises(ConfigError, match=r"use store\.queue"):
            store.table("q")
        store.create_table("t", queue_support.PLAIN, 8)
        with pytest.raises(ConfigError, match=r"use store\.table"):
            store.queue("t")
        by_x = {"n": 4, "group_by": "x"}
        for arguments in ({"n": 0}, {"n": 65}, {"n": None}, by_x, {**by_x, "group_size": 3}):
            with pytest.raises(ConfigError):
                queue.sample(**arguments, consumer="a")  # type: ignore[arg-type]
        with pytest.raises(UnknownColumn):
            queue.sample(4, group_by="y", group_size=2, consumer="a")
        with pytest.raises(UnknownColumn):
            queue.sample(4, max_tokens=2, consumer="a")
        with pytest.raises(ConfigError, match="no policy versions"):
            queue.policy_version = 3
        with pytest.raises(ConfigError, match="no policy versions"):
            put(queue, 1, policy_version=3)


def test_read_only_attaches_change_nothing() -> None:
    with fresh_store() as store:
        queue = queue_in(store, max_staleness=1)
        put(queue, 1, 2, policy_version=0)
        with Store.attach(store.name, read_only=True) as other:
            seen = other.queue("q")
            assert (len(seen), seen.info().unacknowledged, seen.policy_version) == (2, 2, 0)
            assert seen.blocks()[0].to_arrow().column("x").to_pylist() == [1, 2]
            actions: list[Any] = [
                lambda: seen.sample(1), lambda: put(seen, 3, policy_version=0), seen.writer, seen.end, seen.clear,
                seen.drain, lambda: seen.loader(1), lambda: setattr(seen, "policy_version", 1), lambda: seen.drop([1]),
            ]  # fmt: skip
            for action in actions:
                with pytest.raises(ReadOnlyStore):
                    action()
        assert rest(queue) == [1, 2]


def test_clear() -> None:
    with fresh_store() as store:
        queue = queue_in(store, max_writers=1)
        put(queue, *range(40))
        batch = queue.sample(10)
        queue.clear()
        assert len(queue) == 0
        with pytest.raises(LeaseExpired):
            batch.ack()
        queue.verify()
        put(queue, 1, 2)
        assert rest(queue) == [1, 2]
        queue.verify()


def test_closed_stores() -> None:
    with fresh_store() as store, Store.attach(store.name) as other:
        queue = queue_in(store)
        put(queue, 1, 2, 3, 4)
        mine = other.queue("q")
        batch = mine.sample(2)
        loader = mine.loader(1)
        kept = loader.next()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                mine.sample(64, timeout=None)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        other.close()
        thread.join()
        assert [type(error) for error in errors] == [StoreClosed]
        for action in (batch.ack, batch.release, kept.ack, lambda: mine.sample(1), lambda: len(mine), loader.next):
            with pytest.raises(StoreClosed):
                action()
        assert batch["x"].tolist() == [1, 2]
        assert rest(queue) == [1, 2, 3, 4], "the leases of a process end when it closes the store"


def test_fork_and_pickle() -> None:
    with fresh_store() as store:
        queue = queue_in(store)
        put(queue, *range(10))
        batch = queue.sample(3)
        loader = queue.loader(2)
        loader.next().ack()

        def child() -> list[Any]:
            seen: list[Any] = []
            for action in (batch.ack, loader.next):
                try:
                    action()
                except ForkedHandle:
                    seen.append("forked")
            seen.append(taken(queue, 1))
            return seen

        until(lambda: queue.info().consumers["default"].leased == 5)  # the loader is one ahead
        assert forked(child) == ["forked", "forked", [7]]
        assert batch.ack() == 3, "the child's end does not touch the parent's leases"
        loader.close()
        copy = pickle.loads(pickle.dumps(queue))
        assert copy is queue
        writer = pickle.loads(pickle.dumps(queue.writer()))
        writer.append(x=77)
        writer.close()
        assert rest(queue) == [5, 6, 8, 9, 77]
        queue.verify()


def test_rows_of_a_dead_consumer_come_at_once() -> None:
    with fresh_store() as store, workers(2) as (one, two):
        queue = queue_in(store)
        put(queue, 1, 2, 3)
        pid, values = one.call(queue_support.hold, store.name, "q", 3)
        assert values == [1, 2, 3]
        two.start(queue_support.took_at, store.name, "q", 3)
        until(lambda: queue.info().leases == 1)
        with pytest.raises(AppendTimeout, match=f"3 of them are out with pid {pid}"):
            put(queue, *range(62), timeout=0.0)
        one.kill()
        died = time.monotonic()
        values, at = two.result()
        assert values == [1, 2, 3]
        print(f"redelivered {1e3 * (at - died):.1f} ms after the death")
        assert queue.info().orphaned_leases == 1
        queue.verify()


def test_information() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 32, consumers=("a", "b"), max_staleness=0)
        put(queue, *range(8), policy_version=0)
        queue.sample(2, consumer="a").ack()
        kept = queue.sample(3, consumer="a")
        info = store.metrics().queues["q"]
        assert (info.unacknowledged, info.max_size, info.appended, info.acknowledged, info.leases) == (8, 32, 8, 0, 1)
        assert (info.producers, info.policy_version, info.ended) == (0, 0, False) or info.producers == 1
        a, b = info.consumers["a"], info.consumers["b"]
        assert (a.undelivered, a.leased, a.delivered, a.acknowledged) == (3, 3, 5, 2)
        assert (b.undelivered, b.leased, b.oldest_lease_s) == (8, 0, 0.0)
        assert a.oldest_lease_s > 0
        assert store.metrics().tables["q"].rows == 8
        assert queue.describe().startswith("queue 'q': 32 rows")
        assert repr(queue) == "<Queue 'q' 8 of 32 rows, for a, b>"
        assert kept.unacknowledged == 3


def test_batches_are_arrays_tensors_and_arrow() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=schema(x="i8", obs=("f4", (2, 3)), flag="?"))
        n = 20
        obs = np.random.default_rng(0).random((n, 2, 3), np.float32)
        data = {"x": np.arange(n), "obs": obs, "flag": np.arange(n) % 3 == 0}
        queue.extend(data)
        batch = queue.sample(n)
        for name, column in data.items():
            np.testing.assert_array_equal(batch[name], column)
        assert batch.to_arrow().column("x").to_pylist() == list(range(n))
        assert set(batch.torch()) == {"x", "obs", "flag"}
        with pytest.raises(UnknownColumn, match="not drawn"):
            _ = batch.weights
        assert len(set(batch.keys.tolist())) == n
        batch["x"][:] = 0  # private
        batch.release()
        assert queue.sample(n)["x"].tolist() == list(range(n))
