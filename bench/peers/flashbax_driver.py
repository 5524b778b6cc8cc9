"""flashbax: jitted JAX item buffers on the CPU, tensors through DLPack. One process only."""

from __future__ import annotations

import importlib
import os
from typing import Any

from torch.utils.dlpack import from_dlpack

from bench.driver import Append
from bench.workloads import COLUMNS, Rows, Workload

ALPHA, BETA = 0.6, 0.4
ALIGN = 512  # capacity is a multiple of what is added at a time


class FlashbaxDriver:
    """Prioritised or plain item buffer; the state is donated, so that nothing is copied with an addition."""

    start_method = "spawn"

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        if shared:
            raise ValueError("no other process can see a flashbax buffer")
        os.environ["JAX_PLATFORMS"] = "cpu"
        self.jax: Any = importlib.import_module("jax")
        flashbax: Any = importlib.import_module("flashbax")
        make = flashbax.make_prioritised_item_buffer if prioritized else flashbax.make_item_buffer
        options: dict[str, Any] = {"max_length": capacity // ALIGN * ALIGN, "min_length": 1, "add_batches": True}
        if prioritized:
            options["priority_exponent"] = ALPHA
        self.make: Any = lambda n: make(sample_batch_size=n, **options)
        self.prioritized, self.largest = prioritized, capacity // ALIGN * ALIGN
        numpy: Any = importlib.import_module("jax.numpy")
        example = {
            name: numpy.zeros(shape, "i4" if dtype == "i8" else dtype)
            for name, (shape, dtype) in workload.columns.items()
        }
        buffer = self.make(32)
        self.state: Any = buffer.init(example)
        self.add: Any = self.jax.jit(buffer.add, donate_argnums=0)
        self.set: Any = self.jax.jit(buffer.set_priorities, donate_argnums=0) if prioritized else None
        self.samplers: dict[int, Any] = {}
        self.key: Any = self.jax.random.PRNGKey(0)
        self.draws = self.size = 0

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        if priorities is not None:
            raise ValueError("flashbax takes no priorities with new rows")
        return {name: values.astype("i4") if values.dtype == "i8" else values for name, values in rows.items()}

    def appender(self, batch: int, own_priorities: bool) -> Append:
        return self._append

    def _append(self, part: Rows) -> None:
        self.state = self.add(self.state, part)
        self.jax.block_until_ready(self.state)
        self.size = min(self.largest, self.size + len(part["reward"]))

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        if n not in self.samplers:
            self.samplers[n] = self.jax.jit(self.make(n).sample)
        self.draws += 1
        batch = self.jax.block_until_ready(self.samplers[n](self.state, self.jax.random.fold_in(self.key, self.draws)))
        tensors: dict[str, Any] = {name: from_dlpack(batch.experience[name]) for name in COLUMNS}
        if not self.prioritized:
            return tensors, None
        weights = (from_dlpack(batch.probabilities) * self.size) ** -BETA  # it leaves them to its user
        tensors["weights"] = weights / weights.max()
        return tensors, batch.indices

    def update(self, handle: Any, priorities: Any) -> object:
        self.state = self.jax.block_until_ready(self.set(self.state, handle, priorities))
        return None

    def close(self) -> None:
        del self.state
