"""VectorWriter: the steps of environments that step together, in gymnasium's autoreset modes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from conduit import AppendTimeout, BlockView, ConfigError, EpisodeError, MissingColumn, Schema, Table, VectorWriter
from tests.entries import STEP, steps
from tests.store_support import episodes, fresh_store, prioritized, schema, unchanged, vector_writer, windows_of

BLOCK = 8
LENGTHS = (3, 4, 7)  # steps of the episodes of each environment


class Counting(gymnasium.Env[Any, Any]):
    """Observes 10000 * env + 100 * episode + step, as a scalar or in a nested Dict; an episode has `length` steps."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, env: int, nested: bool, truncates: bool) -> None:
        self._env, self._nested, self._truncates = env, nested, truncates
        self._episode = -1
        number: gymnasium.Space[Any] = gymnasium.spaces.Discrete(100_000)
        camera = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
        self.observation_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Dict({"camera": camera, "at": gymnasium.spaces.Dict({"x": number})}) if nested else number
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._episode += 1
        self._step = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        ended = self._step == LENGTHS[self._env]
        return self._obs(), 1.0, ended and not self._truncates, ended and self._truncates, {}

    def _obs(self) -> Any:
        number = np.int64(10_000 * self._env + 100 * self._episode + self._step)
        return {"camera": np.full((2, 2), number % 256, np.uint8), "at": {"x": number}} if self._nested else number


def run(envs: gymnasium.vector.VectorEnv[Any, Any, Any], mode: str, table: Table, calls: int) -> None:
    """Drive `envs` through a writer of the same mode."""
    n = envs.num_envs
    obs, _ = envs.reset()
    action = np.zeros(n, np.int64)
    with vector_writer(table, n, autoreset=mode) as writer:
        for _ in range(calls):
            after, reward, terminated, truncated, infos = envs.step(action)
            given = {"final_obs": infos["final_obs"]} if "final_obs" in infos else {}
            writer.append(
                obs=obs, action=action, reward=reward.astype(np.float32), terminated=terminated, truncated=truncated,
                **given,
            )  # fmt: skip
            obs = after
            ended = terminated | truncated
            if mode == "disabled" and ended.any():
                writer.end(after, ended)
                obs, _ = envs.reset(options={"reset_mask": ended})
    envs.close()


