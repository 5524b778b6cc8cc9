"""torchrl: tensordict storage, C++ segment trees. In several processes: memory-mapped storage with shared=True."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from typing import Any

import torch

from bench.driver import Append
from bench.workloads import COLUMNS, Rows, Workload

ALPHA, BETA = 0.6, 0.4


def load_extension() -> None:
    """Load torchrl's C++ extension before torchrl looks for it.

    The 0.14.1 wheel was built against a torch later than 2.13.0, the last with a CPU build among our pins. Two of
    its 88 torch symbols are missing there, both of autograd functions (`safetanh`) that replay never calls. Python
    resolves all symbols at load and gives up; bound when first called, the segment trees work.
    """
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        importlib.import_module("torchrl._torchrl")
    finally:
        sys.setdlopenflags(flags)


load_extension()  # here, so that it also happens before a writer process unpickles a buffer


def memory_folder() -> str | None:
    """A tmpfs for the memory maps where there is one: nothing then goes to a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class TorchrlDriver:
    """TensorDictPrioritizedReplayBuffer or TensorDictReplayBuffer."""

    start_method = "spawn"
    always_mapped = False

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        data: Any = importlib.import_module("torchrl.data")
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        if shared or self.always_mapped:
            self.folder = tempfile.TemporaryDirectory("", "bench-torchrl-", memory_folder(), ignore_cleanup_errors=True)
            storage = data.LazyMemmapStorage(capacity, scratch_dir=self.folder.name)
        else:
            storage = data.LazyTensorStorage(capacity)
        options: dict[str, Any] = {"storage": storage, "batch_size": 256, "shared": shared}
        if prioritized:
            options |= {"alpha": ALPHA, "beta": BETA}
            if shared:
                options["sync"] = False
        name = "TensorDictPrioritizedReplayBuffer" if prioritized else "TensorDictReplayBuffer"
        self.buffer: Any = getattr(data, name)(**options)
        self.prioritized = prioritized

    def __getstate__(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "prioritized": self.prioritized, "folder": None}

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        if priorities is not None:
            raise ValueError("torchrl takes no priorities with new rows, short of storing them as one more column")
        return rows

    def appender(self, batch: int, own_priorities: bool) -> Append:
        from_dict = importlib.import_module("tensordict").TensorDict
        tensor, add, extend = torch.from_numpy, self.buffer.add, self.buffer.extend
        if batch == 1:
            return lambda rows: add(from_dict({k: tensor(v) for k, v in rows.items()}, batch_size=[1])[0])
        return lambda rows: extend(from_dict({k: tensor(v) for k, v in rows.items()}, batch_size=[batch]))

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        batch = self.buffer.sample(n)
        tensors = {k: batch[k] for k in COLUMNS}
        if not self.prioritized:
            return tensors, None
        tensors["weights"] = batch["priority_weight"]
        return tensors, batch["index"]

    def update(self, handle: Any, priorities: Any) -> object:
        self.buffer.update_priority(handle, torch.from_numpy(priorities))
        return None

    def close(self) -> None:
        del self.buffer
        if self.folder:
            self.folder.cleanup()


class TorchrlMemmapDriver(TorchrlDriver):
    """Memory-mapped storage, in one process."""

    always_mapped = True
