"""RLlib: the episode buffers of its algorithms, in Python. One process only. In the product's own environment.

What its algorithms do with a sample, episodes through connectors into tensors, is done here by the shortest way.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from bench.driver import Append
from bench.workloads import Rows, Workload

ALPHA, BETA = 0.6, 0.4
_BUFFERS = "ray.rllib.utils.replay_buffers"


class RllibDriver:
    """PrioritizedEpisodeReplayBuffer or EpisodeReplayBuffer. A part of rows is an episode, or several by `done`."""

    start_method = "spawn"

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        if shared:
            raise ValueError("no other process can see RLlib's buffer, but through an actor that calls it")
        self.episode: Any = importlib.import_module("ray.rllib.env.single_agent_episode").SingleAgentEpisode
        if prioritized:
            module: Any = importlib.import_module(f"{_BUFFERS}.prioritized_episode_buffer")
            self.buffer: Any = module.PrioritizedEpisodeReplayBuffer(capacity=capacity, alpha=ALPHA)
        else:
            module = importlib.import_module(f"{_BUFFERS}.episode_replay_buffer")
            self.buffer = module.EpisodeReplayBuffer(capacity=capacity)
        self.prioritized = prioritized

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        if priorities is not None:
            raise ValueError("RLlib takes no priorities with new rows")
        n = len(rows["reward"])
        ends = [*(np.flatnonzero(rows["done"]) + 1).tolist(), n]
        starts = [0, *ends[:-1]]
        return [{k: v[a:b] for k, v in rows.items()} for a, b in zip(starts, ends, strict=True) if a < b]

    def appender(self, batch: int, own_priorities: bool) -> Append:
        return self._append

    def _append(self, parts: list[Rows]) -> None:
        made = [
            self.episode(
                observations=[*part["obs"], part["next_obs"][-1]], actions=list(part["action"]),
                rewards=list(part["reward"]), terminated=bool(part["done"][-1]), len_lookback_buffer=0,
            )
            for part in parts
        ]  # fmt: skip
        self.buffer.add(made)

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        if self.prioritized:
            episodes = self.buffer.sample(num_items=n, n_step=1, beta=BETA)
        else:
            episodes = self.buffer.sample(num_items=n, n_step=1, sample_episodes=True)
        observations = [episode.get_observations() for episode in episodes]
        columns: dict[str, Any] = {
            "obs": np.stack([seen[0] for seen in observations]),
            "next_obs": np.stack([seen[1] for seen in observations]),
            "action": np.stack([episode.get_actions(0) for episode in episodes]),
            "reward": np.asarray([episode.get_rewards(0) for episode in episodes], np.float32),
            "done": np.asarray([episode.is_terminated for episode in episodes]),
        }
        if self.prioritized:
            weights = [episode.get_extra_model_outputs("weights", 0) for episode in episodes]
            columns["weights"] = np.asarray(weights, np.float32)
        return {name: torch.from_numpy(column) for name, column in columns.items()}, None

    def update(self, handle: Any, priorities: Any) -> object:
        self.buffer.update_priorities(priorities)  # of what was sampled last
        return None

    def close(self) -> None:
        del self.buffer
