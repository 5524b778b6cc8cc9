"""The rows that are stored: W1 to W3, transition tables as a learner of DQN, SAC or Atari would fill them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = dict[str, npt.NDArray[Any]]

COLUMNS = ("obs", "action", "reward", "next_obs", "done")


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of row, and how many of them the cases hold (all counts in rows)."""

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: str
    action_shape: tuple[int, ...]
    action_dtype: str
    capacity: int  # of the table that is sampled
    filled: int  # of that capacity
    ring: int  # capacity of the table that is appended to; it has wrapped before the clock starts
    shared: int  # capacity of the table that several processes use; full before the clock starts
    held: int  # capacity of the table whose memory is counted; full
    pool: int  # distinct rows that the appended rows are taken from

    @property
    def columns(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape of one row and dtype, by column."""
        obs = (self.obs_shape, np.dtype(self.obs_dtype))
        return {
            "obs": obs,
            "action": (self.action_shape, np.dtype(self.action_dtype)),
            "reward": ((), np.dtype("f4")),
            "next_obs": obs,
            "done": ((), np.dtype("?")),
        }

    @property
    def row_bytes(self) -> int:
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.columns.values())


W1 = Workload("W1", (4,), "f4", (), "i8", 1_000_000, 200_000, 100_000, 200_000, 1_000_000, 8_192)
W2 = Workload("W2", (376,), "f4", (17,), "f4", 500_000, 200_000, 100_000, 100_000, 500_000, 8_192)
W3 = Workload("W3", (84, 84, 4), "u1", (), "i8", 100_000, 30_000, 10_000, 10_000, 20_000, 1_024)
WORKLOADS = {w.name: w for w in (W1, W2, W3)}


def make_rows(workload: Workload, n: int, seed: int = 0) -> Rows:
    """`n` random rows, one array (n, *shape) a column. Rewards are distinct, so that a row can be recognised.

    Rows are steps: what one led to is where the next one begins (RLlib stores observations once).
    """
    rng = np.random.default_rng(seed)
    rows: Rows = {}
    for name, (shape, dtype) in workload.columns.items():
        if dtype == np.uint8:
            rows[name] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        elif dtype == np.int64:
            rows[name] = rng.integers(0, 4, (n, *shape), dtype=np.int64)
        elif dtype == np.bool_:
            rows[name] = rng.integers(0, 50, n) == 0
        else:
            rows[name] = rng.standard_normal((n, *shape), dtype=np.float32)
    rows["next_obs"] = np.roll(rows["obs"], -1, axis=0)
    rows["reward"] = rng.permutation(n).astype(np.float32)
    return rows


def split(rows: Rows, batch: int) -> list[Rows]:
    """The rows in whole parts of `batch`; views."""
    n = len(rows["reward"])
    return [{k: v[i : i + batch] for k, v in rows.items()} for i in range(0, n - batch + 1, batch)]
