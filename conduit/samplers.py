"""Samplers: how rows are drawn from a table. Frozen records, given to `create_table`.

| sampler | a batch of n rows | `batch.probabilities` |
|---|---|---|
| Uniform | independent draws, each row equally likely | 1 / rows that can be drawn |
| Prioritized | independent draws, by priority | (p + eps)^alpha / sum |
| either, stratified | a draw from each of n equal slices of the mass, in random order | the same |
| WithoutReplacement | each row once an epoch, in random order | 1 / rows left in the epoch at that draw |
| Fifo | the n oldest, oldest first | 1 |
| Lifo | the n newest, newest first | 1 |

The last three draw a row at most once a batch: while fewer than n rows can be drawn `sample(n)` waits, and then raises
SampleTimeout; more than `max_size` is a CapacityError at once. `Fifo` and `Lifo` follow the eviction order, which
across writers is exact to a block.

    table = store.create_table("rollouts", schema, 2_048, sampler=samplers.WithoutReplacement())
    for batch in itertools.islice(table.loader(256), 8):  # one epoch: every row once
        ...
"""

from __future__ import annotations

from dataclasses import dataclass

from conduit.schedules import Schedule
from conduit.values import check_flags, real_number
from conduit_store.errors import ConfigError

__all__ = ["Fifo", "Lifo", "Prioritized", "Sampler", "Uniform", "WithoutReplacement"]


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every row that the table's window fits is equally likely. With replacement.

    `stratified`: see `Prioritized`.
    """

    stratified: bool = False

    def __post_init__(self) -> None:
        check_flags(stratified=self.stratified)


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Proportional prioritisation: row i with probability (p_i + eps)^alpha / sum; with replacement.

    Weights are (min P / P_i)^beta, 1 at most; the minimum is over the batch, or with `normaliser="table"` over all
    rows that can be drawn (as RLlib and OpenAI Baselines do). A priority of 0 (with eps 0) is never drawn. A new row
    without a priority gets the largest of the live rows, 1.0 if there is none. A sequence's priority is
    eta * max + (1 - eta) * mean of those of its steps (S. Kapturowski et al., ICLR 2019), where they are given by step.
    `beta` may follow a schedule (`schedules.Linear`, `schedules.Exponential`). alpha may not: a change of it weighs
    every row anew. Change it at moments of your choice with `table.reconfigure(alpha=...)`.
    `stratified`: a batch of n has one draw from each of n equal slices of the mass, in random order of the slices. So
    each draw alone has the probability reported, as without, and the batch as a whole varies less.
    Source: T. Schaul et al., "Prioritized experience replay", ICLR 2016.

    Raises:
        ConfigError: alpha not in [0, 4], beta not in [0, 1], eps negative or not finite, eta not in [0, 1], an
            unknown normaliser, alpha, eps or eta that is a schedule.
    """

    alpha: float = 0.6
    beta: float | Schedule = 0.4
    eps: float = 0.0
    normaliser: str = "batch"
    eta: float = 0.9
    stratified: bool = False

    def __post_init__(self) -> None:
        for name, high in (("alpha", 4.0), ("beta", 1.0), ("eps", 1e30), ("eta", 1.0)):
            value = getattr(self, name)
            if not isinstance(value, Schedule):
                object.__setattr__(self, name, real_number(name, value, 0.0, high))
            elif name == "beta":
                for end in ("start", "end"):
                    real_number(f"beta's {end}", getattr(value, end), 0.0, high)
            else:
                raise ConfigError(
                    f"{name} is {value!r}: a change of it weighs every row anew, so it follows no schedule. Call "
                    f"table.reconfigure({name}=...) when it shall change"
                )
        if not isinstance(self.normaliser, str) or self.normaliser not in ("batch", "table"):
            raise ConfigError(f"normaliser is {self.normaliser!r}: give 'batch' or 'table'")
        check_flags(stratified=self.stratified)


@dataclass(frozen=True, slots=True)
class WithoutReplacement:
    """Epochs: every row that can be drawn once, in random order; then all of them again.

    A row that comes during an epoch joins it. An epoch is the table's: all processes that sample this window share it.
    A batch that reaches over an epoch's end has the rest of the old one and then rows of the new one, none twice.
    A batch that was drawn and not delivered gives its rows back to the epoch, where that is known: a reader that had
    been stopped too long, a loader closed with batches prepared. Those of a killed process, or of an epoch that is over
    meanwhile, count as drawn: a row is delivered at most once an epoch.
    """


@dataclass(frozen=True, slots=True)
class Fifo:
    """The oldest rows that can be drawn, oldest first. Drawing changes nothing: the next batch has the same rows."""


@dataclass(frozen=True, slots=True)
class Lifo:
    """The newest rows that can be drawn, newest first. Drawing changes nothing: see `Fifo`."""


Sampler = Uniform | Prioritized | WithoutReplacement | Fifo | Lifo
