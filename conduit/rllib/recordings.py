"""Random steps of Pendulum in files as RLlib records them, for the offline cell of `conduit bench rllib`."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["pendulum"]

_FILES = 4


@cache
def pendulum(rows: int) -> str:
    """Write that many steps once in this process; returns their folder, which goes when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="conduit-bench-")
    _kept.append(folder)
    for i in range(_FILES):
        _write(Path(folder.name) / f"part-{i}.parquet", rows // _FILES, seed=i)
    return folder.name


_kept: list[Any] = []  # folders, for as long as this process


def _write(path: Path, rows: int, seed: int) -> None:
    import gymnasium as gym
    import pyarrow as pa
    import pyarrow.parquet as pq
    from ray.data.extensions import ArrowTensorArray

    random = np.random.default_rng(seed)
    env: Any = gym.make("Pendulum-v1")
    obs: list[Any] = []
    after: list[Any] = []
    rewards: list[float] = []
    ends: list[bool] = []
    episodes: list[str] = []
    actions = random.uniform(-1, 1, (rows, 1)).astype(np.float32)
    now, number = env.reset(seed=seed)[0], 0
    for action in actions:
        then, reward, _, truncated, _ = env.step(2 * action)
        obs.append(now)
        after.append(then)
        rewards.append(reward)
        ends.append(truncated)
        episodes.append(f"{seed}-{number}")
        now = then
        if truncated:
            number += 1
            now = env.reset()[0]
    env.close()
    columns = {
        "eps_id": pa.array(episodes),
        "obs": ArrowTensorArray.from_numpy(np.array(obs, np.float32)),
        "actions": ArrowTensorArray.from_numpy(actions),
        "rewards": pa.array([float(reward) for reward in rewards]),
        "new_obs": ArrowTensorArray.from_numpy(np.array(after, np.float32)),
        "terminateds": pa.array([False] * rows),
        "truncateds": pa.array([bool(end) for end in ends]),
    }
    pq.write_table(pa.table(columns), path)
