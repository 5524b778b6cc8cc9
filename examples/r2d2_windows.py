"""A recurrent Q network on a task that needs memory: sequences with burn-in, stored state and sequence priorities.

    python examples/r2d2_windows.py [--corridor 12] [--seed 1]

A cue is shown once, at the first step of a corridor; at its end one of two doors must be chosen by it. Whoever forgets
the cue gets 0 on average. The table keeps single steps, with the LSTM's state before each; `windows.Sequence` cuts them
into overlapping sequences: `BURN_IN` steps that only bring the state up to date, then `LENGTH` steps to learn from.

S. Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning", ICLR 2019.
Exit status: 0 learnt (95 of 100 greedy episodes end at the right door), 1 not, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import conduit

HIDDEN = 32
BURN_IN, LENGTH, PERIOD = 4, 8, 4
GAMMA = 0.99
State = tuple[torch.Tensor, torch.Tensor]


class Corridor:
    """Observations (cue, position, noise); of the actions 0 and 1 only the last one matters: its reward is +1 or -1."""

    def __init__(self, length: int, rng: np.random.Generator) -> None:
        self.length, self.rng = length, rng

    def reset(self) -> Any:
        """A new cue."""
        self.cue, self.at = int(self.rng.integers(2)), 0
        return self._obs()

    def step(self, action: int) -> tuple[Any, float, bool]:
        """One step on; observation, reward, whether it was the last."""
        self.at += 1
        over = self.at == self.length
        return self._obs(), (1.0 if action == self.cue else -1.0) if over else 0.0, over

    def _obs(self) -> Any:
        cue = 2.0 * self.cue - 1.0 if self.at == 0 else 0.0
        return np.array([cue, self.at / self.length, self.rng.normal(0, 0.1)], np.float32)


class Network(nn.Module):
    """An LSTM over observations, and an action value for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, obs: torch.Tensor, state: State | None) -> tuple[torch.Tensor, State]:
        """Values (n, T, 2) of observations (n, T, 3), and the state after them."""
        hidden, after = self.lstm(obs, state)
        return self.head(hidden), after


class Agent:
    """Online and target network, and the update from a batch of sequences."""

    def __init__(self) -> None:
        self.online, self.target = Network(), Network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=2e-3)

    def learn(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """One update; absolute TD errors (n, LENGTH), zero where there is nothing to learn from.

        The state runs from the window's first step over the burn-in, without a gradient, and on over the rest.
        """
        state = batch["h"][None], batch["c"][None]
        obs, mask = batch["obs"], batch["mask"]
        # The steps in front that are missing, where an episode has just begun, must not move the state.
        front = (~mask[:, :BURN_IN]).sum(1)
        shifted = torch.stack([row.roll(-int(k), 0) for row, k in zip(obs, front, strict=True)])
        with torch.no_grad():
            last, _ = self.target(torch.cat([shifted, batch["next_obs"][:, None]], 1), state)
        values, _ = self.online(shifted, state)
        rows = torch.arange(len(obs))[:, None]
        steps = (torch.arange(BURN_IN, BURN_IN + LENGTH)[None] - front[:, None]).clamp(min=0)
        learnt = mask[:, BURN_IN:]
        chosen = values[rows, steps].gather(2, batch["action"][:, BURN_IN:, None])[..., 0]
        ends = batch["terminated"][:, BURN_IN:].float()
        after = last[rows, steps + 1].max(2).values
        goal = batch["reward"][:, BURN_IN:] + GAMMA * (1 - ends) * after
        error = (goal - chosen) * learnt
        loss = (batch["weights"][:, None] * error.square()).sum() / learnt.sum()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 5.0)
        self.optimizer.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.online.parameters(), strict=True):
                old.lerp_(new, 0.02)
        absolute: torch.Tensor = error.detach().abs()
        return absolute


def play(env: Corridor, agent: Agent, epsilon: float, rng: np.random.Generator, writer: Any = None) -> float:
    """One episode; its return. With a `writer` every step is stored, and the state in which it was taken."""
    obs, state, total = env.reset(), (torch.zeros(1, 1, HIDDEN), torch.zeros(1, 1, HIDDEN)), 0.0
    while True:
        before = state
        with torch.no_grad():
            values, state = agent.online(torch.from_numpy(obs)[None, None], state)
        action = int(rng.integers(2)) if rng.random() < epsilon else int(values.argmax())
        after, reward, over = env.step(action)
        if writer is not None:
            h, c = (part[0, 0].numpy() for part in before)
            writer.append(
                obs=obs, action=action, reward=np.float32(reward), terminated=over, truncated=False, h=h, c=c
            )  # fmt: skip
        obs, total = after, total + reward
        if over:
            if writer is not None:
                writer.end(obs)
            return total


def train(corridor: int, seed: int, rounds: int) -> int:
    """Rounds of 8 episodes and 8 updates, until 95 of 100 greedy episodes end at the right door."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    env, agent = Corridor(corridor, rng), Agent()
    state = np.zeros(HIDDEN, np.float32)
    schema = conduit.Schema.from_example(
        {
            "obs": np.zeros(3, np.float32), "action": 0, "reward": np.float32(0), "terminated": False,
            "truncated": False, "h": state, "c": state,
        }
    )  # fmt: skip
    began = time.monotonic()
    with conduit.Store.create(f"r2d2-{os.getpid()}", "256MiB") as store:
        replay = store.create_table(
            "replay",
            schema,
            max_size=50_000,
            sampler=conduit.samplers.Prioritized(alpha=0.9, beta=0.6, eps=1e-3),
            window=conduit.windows.Sequence(LENGTH, burn_in=BURN_IN, period=PERIOD, state=("h", "c")),
            mean_episode_length=corridor,
            seed=seed,
        )
        with replay.writer() as writer:
            for turn in range(1, rounds + 1):
                for _ in range(8):
                    play(env, agent, max(0.05, 1 - turn / 40), rng, writer)
                for _ in range(8):
                    batch = replay.sample(64)
                    errors = agent.learn(batch.torch())
                    replay.update_priorities(batch.keys, errors, mask=batch["mask"][:, BURN_IN:])
                if turn % 10 == 0:
                    right = sum(play(env, agent, 0.0, rng) > 0 for _ in range(100))
                    print(
                        f"{turn * 8:5,} episodes: {right} of 100 greedy ones end at the right door, "
                        f"{time.monotonic() - began:5.1f} s",
                        flush=True,
                    )
                    if right >= 95:
                        return 0
    return 1


def main(argv: list[str]) -> int:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="r2d2_windows", description="A task that needs memory, from sequences.")
    parser.add_argument("--corridor", type=int, default=12, help="steps between cue and doors (12)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=300, help="of 8 episodes, before giving up (300)")
    try:
        return train(**vars(parser.parse_args(argv)))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
