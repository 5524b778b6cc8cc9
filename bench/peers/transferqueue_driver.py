"""TransferQueue: rows by key in storage units that are Ray actors, behind ZeroMQ. No replay buffer of its own:

keys are drawn uniformly here. Its priorities would be tags that its user draws by.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import numpy as np
import torch

from bench.driver import Append
from bench.workloads import COLUMNS, Rows, Workload


class TransferQueueDriver:
    """The kv interface, one partition."""

    start_method = "spawn"

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        if prioritized or shared:
            raise ValueError("TransferQueue draws no rows by priority")
        os.environ["TQ_LOGGING_LEVEL"] = "ERROR"
        self.ray: Any = importlib.import_module("ray")
        self.ray.init(num_cpus=4, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        self.queue: Any = importlib.import_module("transfer_queue")
        self.queue.init()
        self.capacity, self.written = capacity, 0
        self.chance = np.random.default_rng(0)

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        return {name: torch.from_numpy(values) for name, values in rows.items()}

    def appender(self, batch: int, own_priorities: bool) -> Append:
        tensordict: Any = importlib.import_module("tensordict")

        def append(part: dict[str, torch.Tensor]) -> None:
            keys = [str((self.written + i) % self.capacity) for i in range(batch)]
            fields = tensordict.TensorDict(part, batch_size=batch)
            self.queue.kv_batch_put(keys=keys, partition_id="rows", fields=fields)
            self.written += batch

        return append

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        drawn = self.chance.choice(min(self.written, self.capacity), n, replace=False)
        batch = self.queue.kv_batch_get(keys=[str(key) for key in drawn], partition_id="rows")
        columns = {name: batch[name] for name in COLUMNS}
        return {name: torch.stack(v.unbind()) if v.is_nested else v for name, v in columns.items()}, None

    def update(self, handle: Any, priorities: Any) -> object:
        raise ValueError("TransferQueue has no priorities")

    def close(self) -> None:
        self.ray.shutdown()
