"""What TorchRL looks at of a buffer beside its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchrl.envs import Transform

if TYPE_CHECKING:
    from conduit.torchrl.buffer import ReplayBuffer

__all__ = ["Call", "Storage"]


class Storage:
    """The rows, as TorchRL asks after a storage: how many there are, how many fit, on which device."""

    initialized = True  # rows that come from any process find the table, or make it
    ndim = 1
    device = torch.device("cpu")

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    @property
    def max_size(self) -> int:
        """The most rows that are live at a time."""
        return self._buffer.max_size

    def __len__(self) -> int:
        return len(self._buffer)


class Call(Transform):  # type: ignore[misc]
    """A plain function of a TensorDict as a transform of what is sampled."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, tensordict: Any) -> Any:
        """Return what the function makes of it."""
        return self._function(tensordict)