MODES = {
    "next_step": AutoresetMode.NEXT_STEP, "same_step": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "nested", "truncates"),
    [(SyncVectorEnv, False, False), (SyncVectorEnv, False, True), (SyncVectorEnv, True, False),
     (SyncVectorEnv, True, True), (AsyncVectorEnv, True, True)],
)  # fmt: skip
def test_episodes_of_real_vector_environments(
    mode: str, kind: type[SyncVectorEnv] | type[AsyncVectorEnv], nested: bool, truncates: bool
) -> None:
    makers = [lambda i=i: Counting(i, nested, truncates) for i in range(3)]  # type: ignore[misc]
    envs = kind(makers, autoreset_mode=MODES[mode])
    with fresh_store() as store:
        made = Schema.from_spaces(envs.single_observation_space, envs.single_action_space)
        table = store.create_table("t", made, 1000, mean_episode_length=3)
        run(envs, mode, table, 40)
        name = "obs/at/x" if nested else "obs"
        batch = table.sample(2000)
        obs, after = batch[name], batch[f"next_{name}"]
        np.testing.assert_array_equal(after, obs + 1)
        if nested:
            np.testing.assert_array_equal(batch["obs/camera"][:, 0, 0], obs % 256)
            np.testing.assert_array_equal(batch["next_obs/camera"][:, 1, 1], after % 256)
        last = (obs % 100) == np.array(LENGTHS)[obs // 10_000] - 1
        assert last.any()
        np.testing.assert_array_equal(batch["truncated" if truncates else "terminated"], last)
        assert not batch["terminated" if truncates else "truncated"].any()
        assert set(np.unique(obs % 100)) == set(range(max(LENGTHS)))
        steps_ = 40 * 3 - (sum(40 // (length + 1) for length in LENGTHS) if mode == "next_step" else 0)
        assert len(table) == steps_
        table.verify()


def paired(env: int) -> gymnasium.Env[Any, Any]:
    """Counting, with observations as tuples, one in the other."""
    inner = Counting(env, True, True)
    spaces: Any = inner.observation_space
    space = gymnasium.spaces.Tuple((spaces["camera"], gymnasium.spaces.Tuple((spaces["at"]["x"],))))
    return gymnasium.wrappers.TransformObservation(inner, lambda obs: (obs["camera"], (obs["at"]["x"],)), space)


@pytest.mark.parametrize("mode", MODES)
def test_observations_that_are_tuples(mode: str) -> None:
    envs = SyncVectorEnv([lambda i=i: paired(i) for i in range(3)], autoreset_mode=MODES[mode])  # type: ignore[misc]
    with fresh_store() as store:
        made = Schema.from_spaces(envs.single_observation_space, envs.single_action_space)
        table = store.create_table("t", made, 1000, mean_episode_length=3)
        run(envs, mode, table, 20)
        batch = table.sample(500)
        obs = batch["obs/1/0"]
        np.testing.assert_array_equal(batch["next_obs/1/0"], obs + 1)
        np.testing.assert_array_equal(batch["next_obs/0"][:, 1, 1], (obs + 1) % 256)
        np.testing.assert_array_equal(batch["truncated"], (obs % 100) == np.array(LENGTHS)[obs // 10_000] - 1)


# ---- "disabled"


def test_disabled_refuses_a_step_until_all_that_ended_are_closed() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        final = np.full((3, 2), 9, np.float32)
        with vector_writer(table, 3, autoreset="disabled") as writer:
            writer.append(**steps((3,), terminated=np.array([True, False, True])))
            for mask, left in (
                ([False] * 3, r"\[0, 2\]"),
                ([False, False, True], r"\[0\]"),
                ([False, True, False], "0"),
            ):
                writer.end(final, mask)
                with unchanged(table), pytest.raises(EpisodeError, match=f"environments .*{left}.* have ended"):
                    writer.append(**steps((3,)))
            writer.end(final)
            with unchanged(table), pytest.raises(EpisodeError, match=r"environments \[0, 1, 2\] have no step"):
                writer.end(final, [True] * 3)
            with unchanged(table):
                writer.end(final)  # nothing has ended since
            writer.append(**steps((3,)))
            assert (len(table), table.info().ready_rows) == (6, 3)


@pytest.mark.parametrize("mask", [[True], [True] * 4, True, [[True] * 3]])
def test_masks_of_another_shape_are_refused(mask: Any) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        with vector_writer(table, 3, autoreset="disabled") as writer:
            writer.append(**steps((3,)))
            with unchanged(table), pytest.raises(ConfigError, match="mask has shape"):
                writer.end(np.zeros((3, 2), np.float32), mask)


def test_final_observations_of_others_may_be_anything() -> None:
    """An object array of one entry an environment, as gymnasium gives it."""
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        finals = np.array([None, None, None], object)
        finals[1] = np.array([5, 6], np.float32)
        with vector_writer(table, 3, autoreset="disabled") as writer:
            writer.append(**steps((3,), truncated=np.array([False, True, False])))
            writer.end(finals)
            assert table.sample(8)["next_obs"].tolist() == [[5, 6]] * 8
            writer.append(**steps((3,), truncated=np.array([True, False, False])))
            with pytest.raises((MissingColumn, EpisodeError, ValueError)):
                writer.end(np.array([None, None, None], object))


# ---- "same_step" and "next_step"


def test_same_step_needs_final_obs_only_when_somebody_ends() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        ended = np.array([False, True, False])
        with vector_writer(table, 3, autoreset="same_step") as writer:
            writer.append(**steps((3,)))
            with unchanged(table), pytest.raises(EpisodeError, match=r"\[1\] have ended and final_obs is missing"):
                writer.append(**steps((3,), terminated=ended))
            writer.append(**steps((3,), terminated=ended), final_obs=np.zeros((3, 2), np.float32), priorities=[1, 2, 3])
            assert (len(table), table.info().ready_rows) == (6, 4)
            table.verify()


def test_final_obs_belongs_to_same_step() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        for mode in ("next_step", "disabled"):
            with (
                vector_writer(table, 3, autoreset=mode) as writer,
                unchanged(table),
                pytest.raises(ConfigError, match="final_obs belongs to autoreset='same_step'"),
            ):
                writer.append(**steps((3,)), final_obs=np.zeros((3, 2), np.float32))


def test_next_step_end_closes_and_the_call_after_is_a_step() -> None:
    with fresh_store() as store:
        table = episodes(store, 64)
        columns = {"action": np.zeros(2, int), "reward": np.ones(2, np.float32), "truncated": np.zeros(2, bool)}
        with vector_writer(table, 2) as writer:
            writer.append(obs=np.array([0, 100]), terminated=np.array([True, False]), **columns)
            writer.end(np.array([1, 101]), [True, True])
            writer.append(obs=np.array([10, 110]), terminated=np.zeros(2, bool), **columns)
            assert len(table) == 4
        assert {obs: w["next_obs"] for obs, w in windows_of(table).items()} == {0: 1, 100: 101}


# ---- how it is made


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, True, "2"])
def test_numbers_of_environments_that_are_refused(num_envs: Any) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        with unchanged(table), pytest.raises(ConfigError, match="num_envs"):
            table.writer(num_envs)


def test_modes_and_tables_that_are_refused() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        with pytest.raises(ConfigError, match="'NextStep': give one of next_step, same_step, disabled"):
            table.writer(2, autoreset="NextStep")
        plain = store.create_table("p", schema(x="i8"), 64)
        with pytest.raises(ConfigError, match=r"keeps rows, not episodes: use table\.extend"):
            plain.writer(2)


# ---- whole steps


def pinned_full(table: Table, writer: VectorWriter) -> tuple[int, list[BlockView]]:
    """Append whole steps of 3 environments and pin every block until a step finds no space."""
    pins: list[BlockView] = []
    for number in range(1000):
        try:
            writer.append(**numbered(number))
        except AppendTimeout:
            return number, pins
        pins += table.blocks()
    pytest.fail("everything is pinned, and there is still space")


def numbered(number: int) -> dict[str, Any]:
    obs = np.stack([np.full(2, 1000 * env + number, np.float32) for env in range(3)])
    return steps((3,), obs=obs)


def test_a_step_is_whole_or_not_at_all_and_a_retry_stores_it_once() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 4 * BLOCK, max_writers=1, mean_episode_length=1e9)
        with vector_writer(table, 3, timeout=0.02) as writer:
            number, pins = pinned_full(table, writer)
            before = table.info().appended
            assert before % 3 == 0
            with pytest.raises(AppendTimeout, match=r"0 of 3 rows are in"):
                writer.append(**numbered(number))
            assert table.info().appended == before
            pins.clear()
            for later in range(number, number + 5):
                writer.append(**numbered(later))
            assert table.info().appended == before + 15
            batch = table.sample(1000)
            np.testing.assert_array_equal(batch["next_obs"], batch["obs"] + 1)
            newest = set((batch["obs"][:, 0] % 1000).astype(int))
            assert number + 3 in newest
        table.verify()


@pytest.mark.parametrize("num_envs", [9, 16, 17, 40])
def test_more_environments_than_rows_in_a_block(num_envs: int) -> None:
    with fresh_store() as store:
        table = episodes(store, 3 * num_envs, max_writers=1)
        zeros = np.zeros(num_envs, bool)
        with vector_writer(table, num_envs) as writer:
            for number in range(10):
                obs = 100 * np.arange(num_envs) + number
                writer.append(
                    obs=obs, action=obs, reward=zeros.astype(np.float32), terminated=zeros, truncated=zeros
                )  # fmt: skip
        found = windows_of(table)
        assert all(window["next_obs"] == obs + 1 for obs, window in found.items())
        assert len(table) == 3 * num_envs
        assert len(found) == 2 * num_envs
        table.verify()
