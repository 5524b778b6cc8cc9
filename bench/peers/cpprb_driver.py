"""cpprb: C++ ring and trees behind Cython. In several processes: its MP classes, inherited through fork."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from bench.driver import Append, one_row
from bench.workloads import COLUMNS, Rows, Workload

ALPHA, BETA = 0.6, 0.4


class CpprbDriver:
    """PrioritizedReplayBuffer or ReplayBuffer; MPPrioritizedReplayBuffer or MPReplayBuffer when shared."""

    start_method = "fork"  # its shared arrays reach other processes by inheritance only
    always_shared = False

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        cpprb: Any = importlib.import_module("cpprb")
        columns = {k: {"shape": shape or 1, "dtype": dtype} for k, (shape, dtype) in workload.columns.items()}
        name = ("MP" if shared or self.always_shared else "") + ("Prioritized" if prioritized else "") + "ReplayBuffer"
        options = {"alpha": ALPHA} if prioritized else {}
        self.buffer: Any = getattr(cpprb, name)(capacity, columns, **options)
        self.prioritized = prioritized

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        encoded: dict[str, Any] = one_row(rows) if len(rows["reward"]) == 1 else dict(rows)
        if priorities is not None:
            encoded["priorities"] = priorities
        return encoded

    def appender(self, batch: int, own_priorities: bool) -> Append:
        add = self.buffer.add
        return lambda part: add(**part)

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        if not self.prioritized:
            batch = self.buffer.sample(n)
            return {k: torch.from_numpy(batch[k]) for k in COLUMNS}, None
        batch = self.buffer.sample(n, beta=BETA)
        tensors = {k: torch.from_numpy(batch[k]) for k in COLUMNS}
        tensors["weights"] = torch.from_numpy(batch["weights"])
        return tensors, batch["indexes"]

    def update(self, handle: Any, priorities: Any) -> object:
        self.buffer.update_priorities(handle, priorities)
        return None

    def close(self) -> None:
        del self.buffer


class CpprbMpDriver(CpprbDriver):
    """The classes for several processes, in one."""

    always_shared = True
