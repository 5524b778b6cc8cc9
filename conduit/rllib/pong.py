"""Pong of the Arcade Learning Environment as DQN is used to see it: for timing, and for what it takes of memory."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from conduit.rllib.frames import Frames
from conduit_store.arrays import Array
from conduit_store.errors import MissingExtra

try:
    import ale_py
    import gymnasium as gym
except ImportError as error:
    raise MissingExtra(f"Pong needs ale-py and gymnasium ({error}). Run `pip install 'conduit-edp[demo]'`") from error

__all__ = ["FRAMES", "Pong"]

_STACK = 4
FRAMES = Frames(_STACK, scale=1 / 128, offset=-1.0)  # what `attach` has to know of them
_HEIGHT, _WIDTH = 210, 160  # of a screen
_SIZE = 84
_SKIP = 4  # frames that an action lasts; of the last two the brighter pixels are seen


class Pong(gym.Env):  # type: ignore[type-arg]
    """Stacks of the last four frames, float32 (84, 84, 4); at an episode's begin its first frame four times.

    Pixels are byte / 128 - 1, as RLlib's own wrappers have them: its networks take no bytes.

    Source: V. Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015.
    """

    observation_space = gym.spaces.Box(-1, 1, (_SIZE, _SIZE, _STACK), np.float32)
    action_space = gym.spaces.Discrete(6)

    def __init__(self, config: Any = None) -> None:
        gym.register_envs(ale_py)
        self._env: Any = gym.make("ALE/Pong-v5", obs_type="grayscale", frameskip=1, repeat_action_probability=0.0)
        self._rows, self._columns = (np.arange(_SIZE) * of // _SIZE for of in (_HEIGHT, _WIDTH))
        self._frames: deque[Array] = deque(maxlen=_STACK)

    def _seen(self, *screens: Array) -> Array:
        self._frames.append(np.maximum.reduce(screens)[np.ix_(self._rows, self._columns)])
        return np.stack(self._frames, axis=-1).astype(np.float32) / np.float32(128) - np.float32(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode."""
        screen, _ = self._env.reset(seed=seed)
        for _ in range(_STACK - 1):
            self._seen(screen)
        return self._seen(screen), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take an action for four frames."""
        total, terminated, truncated = 0.0, False, False
        screens: deque[Array] = deque(maxlen=2)
        for _ in range(_SKIP):
            screen, reward, terminated, truncated, _ = self._env.step(int(action))
            screens.append(screen)
            total += float(reward)
            if terminated or truncated:
                break
        return self._seen(*screens), total, bool(terminated), bool(truncated), {}

    def close(self) -> None:
        """Let go of the emulator."""
        self._env.close()
