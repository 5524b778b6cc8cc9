"""Faults found by tests of other things, each in its smallest form."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import (
    AppendTimeout,
    ConfigError,
    EpisodeError,
    SampleTimeout,
    SchemaError,
    Store,
    StoreClosed,
    limiters,
    samplers,
    windows,
)
from tests.store_support import (
    EPISODIC,
    PLAIN,
    column_of,
    episodes,
    fresh_store,
    keys_of,
    plain_table,
    prioritized,
    scalar_writer,
    schema,
    step,
    unchanged,
    windows_of,
)

BLOCK = 8


# ---- idle writers


def test_a_writer_that_idles_on_an_old_block_starves_nobody() -> None:
    """Its block was retired under it, and it has not looked since; the table is down to the others' blocks."""
    with fresh_store() as store:
        table = plain_table(store, 4 * BLOCK, max_writers=1)
        idle = [scalar_writer(table) for _ in range(3)]
        for number, writer in enumerate(idle):
            writer.append(x=-1 - number)
        for i in range(40):
            table.extend({"x": np.full(BLOCK, i)}, timeout=5)
        for number, writer in enumerate(idle):
            writer.append(x=1000 + number)
        assert {1000, 1001, 1002} <= set(column_of(table).tolist())
        for writer in idle:
            writer.close()
        for i in range(40):
            table.extend({"x": np.full(BLOCK, i)}, timeout=5)
        assert len(table) == 4 * BLOCK
        table.verify()


def test_idle_writers_leave_what_blocks_there_are() -> None:
    """Each keeps the block it wrote to last. The table goes on with one block, and says so when it has none."""
    with fresh_store() as store:
        table = episodes(store, 4 * BLOCK, max_writers=1)
        blocks = table.spec.block_layout().blocks
        idle = [scalar_writer(table) for _ in range(blocks - 1)]
        for number, writer in enumerate(idle):
            step(writer, 100 * number)
        with scalar_writer(table, timeout=0.02) as last, scalar_writer(table, timeout=0.02) as excess:
            for i in range(3 * BLOCK):
                step(last, 10_000 + i)
            said = r"in the hands of idle or stopped writers \(pid \d+\).*max_writers"
            with pytest.raises(AppendTimeout, match=said):
                step(excess, 0)
            assert max(windows_of(table)) == 10_000 + 3 * BLOCK - 2
            idle.pop().close()
            step(excess, 0)
            for number, writer in enumerate(idle):
                step(writer, 100 * number + 1)
                writer.close()
            for i in range(100):
                step(last, 20_000 + i)
        assert len(table) == 4 * BLOCK
        assert set(windows_of(table)) == set(range(20_000 + 100 - 4 * BLOCK, 20_000 + 99))
        table.verify()


# ---- Arrow and episodes


def arrow_steps(kind: Any, n: int, **changes: Any) -> Any:
    obs = np.arange(n)
    columns = {
        "obs": obs, "action": obs, "reward": np.ones(n, np.float32), "terminated": obs == n - 1,
        "truncated": np.zeros(n, bool), "next_obs": obs + 1, **changes,
    }  # fmt: skip
    return kind({name: pa.array(column) for name, column in columns.items() if column is not None})


@pytest.mark.parametrize("kind", [pa.table, pa.record_batch])
def test_arrow_data_with_next_obs_into_episodes(kind: Any) -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=2)
        assert table.extend(arrow_steps(kind, 5)) == 5
        assert {obs: window["next_obs"] for obs, window in windows_of(table).items()} == {0: 2, 1: 3, 2: 4, 3: 5, 4: 5}
        with unchanged(table), pytest.raises(EpisodeError, match="next_obs is missing"):
            table.extend(arrow_steps(kind, 5, next_obs=None))


def test_a_transition_table_stores_next_obs_as_any_column() -> None:
    made = schema(obs="i8", action="i8", reward="f4", terminated="?", truncated="?", next_obs="i8")
    with fresh_store() as store:
        table = store.create_table("t", made, 100)
        assert table.spec.window == windows.Row()
        assert table.extend(arrow_steps(pa.table, 5)) == 5
        batch = table.sample(64)
        np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
        assert "discount" not in batch


