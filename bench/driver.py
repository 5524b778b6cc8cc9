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
}
IMPORTS = {
    "conduit": "conduit",
    "numpy-ring": "numpy",
    "cpprb": "cpprb",
    "torchrl": "torchrl.data",
    "tianshou": "tianshou.data",
}


def load(name: str) -> type[Driver]:
    """The driver class; imports the library."""
    module, _, attribute = CLASSES[name].partition(":")
    driver: type[Driver] = getattr(importlib.import_module(module), attribute)
    return driver


def one_row(rows: Rows) -> dict[str, Any]:
    """The single row of `rows` without its leading axis: arrays and NumPy scalars."""
    return {name: values[0] for name, values in rows.items()}
