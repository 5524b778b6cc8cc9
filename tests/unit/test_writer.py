"""Writer: one environment, or none. What is visible when, how episodes end, what a timeout leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conduit import AppendTimeout, BlockView, ConfigError, EpisodeError, MissingColumn, SampleTimeout, Table, Writer
from tests.store_support import (
    PLAIN,
    Array,
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
NESTED = schema(obs__camera=("u1", (2, 2)), obs__pose__x="f4", action="i8", reward="f4", terminated="?", truncated="?")


def observation(number: int) -> dict[str, Any]:
    return {"camera": np.full((2, 2), number, np.uint8), "pose": {"x": float(number)}}


def test_a_row_is_visible_at_once() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100)
        with scalar_writer(table) as writer:
            for i in range(30):
                writer.append(x=i)
                assert len(table) == i + 1
                assert column_of(table)[-1] == i
            assert repr(writer) == "<Writer of table 't'>"


VALUES: list[Any] = [
    7, 7.0, np.float32(7), np.float64(7), np.array(7, np.float32), np.array([7], np.float32)[0],
    torch.tensor(7.0), np.float16(7), np.int8(7),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_scalars_of_every_kind_are_the_same_row(value: Any) -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(x="f4", y="i8"), 100)
        with scalar_writer(table) as writer:
            writer.append(x=value, y=1)
        assert column_of(table).tolist() == [7.0]


ARRAYS: list[Any] = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6, dtype=np.float32).reshape(3, 2).T.copy().T.reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    np.arange(6, dtype=">f4").reshape(2, 3),
    np.arange(12, dtype=np.float32).reshape(2, 6)[:, :3] * 0 + np.arange(6, dtype=np.float32).reshape(2, 3),
    [[0, 1, 2], [3, 4, 5.0]],
    torch.arange(6, dtype=torch.float32).reshape(2, 3),
    torch.arange(6, dtype=torch.float32).reshape(2, 3).requires_grad_(),
    np.arange(6, dtype=np.float32).reshape(2, 3).data,  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize("value", ARRAYS)
def test_arrays_of_every_kind_are_the_same_row(value: Any) -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(x=("f4", (2, 3))), 100)
        with scalar_writer(table) as writer:
            writer.append(x=value)
        assert column_of(table).tolist() == [[[0, 1, 2], [3, 4, 5]]]


def test_what_was_appended_may_change_afterwards() -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(x=("f4", (3,))), 100)
        value: Array = np.zeros(3, np.float32)
        with scalar_writer(table) as writer:
            for i in range(5):
                value[:] = i
                writer.append(x=value)
        assert column_of(table)[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_nested_observations() -> None:
    with fresh_store() as store:
        table = store.create_table("t", NESTED, 100)
        with scalar_writer(table) as writer:
            for i in range(3):
                writer.append(obs=observation(i), action=i, reward=1.0, terminated=i == 2, truncated=False)
            with pytest.raises(MissingColumn, match="final_obs lacks obs/pose/x"):
                writer.end({"camera": np.zeros((2, 2), np.uint8)})
            writer.end(observation(3))
            batch = table.sample(64)
        np.testing.assert_array_equal(batch["next_obs/pose/x"], batch["obs/pose/x"] + 1)
        np.testing.assert_array_equal(batch["next_obs/camera"], batch["obs/camera"] + 1)
        assert set(batch["obs/pose/x"]) == {0, 1, 2}


def test_priorities_of_single_rows() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, sampler=prioritized())
        with scalar_writer(table) as writer:
            given: list[Any] = [0.5, None, np.float32(3), None, 0, 1e-60]
            for priority in given:
                writer.append(x=1, priority=priority)
        expected = [0.5, 1.0, 3.0, 3.0, 0.0, np.float32(1e-45)]
        assert table.priorities(keys_of(table))[[0, 2, 4, 5]].tolist() == [expected[i] for i in (0, 2, 4, 5)]
        table.verify()


def test_end_on_a_running_episode_cuts_it_there() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=2, gamma=1.0)
        with scalar_writer(table) as writer:
            for i in range(3):
                step(writer, i, 1.0)
            writer.end(3)
            found = windows_of(table)
            assert set(found) == {0, 1, 2}
            assert (found[2]["next_obs"], found[2]["n_step"], found[2]["discount"]) == (3, 1, 1.0)
            assert not found[2]["terminated"]
            with pytest.raises(EpisodeError, match="without a step since the last one"):
                writer.end(3)
            step(writer, 10)
            assert len(table) == 4


def test_end_belongs_to_episodes() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100)
        with scalar_writer(table) as writer:
            writer.append(x=1)
            with unchanged(table), pytest.raises(EpisodeError, match="keeps rows, not episodes"):
                writer.end(1)


def test_both_terminated_and_truncated_bootstraps_nothing() -> None:
    with fresh_store() as store:
        table = episodes(store, 100)
        with scalar_writer(table) as writer:
            writer.append(obs=0, action=0, reward=1.0, terminated=True, truncated=True)
            writer.end(1)
        window = windows_of(table)[0]
        assert (window["terminated"], window["truncated"], window["discount"]) == (True, True, 0.0)


def test_a_closed_writer_leaves_its_open_episode_cut() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=1)
        writer = scalar_writer(table)
        for i in range(3):
            step(writer, i)
        with pytest.raises(EpisodeError), scalar_writer(table) as other:
            other.end(9)  # chains are a writer's own
        writer.close()
        assert set(windows_of(table)) == {0, 1}
        assert len(table) == 3


@pytest.mark.parametrize("timeout", [-1.0, np.nan, "soon"])
def test_timeouts_that_are_refused(timeout: Any) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        for call in (
            lambda: table.writer(timeout=timeout),
            lambda: table.extend({"x": np.arange(3)}, timeout=timeout),
            lambda: table.sample(1, timeout=timeout),
        ):
            with unchanged(table), pytest.raises(ConfigError, match="timeout"):
                call()


def all_pinned(table: Table, writer: Writer, end: str) -> tuple[int, list[BlockView]]:
    """Fill and pin block after block until there is none left; how many steps, the last with `end`, and the pins."""
    pins: list[BlockView] = []
    capacity = table.spec.block_layout().blocks * BLOCK
    for i in range(capacity):
        step(writer, i, 1.0, end if i == capacity - 1 else "")
        if i % BLOCK == BLOCK - 1:
            pins.append(table.blocks()[-1])
    return capacity, pins


def test_an_append_that_times_out_can_be_tried_again() -> None:
    with fresh_store() as store:
        table = episodes(store, 4 * BLOCK, max_writers=1, mean_episode_length=1e9)
        with scalar_writer(table, timeout=0.02) as writer:
            number, pins = all_pinned(table, writer, "")
            for _ in range(2):
                said = r"pinned by zero-copy views \(pid \d+\), of \d+ \([\d.]+ KiB\)\. 0 of 1 rows are in"
                with pytest.raises(AppendTimeout, match=said):
                    step(writer, number, 1.0, "terminated")
            pins.clear()
            step(writer, number, 1.0, "terminated")
            writer.end(number + 1)
        found = windows_of(table)
        assert all(window["next_obs"] == obs + 1 for obs, window in found.items())
        assert max(found) == number
        assert len(table) == table.info().ready_rows == len(found)
        table.verify()


def test_an_end_that_times_out_can_be_tried_again() -> None:
    with fresh_store() as store:
        table = episodes(store, 4 * BLOCK, max_writers=1, mean_episode_length=1e9)
        with scalar_writer(table, timeout=0.02) as writer:
            number, pins = all_pinned(table, writer, "truncated")
            for _ in range(2):
                with pytest.raises(AppendTimeout):
                    writer.end(number)
            with pytest.raises(EpisodeError, match="call end"):
                step(writer, 999)
            pins.clear()
            writer.end(number)
            found = windows_of(table)
            assert (found[number - 1]["next_obs"], found[number - 1]["truncated"]) == (number, True)
            step(writer, 1000)
        table.verify()


def test_windows_at_the_tail_survive_an_append_that_timed_out_and_close() -> None:
    """The writer had given its full block back before it waited, and closed without an open one."""
    with fresh_store() as store:
        table = episodes(store, 4 * BLOCK, n=3, max_writers=1, mean_episode_length=1e9)
        writer = scalar_writer(table, timeout=0.02)
        number, pins = all_pinned(table, writer, "")
        with pytest.raises(AppendTimeout):
            step(writer, number)
        assert max(windows_of(table)) == number - 4
        writer.close()
        found = windows_of(table)
        assert max(found) == number - 2
        assert [found[number - k]["n_step"] for k in (2, 3, 4)] == [1, 2, 3]
        assert found[number - 2]["next_obs"] == number - 1
        del pins
        table.verify()


def test_a_table_of_one_row() -> None:
    with fresh_store() as store:
        table = plain_table(store, 1)
        with scalar_writer(table) as writer:
            for i in range(40):
                writer.append(x=i)
                assert (len(table), table.sample(1)["x"][0]) == (1, i)
        assert PLAIN.row_bytes == 8


def test_a_step_waits_for_its_successor() -> None:
    with fresh_store() as store:
        table = episodes(store, 8)
        with scalar_writer(table) as writer:
            step(writer, 0)
            with pytest.raises(SampleTimeout, match="1 rows are there"):
                table.sample(1, timeout=0)
            step(writer, 1)
            assert table.sample(1, timeout=0)["obs"][0] == 0
