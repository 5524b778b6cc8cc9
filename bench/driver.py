"""The small interface behind which the product, the baseline and the peers are measured."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from bench.workloads import Rows, Workload


class Append(Protocol):
    def __call__(self, encoded: Any, /) -> object: ...


class Driver(Protocol):
    """A replay table of one library. Constructed once a process; one thread.

    `start_method` is how its writer processes are started ("spawn" or "fork"): the driver itself is sent to them.
    """

    start_method: str

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        """An empty table of `capacity` rows; `shared` when other processes will append to it."""

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        """The form in which this library likes to be given these rows (not timed): views of the arrays, no more."""

    def appender(self, batch: int, own_priorities: bool) -> Append:
        """What appends one encoded part of `batch` rows. Timed: all that the library needs from arrays on."""
        ...

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        """`n` rows as torch tensors by column, with weights where prioritized, and what `update` needs to name them."""
        ...

    def update(self, handle: Any, priorities: Any) -> object:
        """Give sampled rows new priorities, float32 (n,)."""

    def close(self) -> None:
        """Free everything."""


CLASSES = {
    "conduit": "bench.conduit_cases:ConduitDriver",
    "numpy-ring": "bench.numpy_ring:NumpyRing",
    "cpprb": "bench.peers.cpprb_driver:CpprbDriver",
    "torchrl": "bench.peers.torchrl_driver:TorchrlDriver",
    "tianshou": "bench.peers.tianshou_driver:TianshouDriver",
    "cpprb-mp": "bench.peers.cpprb_driver:CpprbMpDriver",
    "torchrl-memmap": "bench.peers.torchrl_driver:TorchrlMemmapDriver",
    "sb3": "bench.peers.sb3_driver:Sb3Driver",
    "flashbax": "bench.peers.flashbax_driver:FlashbaxDriver",
    "reverb": "bench.peers.reverb_driver:ReverbDriver",
    "rllib": "bench.peers.rllib_driver:RllibDriver",
    "transferqueue": "bench.peers.transferqueue_driver:TransferQueueDriver",
    "flight": "bench.peers.flight_driver:FlightDriver",
}
IMPORTS = {
    "conduit": "conduit",
    "numpy-ring": "numpy",
    "cpprb": "cpprb",
    "torchrl": "torchrl.data",
    "tianshou": "tianshou.data",
    "cpprb-mp": "cpprb",
    "torchrl-memmap": "torchrl.data",
    "sb3": "stable_baselines3",
    "flashbax": "flashbax",
    "reverb": "reverb",
    "rllib": "ray.rllib",
    "transferqueue": "transfer_queue",
    "flight": "pyarrow.flight",
}


def load(name: str) -> type[Driver]:
    """The driver class; imports the library."""
    module, _, attribute = CLASSES[name].partition(":")
    driver: type[Driver] = getattr(importlib.import_module(module), attribute)
    return driver


def one_row(rows: Rows) -> dict[str, Any]:
    """The single row of `rows` without its leading axis: arrays and NumPy scalars."""
    return {name: values[0] for name, values in rows.items()}
