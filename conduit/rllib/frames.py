"""Observations that are stacks of frames: each frame is stored once, and stacks are put together again for a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from conduit.batch import Batch
from conduit.values import real_number, whole_number
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError

__all__ = ["Frames", "Prepared"]

_STACKED = ("obs", "next_obs")


class Prepared(NamedTuple):
    """A batch, and what a thread behind the update has made of its frames: tensors by name."""

    batch: Batch
    stacks: dict[str, Any]


@dataclass(frozen=True)
class Frames:
    """Observations of shape (..., stack) hold the last `stack` frames, the newest last; the first of an episode is
    repeated where it has fewer, as gymnasium's FrameStackObservation does.

    The newest alone is stored. With `scale` it is a byte there: observations are `byte * scale + offset` in float32, as
    byte / 128 - 1 of RLlib's own Atari wrappers is with `scale=1 / 128, offset=-1`. Every observation is checked.

    Raises:
        ConfigError: stack not in [2, 1024], scale not above 0.
    """

    stack: int
    scale: float | None = None
    offset: float = 0.0

    def __post_init__(self) -> None:
        whole_number("stack", self.stack, 2, 1024)
        if self.scale is not None and not real_number("scale", self.scale, 0.0, 1e30) > 0:
            raise ConfigError(f"scale is {self.scale}: give one above 0, or None to store frames as they are")
        real_number("offset", self.offset, -1e30, 1e30)

    def newest(self, stacks: Any, begins: bool) -> Array:
        """Return the newest frame of each of the consecutive observations `stacks`; `begins`: an episode does.

        Raises:
            ConfigError: they are no stacks of that form, or no bytes with this scale and offset.
        """
        stacks = np.asarray(stacks)
        if stacks.ndim < 2 or stacks.shape[-1] != self.stack:
            raise ConfigError(f"observations of shape {stacks.shape[1:]} have no last axis of {self.stack} frames")
        if not np.array_equal(stacks[1:, ..., :-1], stacks[:-1, ..., 1:]):
            raise ConfigError("an observation is not the one before it, moved on by one frame: leave out frames=")
        if begins and not (stacks[0] == stacks[0, ..., -1:]).all():
            raise ConfigError(
                "an episode does not begin with one frame over and over: let the wrapper repeat it, as gymnasium's "
                "FrameStackObservation(padding_type='reset') does"
            )
        frames = np.ascontiguousarray(stacks[..., -1])
        if self.scale is None:
            return frames
        levels = np.rint((frames - self.offset) / self.scale)
        stored = levels.clip(0, 255).astype(np.uint8)
        if not np.array_equal(stored.astype(np.float32) * np.float32(self.scale) + np.float32(self.offset), frames):
            raise ConfigError(f"an observation is no byte * {self.scale} + {self.offset} in float32: leave out scale=")
        return stored

    def prepared(self, batch: Batch) -> Prepared:
        """Put a batch's stacks together, as the module takes them: (n, ..., stack)."""
        import torch

        made: dict[str, Any] = {}
        for name in _STACKED:
            frames = torch.from_numpy(batch[name]).movedim(1, -1)
            stacks = torch.empty(frames.shape, dtype=frames.dtype if self.scale is None else torch.float32)
            stacks.copy_(frames)
            made[name] = stacks if self.scale is None else stacks.mul_(self.scale).add_(self.offset)
        return Prepared(batch, made)
