"""What a restore makes of episodes that were going on at the cut, and of the writers that go on behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import conduit
from conduit import samplers, windows

SCHEMA = conduit.Schema(
    (
        conduit.Column("obs", "int64"),
        conduit.Column("reward", "float32"),
        conduit.Column("terminated", "bool"),
        conduit.Column("truncated", "bool"),
    )
)


def steps(writer: conduit.Writer, first: int, n: int, *, ends: bool) -> None:
    """`n` steps of an episode, with observations from `first` on."""
    for i in range(n):
        writer.append(obs=first + i, reward=0.0, terminated=ends and i == n - 1, truncated=False)
    if ends:
        writer.end(first + n)


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": samplers.WithoutReplacement()},
        {"sampler": samplers.WithoutReplacement(), "max_times_sampled": 1},
        {"sampler": samplers.Lifo(), "max_times_sampled": 1},
    ],
    ids=["without replacement", "both", "once"],
)
def test_the_last_rows_of_a_cut_episode_are_not_drawn_again(tmp_path: Path, options: dict[str, Any]) -> None:
    with conduit.Store.create("before", "32MiB") as store:
        table = store.create_table("t", SCHEMA, 20, window=windows.NStep(3), **options)
        with table.writer() as writer:
            steps(writer, 0, 7, ends=False)
        drawn = table.sample(4)["obs"].tolist()
        table.verify()
        store.checkpoint(tmp_path / "saved")
    with conduit.Store.restore(tmp_path / "saved", "after") as store:
        table = store.table("t")
        table.verify()
        left = sorted(set(range(6)) - set(drawn))  # the seventh has no next observation
        assert sorted(table.sample(2, timeout=0)["obs"].tolist()) == left


def test_an_episode_that_goes_on_behind_a_cut_one_is_not_whole_before_it_ends(tmp_path: Path) -> None:
    """Its writer goes on in a half-full block; full ones beside it are taken for a dead writer's when room is short."""
    with conduit.Store.create("before", "32MiB") as store:
        table = store.create_table("t", SCHEMA, 40, window=windows.Episode(10), max_writers=2)
        with table.writer() as writer:
            steps(writer, 0, 5, ends=True)
            steps(writer, 100, 5, ends=True)
            store.checkpoint(tmp_path / "saved")
    with conduit.Store.restore(tmp_path / "saved", "after") as store:
        table = store.table("t")
        going, other = table.writer(), table.writer()
        steps(going, 1_000, 3, ends=False)
        for k in range(60):
            steps(other, 2_000 + 10 * k, 1, ends=True)
            assert 1_000 not in table.sample(200)["obs"][:, 0]
        table.verify()
        going.close()
        other.close()
