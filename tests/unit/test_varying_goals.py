"""Goals that vary in length: relabelled rows have those of other rows of their episode, whole, wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conduit import Batch, Column, ConfigError, Disk, Ragged, Schema, Store, Table, windows
from conduit_store.arrays import Array
from tests.disk_support import settled, tier
from tests.store_support import fresh_store, scalar_writer

STEPS = 6


def schema(kind: str) -> Schema:
    def goal(name: str) -> Column:
        if kind == "text":
            return Column(name, "string", mean_length=20)
        return Column(name, "int32", (None, 2), mean_length=8)

    return Schema(
        (
            goal("obs/achieved_goal"), Column("obs/image", "u1", (100,)), goal("obs/desired_goal"),
            Column("action", "i8"), Column("reward", "f8"), Column("terminated", "?"), Column("truncated", "?"),
        )
    )  # fmt: skip


def achieved(kind: str, e: int, i: int) -> Any:
    """Before step i of episode e; of another length at each."""
    return f"{e} was at {i} " * i if kind == "text" else np.full((2 * i, 2), 100 * e + i, np.int32)


def wanted(kind: str) -> Any:
    return "nowhere" if kind == "text" else np.full((3, 2), -9, np.int32)


def observed(kind: str, e: int, i: int) -> dict[str, Any]:
    image = np.full(100, i, np.uint8)
    return {"achieved_goal": achieved(kind, e, i), "image": image, "desired_goal": wanted(kind)}


def alike(one: Any, other: Any) -> bool:
    return np.array_equal(one, other)


def reached(got: Ragged, want: Ragged) -> Array:
    assert isinstance(got, Ragged)
    assert isinstance(want, Ragged)
    return np.array([alike(one, other) for one, other in zip(got, want, strict=True)], np.float64)


def goals_table(store: Store, kind: str, episodes: int, **options: Any) -> Table:
    settings = {name: options.pop(name) for name in ("strategy", "n", "ratio", "gamma") if name in options}
    window = windows.Hindsight(reached, **settings)
    table = store.create_table("t", schema(kind), STEPS * episodes, window=window, seed=3, max_writers=1, **options)
    with scalar_writer(table) as writer:
        for e in range(episodes):
            for i in range(STEPS):
                obs, ends = observed(kind, e, i), i == STEPS - 1
                writer.append(obs=obs, action=100 * e + i, reward=0.0, terminated=ends, truncated=False)
            writer.end(observed(kind, e, STEPS))
    return table


def check(batch: Batch, kind: str, strategy: str, n: int) -> None:
    relabelled = batch["relabelled"]
    assert relabelled.any()
    assert not relabelled.all()
    for row in range(len(batch)):
        e, i, m = batch["action"][row] // 100, batch["action"][row] % 100, batch["n_step"][row]
        assert m == min(n, STEPS - i)
        assert alike(batch["obs/achieved_goal"][row], achieved(kind, e, i))
        assert alike(batch["next_obs/achieved_goal"][row], achieved(kind, e, i + m))
        goal = batch["obs/desired_goal"][row]
        assert alike(batch["next_obs/desired_goal"][row], goal)
        which = {"future": range(i + 1, STEPS + 1), "final": [STEPS], "episode": range(1, STEPS + 1)}[strategy]
        if relabelled[row]:
            assert any(alike(goal, achieved(kind, e, later)) for later in which)
        else:
            assert alike(goal, wanted(kind))
        expected = sum(0.5**k * alike(achieved(kind, e, i + k + 1), goal) for k in range(m))
        assert batch["reward"][row] == (expected if relabelled[row] else 0.0)


@pytest.mark.parametrize("kind", ["numbers", "text"])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n", [1, 3])
def test_goals_of_other_rows(kind: str, strategy: str, n: int) -> None:
    with fresh_store() as store:
        table = goals_table(store, kind, 5, strategy=strategy, n=n, gamma=0.5, ratio=0.7)
        check(table.sample(300), kind, strategy, n)
        with table.loader(300) as loader:
            check(loader.next(), kind, strategy, n)
        batch = table.sample(50)
        again = table.rows(batch.keys)
        assert all(alike(goal, wanted(kind)) for goal in again["obs/desired_goal"])


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_goals_on_disk(tmp_path: Path, compression: str | None) -> None:
    with fresh_store("64MiB") as store:
        disk = Disk(tmp_path, "400KB", compression=compression)
        table = goals_table(store, "numbers", 1_000, n=3, gamma=0.5, ratio=0.7, disk=disk)
        settled(table)
        assert tier(table)["blocks_on_disk"] > 0
        check(table.sample(300), "numbers", "future", 3)


def test_one_goal_must_be_able_to_take_the_others_place() -> None:
    made = schema("text")
    columns = [Column(c.name, "binary", mean_length=20) if c.name == "obs/desired_goal" else c for c in made.columns]
    with fresh_store() as store, pytest.raises(ConfigError, match="take the other's place"):
        store.create_table("t", Schema(tuple(columns)), 100, window=windows.Hindsight(reached))
