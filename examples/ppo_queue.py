"""PPO on CartPole-v1 with a queue: rollout processes append fragments, one learner takes each of them once.

    python examples/ppo_queue.py

    worker 0 --extend--> [ queue `rollouts`,  ] --sample, ack--> learner
    worker 1 --extend--> [ max_staleness=0    ]                    | policy_version = v + 1
       ^--sample-------- [ table `weights`    ] <--extend----------+

With max_staleness=0 every update sees rows of the newest policy only: what a worker made with older weights is refused
(StalePolicy), and what was waiting when the learner moved on is dropped. A worker that dies costs what it had not
appended; a batch that the learner took and did not acknowledge would come again.
Exit status: 0 solved, 1 budget spent without solving, 130 interrupted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import conduit

ENV = "CartPole-v1"
WORKERS, ENVS, LENGTH = 2, 8, 128  # each worker's fragments of LENGTH steps, ENVS at a time
TARGET = 450.0  # mean return of the last 40 episodes
GAMMA, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
EPOCHS, MINIBATCH, RATE = 8, 256, 1e-3


class Policy(nn.Module):
    """Logits of the two actions, and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        choice = torch.distributions.Categorical(logits=self.actor(obs))
        action = choice.sample()  # type: ignore[no-untyped-call]
        return action, choice.log_prob(action)  # type: ignore[no-untyped-call]

    def value(self, obs: Tensor) -> Tensor:
        values: Tensor = self.critic(obs)[..., 0]
        return values


def flat(policy: Policy) -> Any:
    """All weights as one float32 vector, copied."""
    return nn.utils.parameters_to_vector(policy.parameters()).detach().numpy().copy()


def fragment() -> dict[str, Any]:
    """One row of the queue: LENGTH steps of one environment."""
    obs = np.zeros((LENGTH, 4), np.float32)
    flags = np.zeros(LENGTH, np.bool_)
    number = np.zeros(LENGTH, np.float32)
    return {
        "obs": obs, "next_obs": obs, "action": np.zeros(LENGTH, np.int64), "log_prob": number, "reward": number,
        "terminated": flags, "truncated": flags, "episode_return": number,  # where an episode ends
    }  # fmt: skip


def work(queue: conduit.Queue, weights: conduit.Table, seed: int) -> None:
    """A worker process: newest weights, ENVS fragments, append; until the queue has ended."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    envs = [gym.make(ENV) for _ in range(ENVS)]
    obs = np.stack([env.reset(seed=seed * 1_000 + i)[0] for i, env in enumerate(envs)])
    policy, version, returns = Policy(), -1, np.zeros(ENVS)
    while not queue.ended:
        if queue.policy_version == version:  # the learner has not moved on: what it has is enough
            time.sleep(0.001)
            continue
        newest = weights.sample(1)
        version = int(newest["version"][0])
        nn.utils.vector_to_parameters(torch.from_numpy(newest["vector"][0]), policy.parameters())
        rows = {name: np.stack([column] * ENVS) for name, column in fragment().items()}
        for t in range(LENGTH):
            with torch.no_grad():
                action, log_prob = policy.act(torch.from_numpy(obs))
            rows["obs"][:, t], rows["action"][:, t], rows["log_prob"][:, t] = obs, action.numpy(), log_prob.numpy()
            for i, env in enumerate(envs):
                after, reward, terminated, truncated, _ = env.step(int(action[i]))
                rows["next_obs"][i, t], rows["reward"][i, t] = after, reward
                rows["terminated"][i, t], rows["truncated"][i, t] = terminated, truncated
                returns[i] += float(reward)
                obs[i] = after
                if terminated or truncated:
                    rows["episode_return"][i, t], returns[i], obs[i] = returns[i], 0.0, env.reset()[0]
        try:
            queue.extend(rows, policy_version=version)
        except conduit.StalePolicy:  # the learner was quicker: with the newer weights once more
            continue
        except conduit.QueueEnded:
            return


def learn(policy: Policy, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    """PPO's clipped objective over whole fragments, (rows, LENGTH) each.

    J. Schulman et al., "Proximal policy optimization algorithms", 2017.
    """
    with torch.no_grad():
        values, following = policy.value(batch["obs"]), policy.value(batch["next_obs"])
        alive = 1.0 - batch["terminated"].float()
        inside = alive * (1.0 - batch["truncated"].float())
        delta = batch["reward"] + GAMMA * alive * following - values
        advantage, running = torch.zeros_like(delta), torch.zeros(len(delta))
        for t in reversed(range(LENGTH)):
            running = delta[:, t] + GAMMA * LAMBDA * inside[:, t] * running
            advantage[:, t] = running
        returns = (advantage + values).flatten()
        gains = advantage.flatten()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    obs, action, before = batch["obs"].flatten(0, 1), batch["action"].flatten(), batch["log_prob"].flatten()
    for _ in range(EPOCHS):
        for part in torch.randperm(len(obs)).view(-1, MINIBATCH):
            choice = torch.distributions.Categorical(logits=policy.actor(obs[part]))
            ratio = (choice.log_prob(action[part]) - before[part]).exp()  # type: ignore[no-untyped-call]
            gain = torch.min(ratio * gains[part], ratio.clamp(1 - CLIP, 1 + CLIP) * gains[part]).mean()
            error = (policy.value(obs[part]) - returns[part]).square().mean()
            loss = 0.5 * error - gain - ENTROPY * choice.entropy().mean()  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


def main() -> int:
    parser = argparse.ArgumentParser(description="PPO on CartPole through a queue.")
    parser.add_argument("--updates", type=int, default=150, help="the budget: give up after so many")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE, eps=1e-5)
    returns: deque[float] = deque(maxlen=40)
    with conduit.Store.create(f"ppo-{os.getpid()}", "64MiB") as store:
        example = {"version": np.int64(0), "vector": flat(policy)}
        weights = store.create_table("weights", conduit.Schema.from_example(example), 1)
        weights.extend({"version": [0], "vector": flat(policy)[None]})
        schema = conduit.Schema.from_example(fragment())
        queue = store.create_queue("rollouts", schema, 2 * WORKERS * ENVS, max_staleness=0, max_writers=WORKERS)
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=work, args=(queue, weights, given.seed + k), daemon=True) for k in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        try:
            began = time.monotonic()
            for version in range(1, given.updates + 1):
                batch = queue.sample(WORKERS * ENVS, timeout=60.0)
                learn(policy, optimizer, batch.torch())
                batch.ack()
                weights.extend({"version": [version], "vector": flat(policy)[None]})
                queue.policy_version = version  # workers may look now, and rows of the old policy are out
                returns.extend(batch["episode_return"][batch["terminated"] | batch["truncated"]].tolist())
                mean = float(np.mean(returns)) if returns else 0.0
                if version % 5 == 0:
                    steps = version * WORKERS * ENVS * LENGTH
                    took = time.monotonic() - began
                    print(f"{took:5.1f} s  update {version:3}  {steps:7,} steps  return {mean:5.1f}")
                if len(returns) == returns.maxlen and mean >= TARGET:
                    print(f"solved: mean return {mean:.0f} of the last {len(returns)} episodes")
                    return 0
            print("not solved")
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            queue.end()
            for worker in workers:
                worker.join(10.0)
                worker.kill()


if __name__ == "__main__":
    sys.exit(main())
