"""Returns over a number of steps that is drawn anew for each row, as RLlib's `n_step=(2, 5)`: 2, 3 or 4 steps.

The table's window is a sequence of the most steps there can be; a transition is made of its first n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conduit.batch import Batch
from conduit_store.arrays import Array

__all__ = ["drawn_steps", "most", "transitions"]


def most(n_step: Any) -> int:
    """The most steps of an `n_step` as RLlib takes it: one number, or a range without its upper end."""
    return int(n_step) if isinstance(n_step, int) else int(n_step[1]) - 1


def drawn_steps(n_step: tuple[int, int], n: int, seed: int, batch: int) -> Array:
    """Steps of each of `n` rows, int64 (n,): the same for the same seed and number of the batch."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=batch << 64))
    steps: Array = generator.integers(n_step[0], n_step[1], n)
    return steps


def transitions(batch: Batch, steps: Array, gamma: float) -> dict[str, Array]:
    """Return n-step transitions of a batch of sequences, under a batch's names.

    `steps` (n,): of each row, fewer where its episode ends before. `reward` is the sum of gamma^k * r_k, as RLlib adds
    it up, from the last step to the first.
    """
    rows = np.arange(len(batch))
    taken = np.minimum(steps, batch["length"]).astype(np.int64)
    rewards = batch["reward"]
    total = np.zeros(len(batch), rewards.dtype)
    for k in reversed(range(rewards.shape[1])):
        total = np.where(k < taken, rewards[:, k] + gamma * total, total)
    made = {
        "reward": total,
        "terminated": batch["terminated"][rows, taken - 1],
        "truncated": batch["truncated"][rows, taken - 1],
        "n_step": taken,
        "weights": batch.weights,
    }
    within = taken < rewards.shape[1]
    for name in batch.names:
        top = name.partition("/")[0]
        if top in ("obs", "action"):
            made[name] = np.ascontiguousarray(batch[name][:, 0])
        elif top == "next_obs":
            after = batch[name].copy()
            inside = batch["obs" + name.removeprefix("next_obs")]
            short = within & (taken < batch["length"])
            after[short] = inside[rows[short], taken[short]]
            made[name] = after
    return made
