"""stable-baselines3: NumPy arrays, uniform only. One process only."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from bench.driver import Append
from bench.workloads import Rows, Workload


class Sb3Driver:
    """ReplayBuffer of 32 environments: a vector step is the unit that is added, larger parts are added in pieces."""

    start_method = "spawn"
    environments = 32

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        if shared or prioritized:
            raise ValueError("stable-baselines3 draws uniformly, and no other process can see its buffer")
        buffers: Any = importlib.import_module("stable_baselines3.common.buffers")
        spaces: Any = importlib.import_module("gymnasium").spaces
        pixels = workload.obs_dtype == "u1"
        obs = spaces.Box(0 if pixels else -9, 255 if pixels else 9, workload.obs_shape, np.dtype(workload.obs_dtype))
        action = spaces.Box(-9, 9, workload.action_shape, np.float32) if workload.action_shape else spaces.Discrete(4)
        self.buffer: Any = buffers.ReplayBuffer(
            capacity, obs, action, device="cpu", n_envs=self.environments, handle_timeout_termination=False
        )

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        n, step = len(rows["reward"]), self.environments
        return [{k: v[i : i + step] for k, v in rows.items()} for i in range(0, n, step)]

    def appender(self, batch: int, own_priorities: bool) -> Append:
        return self._append

    def _append(self, parts: list[Rows]) -> None:
        for rows in parts:
            self.buffer.add(rows["obs"], rows["next_obs"], rows["action"], rows["reward"], rows["done"], [])

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        batch = self.buffer.sample(n)
        return {
            "obs": batch.observations, "action": batch.actions, "reward": batch.rewards,
            "next_obs": batch.next_observations, "done": batch.dones,
        }, None  # fmt: skip

    def update(self, handle: Any, priorities: Any) -> object:
        raise ValueError("stable-baselines3 has no priorities")

    def close(self) -> None:
        del self.buffer
