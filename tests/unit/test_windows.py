"""Sequences, episodes, stacks and goals: what the cases and the model do not say."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from conduit import Column, ConfigError, PriorityError, Schema, ShapeMismatch, Table, windows
from conduit.spec import TableSpec
from tests.store_support import (
    EPISODIC,
    episode,
    fresh_store,
    in_sigma,
    keys_of,
    prioritized,
    scalar_writer,
    schema,
    step,
    vector_writer,
)  # fmt: skip

GOALS = schema(
    obs__image="u1", obs__achieved_goal=("f4", (2,)), obs__desired_goal=("f4", (2,)), action="i8", reward="f8",
    terminated="?", truncated="?",
)  # fmt: skip


def near(achieved: Any, desired: Any) -> Any:
    return (np.abs(achieved - desired).sum(-1) < 1.5).astype(np.float64)


def goals_table(store: Any, **settings: Any) -> Table:
    """Two episodes of five steps: the achieved goal before step i of episode e is (i, 10 e)."""
    table: Table = store.create_table("t", GOALS, 100, window=windows.Hindsight(near, **settings), seed=3)
    with scalar_writer(table) as writer:
        for e in range(2):
            for i in range(5):
                obs = {"image": i, "achieved_goal": [i, 10 * e], "desired_goal": [-9, -9]}
                writer.append(obs=obs, action=10 * e + i, reward=0.0, terminated=i == 4, truncated=False)
            writer.end({"image": 5, "achieved_goal": [5, 10 * e], "desired_goal": [-9, -9]})
    return table


def test_sequences_are_drawn_in_proportion_to_their_priorities() -> None:
    draws, n = 1_000_000, 40
    with fresh_store("64MiB") as store:
        window = windows.Sequence(4, burn_in=3, period=2)
        table = store.create_table("t", EPISODIC, 100, window=window, sampler=prioritized(0.5))
        with scalar_writer(table) as writer:
            for first in (0, 100, 200):
                episode(writer, list(range(first, first + n)), [0.0] * n, "terminated", 99)
        starts = list(range(20, n, 2)) + [x for f in (100, 200) for x in range(f, f + n, 2)]
        keys = dict(
            zip(
                [k for b in table.blocks() for k in b.to_arrow().column("obs").to_pylist()], keys_of(table), strict=True
            )
        )
        live = [x for x in starts if x >= 24]  # 20 to 23 are evicted or have lost their burn-in
        priorities = np.arange(1, len(live) + 1, dtype=np.float32)
        assert table.update_priorities([keys[x] for x in live], priorities).applied == len(live)
        counts: dict[int, int] = dict.fromkeys(live, 0)
        for _ in range(draws // 10_000):
            batch = table.sample(10_000)
            for x, c in zip(*np.unique(batch["obs"][:, 3], return_counts=True), strict=True):
                counts[int(x)] += int(c)
        assert sum(counts.values()) == draws
        masses = np.sqrt(priorities)
        for x, p in zip(live, masses / masses.sum(), strict=True):
            assert in_sigma(counts[x], draws, p), x
        table.verify()


def test_the_steps_of_a_vector_environment_make_sequences() -> None:
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 200, window={"s": windows.Sequence(5, 2), "f": windows.FrameStack(3)})
        with vector_writer(table, 7, autoreset="disabled") as writer:
            for i in range(40):
                end = np.arange(7) == i % 11
                obs = np.arange(7) * 1_000 + i
                none = np.zeros(7, bool)
                writer.append(obs=obs, action=obs, reward=none.astype("f4"), terminated=end, truncated=none)
                if end.any():
                    writer.end(obs + 1)
                table.verify()
            batch = table.sample(2_000, window="s")
            steps = np.where(batch["mask"], batch["obs"], batch["obs"][:, 2:3] + np.arange(-2, 5))
            assert (np.diff(steps, axis=1) == 1).all()
            assert (batch["mask"][:, 2:].sum(1) == batch["length"]).all()
            assert (batch["next_obs"] == batch["obs"][:, 2] + batch["length"]).all()
            frames = table.sample(2_000, window="f")["obs"]
            assert (np.diff(frames, axis=1) >= 0).all()
            assert (np.diff(frames, axis=1) <= 1).all()


def test_state_comes_from_the_first_step_of_a_sequence() -> None:
    with fresh_store() as store:
        made = schema(obs="i8", h=("f4", (2,)), action="i8", reward="f4", terminated="?", truncated="?")
        window = windows.Sequence(2, burn_in=2, state=("h",))
        table = store.create_table("t", made, 100, window=window)
        with scalar_writer(table) as writer:
            for i in range(6):
                writer.append(obs=i, h=[i, -i], action=i, reward=0.0, terminated=i == 5, truncated=False)
            writer.end(6)
        batch = table.rows(keys_of(table)[:6])
        assert batch["h"].tolist() == [[0, 0], [0, 0], [0, 0], [1, -1], [2, -2], [3, -3]]
        assert table.batch_schema.column("h").shape == (2,)


def test_priorities_of_sequences_by_step() -> None:
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 100, window=windows.Sequence(3), sampler=prioritized())
        with scalar_writer(table) as writer:
            episode(writer, list(range(5)), [0.0] * 5, "terminated", 5)
        batch = table.rows(keys_of(table)[:5])
        errors = np.arange(15, dtype=np.float64).reshape(5, 3)
        errors[~batch["mask"]] = np.nan  # what lies behind the end is not looked at
        table.update_priorities(batch.keys, errors, mask=batch["mask"])
        expected = [0.9 * 2 + 0.1 * 1, 0.9 * 5 + 0.1 * 4, 0.9 * 8 + 0.1 * 7, 0.9 * 10 + 0.1 * 9.5, 12]
        np.testing.assert_allclose(table.priorities(batch.keys), expected, rtol=1e-6)
        table.update_priorities(batch.keys[:1], [[1.0, 2.0, 6.0]], eta=0.5)
        assert table.priorities(batch.keys[:1]) == [4.5]
        with pytest.raises(PriorityError, match=r"-1.0 of step 2 at position 0 of 1"):
            table.update_priorities(batch.keys[:1], [[1.0, 2.0, -1.0]])
        with pytest.raises(ShapeMismatch, match="2 sequences need shape"):
            table.update_priorities(batch.keys[:2], np.ones((1, 3)))
        with pytest.raises(ShapeMismatch, match="give bool"):
            table.update_priorities(batch.keys[:2], np.ones((2, 3)), mask=np.ones((2, 2), bool))
        with pytest.raises(ConfigError, match="shape"):
            table.update_priorities(batch.keys[:2], np.ones(2), eta=0.5)
        table.verify()


@pytest.mark.parametrize("n", [1, 3])
def test_rewards_of_relabelled_rows_are_computed_anew(n: int) -> None:
    with fresh_store() as store:
        table = goals_table(store, n=n, gamma=0.5, ratio=0.7)
        for batch in (table.sample(500), table.loader(500).next()):
            relabelled = batch["relabelled"]
            assert relabelled.any()
            assert not relabelled.all()
            for row in range(500):
                at, e, m = batch["action"][row] % 10, batch["action"][row] // 10, batch["n_step"][row]
                assert m == min(n, 5 - at)
                goal = batch["obs/desired_goal"][row]
                reached = [float(abs(at + k + 1 - goal[0]) + abs(10 * e - goal[1]) < 1.5) for k in range(m)]
                if relabelled[row]:
                    assert goal[1] == 10 * e
                    assert at < goal[0] <= 5
                assert batch["reward"][row] == sum(0.5**k * r for k, r in enumerate(reached))
                assert batch["discount"][row] == (0 if at + m == 5 else 0.5**m)


def test_goals_are_a_function_of_seed_and_stream() -> None:
    with fresh_store() as store, fresh_store() as other:
        first, second = goals_table(store), goals_table(other)
        a, b = first.sample(64, stream=4), second.sample(64, stream=4)
        assert all((a[name] == b[name]).all() for name in a.names)
        with second.loader(64, stream=4, prefetch=3) as loader:
            for _ in range(3):
                ours, theirs = first.sample(64, stream=4), loader.next()
                assert all((ours[name] == theirs[name]).all() for name in ours.names)


CHILD = """
import sys
import numpy as np
import conduit
with conduit.Store.attach(sys.argv[1]) as store:
    table = store["t"]
    assert (table.sample(64)["reward"] >= 0).all()
    try:
        store["local"].sample(1)
    except conduit.ConfigError as error:
        assert "give it by table.use_reward(function)" in str(error), error
    store["local"].use_reward(lambda achieved, desired: np.full(len(desired), 7.0))
    batch = store["local"].sample(64)
    assert (batch["reward"][batch["relabelled"]] == 7).all()
