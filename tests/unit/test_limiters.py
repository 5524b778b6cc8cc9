"""Limiters: who waits for whom, across threads and processes, and what loaders hold."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from conduit import AppendTimeout, ConfigError, SampleTimeout, Store, StoreClosed, limiters, samplers, windows
from tests.store_support import (
    EPISODIC,
    column_of,
    episode,
    episodes,
    fresh_store,
    plain_table,
    prioritized,
    scalar_writer,
    step,
)
from tests.waiting import until
from tests.worker import forked, worker

ONE_ONE = limiters.SampleToInsertRatio(1, min_size=1, error_buffer=1)


def ping(name: str, rounds: int) -> float:
    """Append as the limiter lets it; the most that was ever ahead."""
    ahead = 0.0
    with Store.attach(name) as store, store["t"].writer(timeout=60) as writer:
        for i in range(rounds):
            writer.append(x=i)
            ahead = max(ahead, store["t"].info().limiter_cursor)
    return ahead


def test_two_processes_take_turns() -> None:
    with fresh_store() as store, worker() as producer:
        table = plain_table(store, 1_000, limiter=ONE_ONE)
        producer.start(ping, store.name, 300)
        for _ in range(300):
            table.sample(1, timeout=60)
        assert producer.result() <= 2
        info = table.info()
        assert (info.limiter_inserts, info.limiter_samples, info.limiter_reserved) == (300, 300, 0)
        assert column_of(table).tolist() == list(range(300))


def test_several_writers_and_samplers_keep_the_band() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10_000, limiter=limiters.SampleToInsertRatio(2, min_size=5, error_buffer=10))
        faults: list[float] = []

        def write() -> None:
            with scalar_writer(table, timeout=60) as writer:
                for i in range(200):
                    writer.append(x=i)

        def sample() -> None:
            for _ in range(150):
                table.sample(4, timeout=60)
                cursor = table.info().limiter_cursor
                if not 0 <= cursor <= 20:
                    faults.append(cursor)

        threads = [threading.Thread(target=f) for f in (write, write, write, sample, sample)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not faults
        info = table.info()
        assert (info.limiter_inserts, info.limiter_samples) == (600, 1200)


def test_a_loader_holds_what_it_has_prepared_and_gives_it_back() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(1))
        table.extend({"x": np.arange(10)})
        with table.loader(3, prefetch=2) as loader:
            loader.next()
            until(lambda: loader.metrics().ready == 2)
            info = table.info()
            assert (info.limiter_samples, info.limiter_reserved) == (9, 6)
            assert not table.can_sample(2)
            with pytest.raises(SampleTimeout, match=r"6 samples are on their way to readers"):
                table.sample(2, timeout=0)
            loader.next()
            until(lambda: table.info().limiter_reserved == 3)
            assert table.info().limiter_samples == 9
        info = table.info()
        assert (info.limiter_samples, info.limiter_reserved, info.limiter_cursor) == (6, 0, 4.0)


def test_a_loader_that_draws_again_counts_once() -> None:
    with fresh_store() as store:
        table = plain_table(
            store, 100, limiter=limiters.SampleToInsertRatio(1), sampler=prioritized()
        )
        table.extend({"x": np.arange(6)})
        with table.loader(3, prefetch=1, max_priority_drift=0.0) as loader:
            loader.next()
            until(lambda: loader.metrics().ready == 1)
            table.update_priorities(table.blocks()[0].keys, np.arange(1.0, 7.0))
            loader.next()
            assert loader.metrics().redrawn == 1
        assert (table.info().limiter_samples, table.info().limiter_reserved) == (6, 0)


def test_a_transform_that_raises_gives_its_batch_back() -> None:
    def transform(_batch: Any) -> Any:
        raise RuntimeError("no")

    with fresh_store() as store:
        table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(1))
        table.extend({"x": np.arange(10)})
        with table.loader(3, prefetch=2, transform=transform) as loader, pytest.raises(RuntimeError, match="no"):
            loader.next()
        assert (table.info().limiter_samples, table.info().limiter_reserved) == (0, 0)


def test_what_waits_obeys_the_new_settings() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, limiter=ONE_ONE)
        table.extend({"x": np.arange(2)})
        done: list[str] = []

        def write() -> None:
            table.extend({"x": np.arange(10)}, timeout=60)
            done.append("write")

        def sample() -> None:
            table.sample(3, timeout=60)
            done.append("sample")

        writer = threading.Thread(target=write)
        writer.start()
        until(lambda: table.info().limiter_append_wait_s > 0)
        with Store.attach(store.name) as other:
            other["t"].reconfigure(error_buffer=20)
            writer.join(60)
            assert done == ["write"]
            other["t"].reconfigure(min_size=13)
            sampler = threading.Thread(target=sample)
            sampler.start()
            until(lambda: table.info().limiter_sample_wait_s > 0)
            other["t"].reconfigure(min_size=2)
            sampler.join(60)
        assert done == ["write", "sample"]
        assert table.limiter == limiters.SampleToInsertRatio(1, 2, 20)


def test_a_new_ratio_is_for_the_inserts_to_come() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(1))
        table.extend({"x": np.arange(10)})
        table.sample(8)
        table.reconfigure(samples_per_insert=4)
        assert table.info().limiter_cursor == 2.0
        table.extend({"x": np.arange(2)})
        assert (table.can_sample(10), table.can_sample(11)) == (True, False)
        table.clear()
        info = table.info()
        assert (info.limiter_inserts, info.limiter_samples, info.limiter_cursor) == (0, 0, 0.0)


@pytest.mark.parametrize(
    "change",
    [{"error_buffer": 0.5}, {"samples_per_insert": 9}, {"min_size": 101}, {"queue_capacity": 3},
     {"samples_per_insert": 0}, {"max_times_sampled": 2}, {"alpha": 0.5}],
)  # fmt: skip
def test_changes_that_are_refused_change_nothing(change: dict[str, Any]) -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(2, min_size=3, error_buffer=8))
        with pytest.raises(ConfigError):
            table.reconfigure(**{"min_size": 5, **change})
        assert table.limiter == limiters.SampleToInsertRatio(2, 3, 8)


def test_an_error_buffer_cannot_be_given_later() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(2))
        with pytest.raises(ConfigError, match="created without one"):
            table.reconfigure(error_buffer=5)
        assert table.can_insert(100)
        assert not table.can_insert(101)


def test_unfinished_episodes_do_not_stand_still() -> None:
    """Nothing can be drawn before the third step: until then appends go in, beyond the band too."""
    with fresh_store() as store:
        table = episodes(store, 100, n=3, limiter=ONE_ONE)
        with scalar_writer(table, timeout=0) as writer:
            for obs in range(4):
                step(writer, obs)
            with pytest.raises(AppendTimeout):
                step(writer, 4)
            writer.end(4)  # a final observation is no insert
            table.sample(1, timeout=0)
        assert table.info().limiter_inserts == 4


def test_max_times_with_episodes_and_several_windows() -> None:
    with fresh_store() as store:
        table = store.create_table(
            "t", EPISODIC, 100, max_times_sampled=1, sampler=samplers.Uniform(), mean_episode_length=3.0,
            window={"one": windows.Transition(0.9), "three": windows.NStep(3, 0.9)},
        )  # fmt: skip
        with scalar_writer(table) as writer:
            for start in range(0, 60, 10):
                episode(writer, range(start, start + 5), [1.0] * 5, "terminated", start + 5)
        first = table.sample(10, window="three", timeout=0)
        assert len(set(first["obs"].tolist())) == 10
        for obs, after, m in zip(first["obs"], first["next_obs"], first["n_step"], strict=True):
            assert after == obs + m
            assert m == min(3, 5 - obs % 10)
        rest = table.sample(20, window="one", timeout=0)
        assert not set(first["obs"].tolist()) & set(rest["obs"].tolist())
        assert (rest["next_obs"] == rest["obs"] + 1).all()  # the rows after it may have left: their bytes have not
        assert len(table) == 0
        table.verify()
        info = table.info()
        assert (info.sampled_out, info.evicted, info.blocks_open) == (30, 30, 0)


def test_rows_that_were_sampled_make_room_for_others_at_once() -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, max_times_sampled=1, limiter=limiters.QueueCapacity(8))
        seen: list[int] = []
        reader = threading.Thread(target=lambda: seen.extend(
            x for _ in range(500) for x in table.sample(2, timeout=60)["x"].tolist()))  # fmt: skip
        reader.start()
        table.extend({"x": np.arange(64)}, timeout=60)
        with scalar_writer(table, timeout=60) as writer:
            for x in range(64, 1_000):
                writer.append(x=x)
        reader.join(60)
        assert sorted(seen) == list(range(1_000))
        assert table.info().evicted_early == 0
        table.verify()


def test_loaders_of_counted_tables_refuse_to_draw_again() -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, max_times_sampled=1)
        with pytest.raises(ConfigError, match="max_times_sampled"):
            table.loader(2, max_priority_drift=0.1)


@pytest.mark.parametrize("side", ["append", "sample"])
def test_closing_the_store_ends_waits(side: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, limiter=ONE_ONE)
        table.extend({"x": np.arange(2)})
        if side == "sample":
            table.sample(1)
            table.sample(1)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                if side == "append":
                    table.extend({"x": np.arange(1)}, timeout=None)
                else:
                    table.sample(1, timeout=None)
            except StoreClosed as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        field = f"limiter_{side}_wait_s"
        until(lambda: getattr(table.info(), field) > 0)
        store.close()
        thread.join(60)
        assert len(errors) == 1


def test_a_forked_child_counts_for_itself() -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, limiter=limiters.SampleToInsertRatio(1))
        table.extend({"x": np.arange(10)})
        with table.loader(2, prefetch=2) as loader:
            loader.next()
            until(lambda: loader.metrics().ready == 2)
            assert forked(lambda: len(table.sample(3))) == 3
            info = table.info()
            assert (info.limiter_samples, info.limiter_reserved) == (9, 4)
        assert table.info().limiter_samples == 5


def test_a_failed_wait_takes_its_time_and_no_more() -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, limiter=ONE_ONE)
        began = time.monotonic()
        with pytest.raises(SampleTimeout, match=r"SampleToInsertRatio\(1, min_size=1, error_buffer=1\) lacks 1 rows"):
            table.sample(1, timeout=0.2)
        assert time.monotonic() - began >= 0.2
