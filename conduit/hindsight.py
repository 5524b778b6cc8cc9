"""Rewards of relabelled rows: what the core cannot compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conduit import references
from conduit.batch import Batch
from conduit.views import View
from conduit.windows import Hindsight
from conduit_store.errors import ConfigError

__all__ = ["Relabelling"]


class Relabelling:
    """Computes the rewards of a view's relabelled rows. Safe in any thread as far as the reward function is."""

    def __init__(self, view: View, table: str) -> None:
        assert isinstance(view.window, Hindsight)
        self._window = view.window
        self._where = f"window {view.name!r} of table {table!r}"
        self._reward: Callable[..., Any] | None = None

    def use(self, function: Callable[..., Any]) -> None:
        """Call this function from now on, in this process."""
        self._reward = function

    def prepare(self) -> None:
        """Find the reward function.

        Raises:
            ConfigError: this process has none; says how to give it.
        """
        if self._reward is None:
            self._reward = references.load(str(self._window.reward), self._where)

    def apply(self, batch: Batch) -> None:
        """Put the new rewards into a batch that was just drawn.

        Raises:
            ConfigError: the function did not return one number a step. And what the function raises. The batch then
                counts as drawn.
        """
        self.prepare()
        window = self._window
        chosen = np.flatnonzero(batch["relabelled"])
        if not len(chosen):
            return
        desired = batch[window.goal][chosen]
        if window.n == 1:
            batch["reward"][chosen] = self._rewards(batch[f"next_{window.achieved}"][chosen], desired)
            return
        steps = batch["n_step"][chosen]
        places = np.arange(window.n) < steps[:, None]
        rewards = np.zeros(places.shape)
        wanted = desired[np.repeat(np.arange(len(chosen)), steps)]
        rewards[places] = self._rewards(batch["achieved"][chosen][places], wanted)
        batch["reward"][chosen] = rewards @ window.gamma ** np.arange(window.n)

    def _rewards(self, achieved: Any, desired: Any) -> Any:
        assert self._reward is not None
        found = np.asarray(self._reward(achieved, desired))
        if found.shape != (len(desired),) or found.dtype.kind not in "biuf":
            raise ConfigError(
                f"the reward function of {self._where} returned {found.dtype} of shape {found.shape} for "
                f"{len(desired)} goals: return one number each, ({len(desired)},)"
            )
        return found