# ---- numbers and names in settings


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array])
def test_numbers_of_numpy_are_numbers(kind: Any) -> None:
    real: Any = np.float32
    with fresh_store() as store:
        table = store.create_table(
            "t", EPISODIC, kind(8), max_writers=kind(2), seed=kind(3), mean_episode_length=real(4),
            window=windows.NStep(kind(2), real(0.5)), limiter=limiters.MinSize(kind(2)),
            sampler=samplers.Prioritized(np.float64(0.5), real(0.25)),
        )  # fmt: skip
        assert type(table.max_size) is int
        assert table.spec.window == windows.NStep(2, 0.5)
        with Store.attach(store.name) as again:
            assert again["t"].spec == table.spec
        table.reconfigure(alpha=real(1), min_size=kind(1))
        for i in range(2):
            table.extend({"obs": [i], "action": [0], "reward": [0.0], "terminated": [False], "truncated": [False]})
        table.extend({"obs": [2], "action": [0], "reward": [0.0], "terminated": [False], "truncated": [False]})
        assert len(table.sample(kind(4), timeout=real(1))) == 4


@pytest.mark.parametrize("name", ["priority", "priorities", "final_obs", "keys", "probabilities", "weights"])
def test_columns_named_as_what_batches_and_writers_have_are_refused(name: str) -> None:
    with fresh_store() as store:
        with pytest.raises(ConfigError, match=f"column {name} has a name that writers or batches use themselves"):
            store.create_table("t", schema(x="i8", **{name: "f4"}), 8)
        assert store.tables() == []


@pytest.mark.parametrize("name", ["discount", "n_step"])
def test_columns_that_windows_add_are_refused_in_episodes_alone(name: str) -> None:
    with fresh_store() as store:
        more = schema(obs="i8", action="i8", reward="f4", terminated="?", truncated="?", **{name: "f4"})
        with pytest.raises(ConfigError, match=f"column {name} "):
            store.create_table("t", more, 8)
        store.create_table("t", more, 8, window=windows.Row())


