"""Windows: what one sample covers. Frozen records, given to `create_table`."""

from __future__ import annotations

from dataclasses import dataclass

from conduit.values import real_number, whole_number

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
        object.__setattr__(self, "n", whole_number("n", self.n, 1, 1024))
        object.__setattr__(self, "gamma", real_number("gamma", self.gamma, 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Transition:
    """One-step transitions: `NStep(1, gamma)`."""

    gamma: float = 0.99

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", real_number("gamma", self.gamma, 0.0, 1.0))


Window = Row | Transition | NStep