"""


def test_another_process_imports_the_reward_or_is_given_one() -> None:
    with fresh_store() as store:
        goals_table(store)
        local = store.create_table("local", GOALS, 100, window=windows.Hindsight("no.such.module:reward"))
        with scalar_writer(local) as writer:
            for i in range(5):
                obs = {"image": i, "achieved_goal": [i, 0], "desired_goal": [-9, -9]}
                writer.append(obs=obs, action=i, reward=0.0, terminated=i == 4, truncated=False)
            writer.end({"image": 5, "achieved_goal": [5, 0], "desired_goal": [-9, -9]})
        with pytest.raises(ConfigError, match=r"'no.such.module:reward' of window 'default' of table 'local'"):
            local.sample(1)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, store.name], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_reward_function_that_returns_something_else() -> None:
    with fresh_store() as store:
        table = goals_table(store, ratio=1.0)
        table.use_reward(lambda achieved, desired: np.zeros((len(desired), 1)))
        with pytest.raises(ConfigError, match=r"returned float64 of shape \(8, 1\) for 8 goals"):
            table.sample(8)
        with table.loader(8) as loader, pytest.raises(ConfigError, match="return one number each"):
            loader.next()
        with pytest.raises(ConfigError, match="kind Hindsight"):
            store.create_table("plain", EPISODIC, 10).use_reward(near)


@pytest.mark.parametrize(
    "window",
    [
        windows.Sequence(80, burn_in=40, period=40, strict=True, state=("action",)),
        windows.Episode(10, next_obs=False),
        windows.FrameStack(4, n=3, pad="zeros"),
        {"a": windows.Sequence(3), "b": windows.Episode(3)},
    ],
)
def test_the_store_keeps_every_setting(window: Any) -> None:
    with fresh_store() as store:
        spec = store.create_table("t", EPISODIC, 1_000, window=window).spec
        assert TableSpec.from_json(spec.to_json()) == spec
        assert spec.window == window


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windows.Sequence(0), "length is 0"),
        (lambda: windows.Sequence(1, burn_in=-1), "burn_in is -1"),
        (lambda: windows.Sequence(1, period=0), "period is 0"),
        (lambda: windows.Sequence(1, state="h"), "state is 'h'"),  # type: ignore[arg-type]
        (lambda: windows.Episode(1 << 17), "max_length is 131072"),
        (lambda: windows.FrameStack(0), "k is 0"),
        (lambda: windows.FrameStack(2, pad="edge"), "pad is 'edge'"),
        (lambda: windows.Hindsight(near, strategy="past"), "strategy is 'past'"),
        (lambda: windows.Hindsight(near, ratio=math.nan), "ratio is nan"),
        (lambda: windows.Hindsight(near, goal=5), "goal is 5"),  # type: ignore[arg-type]
        (lambda: windows.Hindsight(lambda a, d: 0), "which no other process could find"),
        (lambda: windows.Hindsight("reward"), "give a function, or 'module:function'"),
        (lambda: windows.Hindsight(3), "give a function, or 'module:function'"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("made", "window", "message"),
    [
        (EPISODIC, windows.Sequence(2, state=("h",)), "state of window 'default' names 'h'"),
        (EPISODIC, windows.Sequence(2, state=("obs",)), "state of window 'default' names 'obs'"),
        (EPISODIC, windows.Sequence(8, burn_in=3, strict=True), "needs 11 steps .* holds 10"),
        (schema(x="i8"), windows.Sequence(2), "follows episodes"),
        (Schema((*EPISODIC.columns, Column("mask", np.dtype("?")))), windows.Episode(2), "column mask"),
        (EPISODIC, windows.Hindsight(near, goal="obs", achieved="action"), "must be observations"),
        (
            schema(obs__a=("f4", (2,)), obs__b="f4", reward="f4", terminated="?", truncated="?"),
            windows.Hindsight(near, goal="obs/a", achieved="obs/b"),
            "one must be able to take the other's place",
        ),
        (
            schema(obs__a="f4", obs__b="f4", reward="i8", terminated="?", truncated="?"),
            windows.Hindsight(near, goal="obs/a", achieved="obs/b"),
            "computes rewards",
        ),
    ],
)
def test_tables_that_a_window_does_not_fit(made: Schema, window: Any, message: str) -> None:
    with fresh_store() as store, pytest.raises(ConfigError, match=message):
        store.create_table("t", made, 10, window=window)


def test_batches_go_on_to_torch_and_arrow() -> None:
    pytest.importorskip("torch")
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 100, window=windows.Sequence(3, 1))
        with scalar_writer(table) as writer:
            for i in range(8):
                step(writer, i)
            batch = table.sample(5)
            assert batch.torch()["obs"].shape == (5, 4)
            assert batch.torch()["mask"].tolist() == batch["mask"].tolist()
            assert batch.to_arrow().column("obs").type.shape == [4]
