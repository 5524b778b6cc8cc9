"""Offline RL: a policy that errs is recorded, exported to Parquet, and cloned from the files into one that errs less.

    python examples/offline.py [--steps 20000] [--epochs 3] [--seed 1] [--folder experience]

CartPole is played by a rule of thumb that acts at random three times of four. Its steps go through a store into
Parquet files, which any tool reads, and from which `conduit.offline` trains without a store: row groups in random
order, through a shuffle buffer, batches prepared by a thread. The clone follows the majority of what it saw, so it
does better.

D. A. Pomerleau, "ALVINN: an autonomous land vehicle in a neural network", NIPS 1988 (behaviour cloning).
Exit status: 0 the clone balances at least twice as long as what it saw, 1 not, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import conduit
import conduit.offline

ENVS = 8


def rule_of_thumb(obs: npt.NDArray[np.float32], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Push towards where the pole falls; three times of four anywhere. `obs` (n, 4) -> int64 (n,)."""
    wise = (obs[:, 2] + 0.4 * obs[:, 3] + 0.05 * obs[:, 1] > 0).astype(np.int64)
    return np.where(rng.random(len(obs)) < 0.75, rng.integers(0, 2, len(obs)), wise)


def record(folder: Path, steps: int, seed: int) -> float:
    """Play `steps` steps, export them to `folder`; return the mean length of an episode."""
    rng = np.random.default_rng(seed)
    single = gym.make("CartPole-v1")
    schema = conduit.Schema.from_spaces(single.observation_space, single.action_space)
    envs = gym.make_vec("CartPole-v1", ENVS, vectorization_mode="sync")
    with conduit.Store.create(f"offline-{os.getpid()}", "64MiB") as store:
        table = store.create_table("expert", schema, max_size=steps)
        obs, _ = envs.reset(seed=seed)
        with table.writer(num_envs=ENVS) as writer:
            while len(table) < steps - ENVS:
                action = rule_of_thumb(obs, rng)
                after, reward, terminated, truncated, _ = envs.step(action)
                writer.append(
                    obs=obs, action=action, reward=reward.astype(np.float32), terminated=terminated, truncated=truncated
                )
                obs = after
        rows = table.export(folder, "parquet")
        ends = len(table.to_numpy()["final_row"])
    envs.close()
    print(f"{rows:,} steps in {folder}, {rows / ends:.0f} in an episode on average")
    return rows / ends


def clone(folder: Path, epochs: int, seed: int) -> nn.Module:
    """Learn to act as the files say."""
    data = conduit.offline.open(folder, window=conduit.windows.Row(), buffer="1MiB", seed=seed)
    network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    began, seen, loss = time.monotonic(), 0, torch.zeros(())
    with data.loader(64, epochs=epochs) as loader:
        for batch in loader:
            tensors = batch.torch()
            loss = cross_entropy(network(tensors["obs"]), tensors["action"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen += len(batch)
    print(f"{seen:,} rows in {time.monotonic() - began:.1f} s, the last batch's loss {loss.item():.3f}")
    return network


def lasts(network: nn.Module, seed: int, episodes: int = 10) -> float:
    """How long the greedy policy balances, on average."""
    env: Any = gym.make("CartPole-v1")
    total = 0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        over = False
        while not over:
            with torch.no_grad():
                action = int(network(torch.from_numpy(obs)).argmax())
            obs, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            total += 1
    env.close()
    return total / episodes


def main(argv: list[str]) -> int:
    """Read the command line, record, clone, compare."""
    parser = argparse.ArgumentParser(prog="offline", description="Behaviour cloning from Parquet files.")
    parser.add_argument("--steps", type=int, default=20_000, help="to record (20000)")
    parser.add_argument("--epochs", type=int, default=3, help="over the files (3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files go, and stay; a temporary one if not given")
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.folder or Path(temporary, "experience")
            seen = record(folder, args.steps, args.seed)
            learnt = lasts(clone(folder, args.epochs, args.seed), args.seed)
    except conduit.NameTaken as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"the clone balances for {learnt:.0f} steps, what it saw for {seen:.0f}")
    return 0 if learnt >= 2 * seen else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
