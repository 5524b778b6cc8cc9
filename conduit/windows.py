"""Windows: what one sample covers. Frozen records, given to `create_table`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from conduit_store.errors import ConfigError

__all__ = ["NStep", "Row", "Transition", "Window"]


@dataclass(frozen=True, slots=True)
class Row:
    """Rows as they were stored."""


@dataclass(frozen=True, slots=True)
class NStep:
    """n-step transitions over the episodes of a table.

    `reward` is the sum of gamma^k * r over m = min(n, steps left in the episode) steps, `next_obs` the
    observation after them, `discount` gamma^m, and 0 only where the window ends in `terminated`; `n_step` is m.

    Source: R. S. Sutton, "Learning to predict by the methods of temporal differences", 1988.

    Raises:
        ConfigError: n not in [1, 1024], gamma not in [0, 1].
    """

    n: int
    gamma: float = 0.99

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 1024:
            raise ConfigError(f"n is {self.n}: give a number of steps from 1 to 1024")
        if not (math.isfinite(self.gamma) and 0.0 <= self.gamma <= 1.0):
            raise ConfigError(f"gamma is {self.gamma}: give a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Transition:
    """One-step transitions: `NStep(1, gamma)`."""

    gamma: float = 0.99

    def __post_init__(self) -> None:
        NStep(1, self.gamma)


Window = Row | Transition | NStep
