"""Samplers: how rows are drawn from a table. Frozen records, given to `create_table`."""

from __future__ import annotations

from dataclasses import dataclass

from conduit.values import real_number
from conduit_store.errors import ConfigError

__all__ = ["Prioritized", "Sampler", "Uniform"]


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every row that the table's window fits is equally likely. With replacement."""


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Proportional prioritisation: row i with probability (p_i + eps)^alpha / sum; with replacement.

    Weights are (min P / P_i)^beta, 1 at most; the minimum is over the batch, or with `normaliser="table"` over all
    rows that can be drawn (as RLlib and OpenAI Baselines do). A priority of 0 (with eps 0) is never drawn. A new row
    without a priority gets the largest of the live rows, 1.0 if there is none. A sequence's priority is
    eta * max + (1 - eta) * mean of those of its steps (S. Kapturowski et al., ICLR 2019), where they are given by step.
    Source: T. Schaul et al., "Prioritized experience replay", ICLR 2016.

    Raises:
        ConfigError: alpha not in [0, 4], beta not in [0, 1], eps negative or not finite, eta not in [0, 1], an
            unknown normaliser.
    """

    alpha: float = 0.6
    beta: float = 0.4
    eps: float = 0.0
    normaliser: str = "batch"
    eta: float = 0.9

    def __post_init__(self) -> None:
        for name, high in (("alpha", 4.0), ("beta", 1.0), ("eps", 1e30), ("eta", 1.0)):
            object.__setattr__(self, name, real_number(name, getattr(self, name), 0.0, high))
        if self.normaliser not in ("batch", "table"):
            raise ConfigError(f"normaliser is {self.normaliser!r}: give 'batch' or 'table'")


Sampler = Uniform | Prioritized
