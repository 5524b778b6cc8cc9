"""C39: "future" goals came from another episode where one lies across the ring's end; a lookup edited its argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conduit import Column, Schema, Table, windows
from tests.store_support import fresh_store, keys_of, scalar_writer

GOALS = Schema(
    (
        Column("obs/achieved_goal", np.dtype("f4"), (1,)),
        Column("obs/desired_goal", np.dtype("f4"), (1,)),
        Column("action", np.dtype("i8")),
        Column("reward", np.dtype("f4")),
        Column("terminated", np.dtype("?")),
        Column("truncated", np.dtype("?")),
    )
)


def reached(achieved: Any, desired: Any) -> Any:
    return -(achieved != desired).any(-1).astype(np.float32)


def fill(table: Table) -> None:
    """Two episodes of values 0..9 and 10..19: the goal achieved *after* step v is v."""
    with scalar_writer(table) as writer:
        for first in (0, 10):
            for v in range(first, first + 10):
                writer.append(
                    obs={"achieved_goal": [v - 1], "desired_goal": [-7]}, action=v, reward=-1.0,
                    terminated=False, truncated=v == first + 9,
                )  # fmt: skip
            writer.end({"achieved_goal": [first + 9], "desired_goal": [-7]})


@pytest.mark.parametrize(
    ("strategy", "goals"),
    [
        ("future", {7: {7, 8, 9}, 12: set(range(12, 20))}),
        ("final", {7: {9}, 12: {19}}),
        ("episode", {12: set(range(10, 20))}),  # the first episode has lost its first rows
    ],
)
def test_goals_are_those_of_the_same_episode(strategy: str, goals: dict[int, set[int]]) -> None:
    with fresh_store() as store:
        window = windows.Hindsight(reached, strategy=strategy, ratio=0.8)
        table = store.create_table("t", GOALS, 15, window=window)
        fill(table)
        assert len(table) == 15
        table.verify()
        batch = table.sample(20_000)
        relabelled = batch["relabelled"]
        assert abs(relabelled.mean() - 0.8) < 5 * np.sqrt(0.8 * 0.2 / 20_000)
        for v, expected in goals.items():
            rows = (batch["action"] == v) & relabelled
            got, counts = np.unique(batch["obs/desired_goal"][rows], return_counts=True)
            assert set(got.astype(int).tolist()) == expected
            p = 1 / len(expected)
            assert (np.abs(counts - rows.sum() * p) <= 5 * np.sqrt(rows.sum() * p * (1 - p)) + 1e-9).all()
        assert (batch["next_obs/desired_goal"] == batch["obs/desired_goal"]).all()
        assert (batch["obs/desired_goal"][~relabelled] == -7).all()
        own = batch["next_obs/achieved_goal"] == batch["obs/desired_goal"]
        assert (batch["reward"] == np.where(own[:, 0] & relabelled, 0, -1)).all()
        if strategy == "episode":
            assert set(batch["action"].tolist()) == set(range(10, 20))


def test_lookups_leave_their_argument_alone() -> None:
    with fresh_store() as store:
        table = store.create_table("t", GOALS, 15, window=windows.Hindsight(reached))
        fill(table)
        keys = keys_of(table)[:3]
        before = keys.copy()
        first, second = (table.rows(keys) for _ in range(2))
        assert (keys == before).all()
        assert all((first[name] == second[name]).all() for name in first.names)
        assert not first["relabelled"].any()
