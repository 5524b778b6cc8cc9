"""Where batches go: a seam of four calls between the loader and what it knows of a device."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from conduit_store.errors import ConfigError, MissingExtra
from conduit_store.native import native

if TYPE_CHECKING:
    import torch

__all__ = ["Device", "TorchDevice", "open_device", "pinned_pool"]


class Device(Protocol):
    """What a loader asks of a device. `copy` runs in the preparation thread, `hand_over` in the caller's."""

    def pin(self, address: int, size: int) -> None:
        """Make host memory fit for copies that do not block. Once for each staging buffer."""

    def unpin(self, address: int, size: int) -> None:
        """Undo `pin`, before the memory is freed."""

    def copy(self, tensors: dict[str, torch.Tensor]) -> tuple[dict[str, Any], Any]:
        """Begin to copy tensors in host memory; return those on the device and a token for `hand_over`.

        The host memory stays as it is while any of `tensors` lives: keep them until the copy has ended.
        """
        ...

    def hand_over(self, tensors: dict[str, Any], token: Any) -> None:
        """Order what the calling thread does next after the copy, without waiting for it where that is possible."""


class TorchDevice:
    """A CUDA device through torch: pinned staging memory, a side stream for copies, an event a batch.

    On "cpu" nothing is pinned and nothing copied: the tensors share the batch's memory, which is private anyway.
    """

    def __init__(self, device: str | torch.device) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtra("loader(device=...) needs torch: pip install 'conduit-edp[torch]'") from error
        self._torch: Any = torch
        try:
            self._device = torch.device(device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"device {device!r}: {error}") from None
        if self._device.type not in ("cpu", "cuda"):
            raise ConfigError(f"device {device!r}: give 'cpu' or 'cuda:N'")
        self._side: Any = None
        self._copying: deque[tuple[Any, list[torch.Tensor]]] = deque()
        if self._device.type == "cuda":
            if not torch.cuda.is_available():
                raise ConfigError(f"device {device!r}: torch finds no CUDA here")
            self._side = self._torch.cuda.Stream(self._device)

    @property
    def pins(self) -> bool:
        """Whether staging memory must be pinned."""
        return self._side is not None

    def pin(self, address: int, size: int) -> None:
        self._check(self._torch.cuda.cudart().cudaHostRegister(address, size, 0), f"pinning {size:,} bytes")

    def unpin(self, address: int, size: int) -> None:
        self._check(self._torch.cuda.cudart().cudaHostUnregister(address), f"unpinning {size:,} bytes")

    def copy(self, tensors: dict[str, torch.Tensor]) -> tuple[dict[str, Any], Any]:
        if self._side is None:
            return tensors, None
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        with self._torch.cuda.stream(self._side):
            moved = {name: tensor.to(self._device, non_blocking=True) for name, tensor in tensors.items()}
            event = self._side.record_event()
        self._copying.append((event, list(tensors.values())))
        return moved, event

    def hand_over(self, tensors: dict[str, Any], token: Any) -> None:
        if token is None:
            return
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(token)
        for tensor in tensors.values():  # allocated on the side stream, used on this one
            tensor.record_stream(stream)

    def close(self) -> None:
        """Wait for copies that are under way: their host memory may go then."""
        if self._side is not None:
            self._side.synchronize()
        self._copying.clear()

    def _check(self, status: Any, what: str) -> None:
        if int(status) != 0:
            raise RuntimeError(f"{what} failed: CUDA error {int(status)}")


def open_device(device: Any) -> Device | None:
    """Return the seam for what a user gives: None, a name, a torch.device, or an object that is such a seam.

    Raises:
        ConfigError: no such device. MissingExtra: torch is not installed.
    """
    if device is None or hasattr(device, "hand_over"):
        return device  # type: ignore[no-any-return]
    return TorchDevice(device)


def pinned_pool(device: Device | None) -> native.StagingPool | None:
    """Return where batches for the device lie until they are copied: memory that it has pinned, None for ordinary."""
    if device is None or not getattr(device, "pins", True):
        return None
    return native.pinned_pool(device.pin, device.unpin)
