"""PPO, APPO and IMPALA: stock and through Conduit, from the same seeds, to the bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig

import conduit.rllib
from tests.integration.rllib.exact import same


def ppo(**training: Any) -> Any:
    settings = {"train_batch_size_per_learner": 256, "minibatch_size": 64, "num_epochs": 2, **training}
    return PPOConfig().environment("CartPole-v1").debugging(seed=3).training(**settings)


def learnt(config: Any, updates: int) -> tuple[Any, Any]:
    """Parameters and optimizer state after so many iterations from the same global seeds, and the last result."""
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    algo = config.build_algo()
    try:
        for _ in range(updates):
            result = algo.train()
        state = algo.learner_group.get_state(components=["learner/rl_module", "learner/optimizer"])["learner"]
        return {name: state[name] for name in ("rl_module", "optimizer")}, result
    finally:
        algo.stop()


def exact(make: Any, *, updates: int = 3) -> Any:
    """Both from the same seeds; returns Conduit's last result."""
    stock, _ = learnt(make(), updates)
    before, _ = learnt(make(), 1)
    ours, result = learnt(conduit.rllib.attach(make(), host_memory="256MiB"), updates)
    same(stock, ours, "state")
    try:
        same(before, ours)
    except AssertionError:
        pass
    else:
        raise AssertionError("nothing was learnt")
    (queue,) = [q for name, q in result["conduit"].items() if name.startswith("episodes")] 
    assert queue["appended"] > updates * 200, queue
    assert queue["unacknowledged"] == 0, queue
    return result


SCENARIOS = {
    "ppo": lambda: exact(ppo),
    "ppo_remote": lambda: exact(lambda: ppo().env_runners(num_env_runners=2, num_envs_per_env_runner=2)),
}
