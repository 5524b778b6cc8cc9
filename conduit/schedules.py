"""Schedules: settings that change as batches are drawn. Frozen records, given to samplers."""

from __future__ import annotations

from dataclasses import dataclass

from conduit.values import real_number, whole_number
from conduit_store.errors import ConfigError

__all__ = ["Exponential", "Linear", "Schedule"]

_MAX_BATCHES = 1 << 53  # counted in doubles


@dataclass(frozen=True, slots=True)
class Linear:
    """From `start` to `end` in equal steps, one a batch; `end` from batch number `batches` on.

    Batches are numbered from 0 as they are drawn, over all processes that sample the window. A loader's batch b is that
    number b whatever its depth; where it is drawn again, it keeps its number.

        samplers.Prioritized(beta=schedules.Linear(0.4, 1.0, 100_000))

    Raises:
        ConfigError: a number that is not finite, or fewer batches than 1.
    """

    start: float
    end: float
    batches: int

    def __post_init__(self) -> None:
        _check(self, -1e300)

    def __call__(self, batch: int) -> float:
        """Return the value for batch number `batch`."""
        if batch >= self.batches:
            return self.end
        return self.start + (self.end - self.start) * (batch / self.batches)


@dataclass(frozen=True, slots=True)
class Exponential:
    """From `start` to `end` by the same factor each batch; `end` from batch number `batches` on. See `Linear`.

    Raises:
        ConfigError: start or end is not above 0 or not finite, or fewer batches than 1.
    """

    start: float
    end: float
    batches: int

    def __post_init__(self) -> None:
        _check(self, 0.0)
        if not (self.start > 0 and self.end > 0):
            raise ConfigError(f"Exponential goes from {self.start} to {self.end}: both must be above 0")

    def __call__(self, batch: int) -> float:
        """Return the value for batch number `batch`."""
        if batch >= self.batches:
            return self.end
        return self.start * (self.end / self.start) ** (batch / self.batches)


def _check(schedule: Linear | Exponential, least: float) -> None:
    kind = type(schedule).__name__
    for name in ("start", "end"):
        value = real_number(f"{kind}.{name}", getattr(schedule, name), least, 1e300)
        object.__setattr__(schedule, name, value)
    object.__setattr__(schedule, "batches", whole_number(f"{kind}.batches", schedule.batches, 1, _MAX_BATCHES))


Schedule = Linear | Exponential