def test_a_table_of_the_smallest_and_of_odd_sizes() -> None:
    with fresh_store() as store:
        for size in (1, 2, 7, 8, 9, 63, 65):
            table = store.create_table(f"t{size}", PLAIN, size, sampler=prioritized())
            for start in range(0, 5 * size, max(1, size // 2)):
                table.extend({"x": np.arange(start, start + max(1, size // 2))})
            assert len(table) == size
            newest = column_of(table)
            assert (np.diff(newest) == 1).all()
            table.verify()


# ---- what a caller goes on from


@pytest.mark.parametrize("buffer", [2, 3, 4, 7])
def test_steps_of_an_extend_that_stopped_half_way_are_counted_as_the_caller_counts(buffer: int) -> None:
    """Final observations lie between the steps; going on at the number that the error says loses nothing."""
    with fresh_store() as store:
        limiter = limiters.SampleToInsertRatio(1, error_buffer=buffer)
        table = episodes(store, 100, gamma=0.5, limiter=limiter)
        n = 12
        ends = np.arange(n) % 3 == 2
        steps = {"obs": np.arange(n), "action": np.arange(n), "reward": np.zeros(n, np.float32), "terminated": ends,
                 "truncated": np.zeros(n, bool), "next_obs": np.arange(n) + 100}  # fmt: skip
        done = 0
        while done < n:
            try:
                done += table.extend({name: column[done:] for name, column in steps.items()}, timeout=0.0)
            except AppendTimeout as error:
                found = re.search(r"(\d+) of (\d+) rows are in", str(error))
                assert found
                assert int(found[2]) == n - done
                done += int(found[1])
                assert len(table) == done
                with suppress(SampleTimeout):
                    table.sample(1, timeout=0.0)
        assert {obs: row["next_obs"] for obs, row in windows_of(table).items()} == {
            t: t + 100 if t % 3 == 2 else t + 1 for t in range(n)
        }  # fmt: skip
        table.verify()


# ---- weights


def test_the_table_normalises_by_rows_of_priority_0_where_eps_draws_them() -> None:
    with fresh_store() as store:
        sampler = samplers.Prioritized(1.0, 1.0, 0.1, normaliser="table")
        table = plain_table(store, 100, sampler=sampler)
        table.extend({"x": np.arange(100)}, priorities=np.r_[0.0, np.ones(99)])
        batch = table.sample(200)
        assert np.allclose(batch.weights, np.where(batch["x"] == 0, 1.0, 0.1 / 1.1))
        keys = keys_of(table)
        table.update_priorities(keys[:1], [1.0])
        assert (table.sample(50).weights == 1.0).all()
        table.update_priorities(keys[5:6], [0.0])
        batch = table.sample(50)
        assert np.allclose(batch.weights, np.where(batch["x"] == 5, 1.0, 0.1 / 1.1))
        table.verify()


# ---- room


def test_an_append_drops_rows_of_a_queue_that_nobody_will_get() -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", PLAIN, 4, max_staleness=0, consumers=("a", "b"))
        queue.extend({"x": range(4)}, policy_version=0)
        queue.policy_version = 1
        queue.extend({"x": [9]}, policy_version=1, timeout=0.0)
        assert len(queue) == 1
        assert [group.stale_rows for group in queue.info().consumers.values()] == [4, 4]
        assert queue.sample(1, consumer="a")["x"].tolist() == [9]


def test_an_append_leaves_groups_to_those_who_ask_for_them() -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", PLAIN, 4, max_staleness=0)
        with pytest.raises(SampleTimeout):
            queue.sample(2, group_by="x", group_size=2, timeout=0.0)
        queue.extend({"x": [5, 5, 6, 6]}, policy_version=0)
        queue.policy_version = 1
        with pytest.raises(AppendTimeout):
            queue.extend({"x": [7, 7]}, policy_version=1, timeout=0.0)
        with pytest.raises(SampleTimeout):
            queue.sample(2, group_by="x", group_size=2, timeout=0.0)
        queue.extend({"x": [7, 7]}, policy_version=1, timeout=0.0)


def test_rows_that_are_there_may_be_sampled_when_the_capacity_has_fallen_below_them() -> None:
    with fresh_store() as store:
        table = plain_table(
            store, 100, sampler=samplers.Fifo(), max_times_sampled=1, limiter=limiters.QueueCapacity(10)
        )
        table.extend({"x": np.arange(10)})
        table.reconfigure(queue_capacity=3)
        assert table.can_sample(8)
        assert table.sample(8)["x"].tolist() == list(range(8))
        with pytest.raises(ConfigError, match="can never"):
            table.sample(8)


# ---- arguments


def test_numbers_beyond_floats_and_other_garbage_are_refused_by_name() -> None:
    for make in (
        lambda: windows.NStep(3, gamma=10**400),
        lambda: samplers.Prioritized(alpha=10**400),
        lambda: windows.Sequence(3, state=5),  # type: ignore[arg-type]
        lambda: windows.Sequence(3, strict="yes"),  # type: ignore[arg-type]
        lambda: windows.FrameStack(2, pad=np.zeros(2)),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            make()
    with fresh_store() as store:
        for consumers in (5, None, ([],)):
            with pytest.raises(ConfigError, match="consumers is"):
                store.create_queue("q", PLAIN, 4, consumers=consumers)  # type: ignore[arg-type]
        queue = store.create_queue("q", PLAIN, 4, max_staleness=0)
        with pytest.raises(ConfigError, match=r"policy_version is 1\.5"):
            queue.writer(policy_version=1.5)  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match="got a int"):
            queue.extend(5, policy_version=1)
        reader = Store.attach(store.name, read_only=True)
        seen = reader.queue("q")
        reader.close()
        with pytest.raises(StoreClosed):
            seen.sample(1)
