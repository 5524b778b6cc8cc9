"""Hindsight experience replay on bit flipping: with relabelled goals it learns, without them it cannot.

    python examples/her.py [--bits 12] [--strategy future] [--ratio 0.8] [--seed 1]

A state of n bits, a goal of n bits; an action flips one bit; the reward is -1 until they agree. For 12 bits a random
episode reaches its goal about once in three hundred, so that there is nothing to learn from. `windows.Hindsight`
replaces the goal of most drawn steps by a state that the same episode did reach later, and has the reward computed.

M. Andrychowicz et al., "Hindsight experience replay", NIPS 2017.
Exit status: 0 learnt (90 % of greedy episodes reach their goal), 1 not, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss

import conduit

FloatArray = npt.NDArray[np.float32]
GAMMA = 0.98


def reward_of(achieved: FloatArray, desired: FloatArray) -> FloatArray:
    """0 where the goal is reached, else -1; for goals of shape (n, bits)."""
    return np.where((achieved == desired).all(axis=-1), 0.0, -1.0).astype(np.float32)


class BitFlip(gym.Env[dict[str, FloatArray], int]):
    """As many steps as bits, then the time limit; reaching the goal early ends nothing."""

    def __init__(self, bits: int) -> None:
        box = gym.spaces.Box(0.0, 1.0, (bits,), np.float32)
        self.observation_space = gym.spaces.Dict({"achieved_goal": box, "desired_goal": box})
        self.action_space = gym.spaces.Discrete(bits)
        self.bits = bits

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A random state and a random goal."""
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        self.left = self.bits
        return self._obs(), {}

    def step(self, action: int) -> Any:
        """Flip bit `action`."""
        self.state = self.state.copy()
        self.state[action] = 1 - self.state[action]
        self.left -= 1
        return self._obs(), float(reward_of(self.state, self.goal)), False, self.left == 0, {}

    def _obs(self) -> dict[str, FloatArray]:
        return {"achieved_goal": self.state, "desired_goal": self.goal}


class Agent:
    """A Q network over state and goal, and its double DQN update."""

    def __init__(self, bits: int) -> None:
        def network() -> nn.Sequential:
            return nn.Sequential(nn.Linear(2 * bits, 256), nn.ReLU(), nn.Linear(256, bits))

        self.online, self.target = network(), network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)

    def act(self, obs: dict[str, FloatArray]) -> int:
        """The greedy action."""
        with torch.no_grad():
            x = torch.from_numpy(np.concatenate([obs["achieved_goal"], obs["desired_goal"]]))
            return int(self.online(x).argmax())

    def learn(self, batch: dict[str, torch.Tensor]) -> None:
        """One update from a batch of transitions."""
        now = torch.cat([batch["obs/achieved_goal"], batch["obs/desired_goal"]], 1)
        after = torch.cat([batch["next_obs/achieved_goal"], batch["next_obs/desired_goal"]], 1)
        values = self.online(now).gather(1, batch["action"][:, None])[:, 0]
        with torch.no_grad():
            best = self.online(after).argmax(1, keepdim=True)
            goal = batch["reward"] + batch["discount"] * self.target(after).gather(1, best)[:, 0]
            goal = goal.clamp(-1 / (1 - GAMMA), 0)
        loss = smooth_l1_loss(values, goal)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.online.parameters(), strict=True):
                old.lerp_(new, 0.02)


def episode(env: BitFlip, agent: Agent, epsilon: float, rng: np.random.Generator, writer: Any = None) -> bool:
    """Play one; whether it came past its goal. With a `writer` every step is stored."""
    obs, _ = env.reset()
    reached = False
    while True:
        action = int(rng.integers(env.bits)) if rng.random() < epsilon else agent.act(obs)
        after, reward, terminated, truncated, _ = env.step(action)
        if writer is not None:
            writer.append(obs=obs, action=action, reward=reward, terminated=terminated, truncated=truncated)
        obs, reached = after, reached or reward == 0
        if truncated:
            if writer is not None:
                writer.end(obs)
            return reached


def train(bits: int, strategy: str, ratio: float, seed: int, rounds: int) -> int:
    """Rounds of 16 episodes and 40 updates, until nine greedy episodes of ten reach their goal."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    env, agent = BitFlip(bits), Agent(bits)
    env.reset(seed=seed)
    began = time.monotonic()
    with conduit.Store.create(f"her-{os.getpid()}", "256MiB") as store:
        replay = store.create_table(
            "replay",
            conduit.Schema.from_spaces(env.observation_space, env.action_space),
            max_size=200_000,
            window=conduit.windows.Hindsight(
                strategy=strategy, reward=reward_of, ratio=ratio, gamma=GAMMA,
                goal="obs/desired_goal", achieved="obs/achieved_goal",
            ),
            mean_episode_length=bits,
            seed=seed,
        )  # fmt: skip
        with replay.writer() as writer:
            for turn in range(1, rounds + 1):
                for _ in range(16):
                    episode(env, agent, max(0.1, 1 - turn / 30), rng, writer)
                for _ in range(40):
                    agent.learn(replay.sample(128).torch())
                if turn % 10 == 0:
                    reached = np.mean([episode(env, agent, 0.0, rng) for _ in range(100)])
                    print(
                        f"{turn * 16:6,} episodes: {reached:4.0%} of greedy episodes reach their goal, "
                        f"{time.monotonic() - began:5.1f} s",
                        flush=True,
                    )
                    if reached >= 0.9:
                        return 0
    return 1


def main(argv: list[str]) -> int:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="her", description="Bit flipping with hindsight goals.")
    parser.add_argument("--bits", type=int, default=12, help="of state and goal (12)")
    parser.add_argument("--strategy", default="future", choices=("future", "final", "episode"))
    parser.add_argument("--ratio", type=float, default=0.8, help="share of steps with another goal; 0: none (0.8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200, help="of 16 episodes, before giving up (200)")
    try:
        return train(**vars(parser.parse_args(argv)))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
