"""tianshou: NumPy ring, numba sum tree. One process only.

Here because its prioritized sample of W1 rows was the fastest found among libraries.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from bench.driver import Append
from bench.workloads import Rows, Workload

ALPHA, BETA = 0.6, 0.4


class TianshouDriver:
    """PrioritizedVectorReplayBuffer or VectorReplayBuffer of one environment a row of a part."""

    start_method = "spawn"
    environments = 32  # of one vector step, the unit that is added: larger parts are added in pieces

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        if shared:
            raise ValueError("no other process can see a tianshou buffer")
        data: Any = importlib.import_module("tianshou.data")
        self.batch: Any = data.Batch
        name = ("Prioritized" if prioritized else "") + "VectorReplayBuffer"
        options = {"alpha": ALPHA, "beta": BETA} if prioritized else {}
        self.buffer: Any = getattr(data, name)(capacity, self.environments, **options)
        self.prioritized = prioritized

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        if priorities is not None:
            raise ValueError("tianshou takes no priorities with new rows")
        n, step = len(rows["reward"]), self.environments
        return [{k: v[i : i + step] for k, v in rows.items()} for i in range(0, n, step)]

    def appender(self, batch: int, own_priorities: bool) -> Append:
        return self._append

    def _append(self, parts: list[Rows]) -> None:
        for rows in parts:
            n = len(rows["reward"])
            step = self.batch(
                obs=rows["obs"], act=rows["action"], rew=rows["reward"], terminated=rows["done"],
                truncated=np.zeros(n, bool), obs_next=rows["next_obs"],
            )  # fmt: skip
            self.buffer.add(step, buffer_ids=np.arange(n))

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        batch, rows = self.buffer.sample(n)
        tensor = torch.from_numpy
        tensors = {
            "obs": tensor(batch.obs), "action": tensor(batch.act), "reward": tensor(batch.rew),
            "next_obs": tensor(batch.obs_next), "done": tensor(batch.done),
        }  # fmt: skip
        if self.prioritized:
            tensors["weights"] = tensor(batch.weight)
        return tensors, rows

    def update(self, handle: Any, priorities: Any) -> object:
        self.buffer.update_weight(handle, priorities)
        return None

    def close(self) -> None:
        del self.buffer
