"""C37: the reset of a vector environment was stored as a step."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.store_support import episodes, fresh_store, vector_writer, windows_of


class Counting(gymnasium.Env[np.int64, np.int64]):
    """Observes 100 * episode + step (the second environment 10,000 more); the first episode of env 0 has 3 steps."""

    observation_space = gymnasium.spaces.Discrete(100_000)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, env: int) -> None:
        self._base = 10_000 * env
        self._env = env
        self._episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.int64, dict[str, object]]:
        self._episode += 1
        self._step = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, object]]:
        self._step += 1
        return self._obs(), 1.0, self._env == 0 and self._episode == 0 and self._step == 3, False, {}

    def _obs(self) -> np.int64:
        return np.int64(self._base + 100 * self._episode + self._step)


def run(mode: AutoresetMode) -> tuple[int, dict[int, int]]:
    """Ten vector steps; how many rows there are, and next_obs by obs."""
    envs = SyncVectorEnv([lambda i=i: Counting(i) for i in range(2)], autoreset_mode=mode)  # type: ignore[misc]
    with fresh_store() as store:
        table = episodes(store, 100)
        with vector_writer(
            table,
            2,
            autoreset=mode.value.lower()
            .replace("-", "_")
            .replace("nextstep", "next_step")
            .replace("samestep", "same_step"),
        ) as writer:
            obs, _ = envs.reset()
            for _ in range(10):
                action = np.zeros(2, np.int64)
                after, reward, terminated, truncated, infos = envs.step(action)
                final = {"final_obs": infos["final_obs"]} if "final_obs" in infos else {}
                writer.append(
                    obs=obs,
                    action=action,
                    reward=reward.astype(np.float32),
                    terminated=terminated,
                    truncated=truncated,
                    **final,
                )
                obs = after
        return len(table), {o: window["next_obs"] for o, window in windows_of(table).items()}


@pytest.mark.parametrize(("mode", "rows"), [(AutoresetMode.NEXT_STEP, 19), (AutoresetMode.SAME_STEP, 20)])
def test_rows_and_successors(mode: AutoresetMode, rows: int) -> None:
    count, successors = run(mode)
    assert count == rows
    assert successors[2] == 3  # the true final observation
    assert 3 not in successors
    assert all(after == before + 1 for before, after in successors.items())
    last_0 = 100 + rows - 14  # the newest step of each environment waits for its successor
    assert sorted(successors) == [0, 1, 2, *range(100, last_0), *range(10_000, 10_009)]
