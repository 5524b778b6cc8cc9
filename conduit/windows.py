"""Windows: what one sample covers. Frozen records, given to `create_table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conduit import references
from conduit.values import check_flags, real_number, whole_number
from conduit_store.errors import ConfigError

__all__ = ["Episode", "FrameStack", "Hindsight", "NStep", "Row", "Sequence", "Transition", "Window"]

_MAX_STEPS = 65_536


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


@dataclass(frozen=True, slots=True)
class Sequence:
    """`length` consecutive steps of one episode, with up to `burn_in` steps before them; for recurrent networks.

    A batch column has shape (n, burn_in + length, *row_shape), also `terminated` and `truncated`. The drawn row is the
    first step to learn from, at place `burn_in` of its sequence. `mask` bool (n, burn_in + length) says which places
    hold a step; the others are zeros: in front where the episode began less than `burn_in` steps before, behind where
    it ended. `length` int32 (n,) counts the steps to learn from. `next_obs` (n, ...) is the observation after the last.
    `state`: columns of recurrent state stored with each step, of which a batch has only that of the sequence's first
    step, (n, ...). Sequences begin at the steps of an episode whose number, from 0 at its first step, `period` divides.
    Columns whose rows vary in length are a Ragged of shape (n, burn_in + length), of no elements where no step is.

    A row can be drawn once `length` steps and the observation after them are there, or its episode has ended, as long
    as the `burn_in` steps before it, or all since the episode began, are live. `strict`: only where all
    burn_in + length steps are. `next_obs=False` leaves that column out, and needs no observation after the last step.

    Source: S. Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning", ICLR 2019.

    Raises:
        ConfigError: length or period less than 1, more than 65,536 steps, burn_in negative.
    """

    length: int
    burn_in: int = 0
    period: int = 1
    strict: bool = False
    state: tuple[str, ...] = ()
    next_obs: bool = True

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "length", whole_number("length", self.length, 1, _MAX_STEPS))
        put(self, "burn_in", whole_number("burn_in", self.burn_in, 0, _MAX_STEPS))
        put(self, "period", whole_number("period", self.period, 1, 1 << 31))
        put(self, "state", _names("state", self.state))
        check_flags(strict=self.strict, next_obs=self.next_obs)


@dataclass(frozen=True, slots=True)
class Episode:
    """Whole episodes of up to `max_length` steps, drawn by their first row once they have ended.

    Columns as of Sequence: (n, max_length, *row_shape) with `mask`, `length` and `next_obs`, zeros behind the end. A
    longer episode comes in pieces of `max_length` steps, each drawn by its own first row: it is
    Sequence(max_length, period=max_length) of episodes that have ended. An episode whose first row has been evicted is
    not drawn.

    Raises:
        ConfigError: max_length not in [1, 65,536].
    """

    max_length: int
    state: tuple[str, ...] = ()
    next_obs: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_length", whole_number("max_length", self.max_length, 1, _MAX_STEPS))
        object.__setattr__(self, "state", _names("state", self.state))
        check_flags(next_obs=self.next_obs)


@dataclass(frozen=True, slots=True)
class FrameStack:
    """n-step transitions whose observations are the last `k` frames; the table stores each frame once.

    `obs` and `next_obs` have shape (n, k, *frame_shape), the newest frame last; the other columns are those of
    NStep(n, gamma). Where an episode has fewer frames, its first is repeated in front, or with pad="zeros" zeros are.
    A stack never holds frames of another episode; a row whose frames have been evicted is not drawn.

    Source: V. Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015.

    Raises:
        ConfigError: k or n not in [1, 1024], gamma not in [0, 1], an unknown pad.
    """

    k: int
    n: int = 1
    gamma: float = 0.99
    pad: str = "repeat"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole_number("k", self.k, 1, 1024))
        object.__setattr__(self, "n", whole_number("n", self.n, 1, 1024))
        object.__setattr__(self, "gamma", real_number("gamma", self.gamma, 0.0, 1.0))
        if not isinstance(self.pad, str) or self.pad not in ("repeat", "zeros"):
            raise ConfigError(f"pad is {self.pad!r}: give 'repeat' or 'zeros'")


@dataclass(frozen=True, slots=True)
class Hindsight:
    """n-step transitions, a share of them with a goal that was achieved later in the same episode.

    With probability `ratio` a drawn row is relabelled: `goal` and its part of `next_obs` become the `achieved` of an
    observation of the episode, and `reward` what `reward(achieved, desired)` says: arrays (m, *goal_shape) of the goals
    achieved after each step and wanted, a `Ragged` of m rows where they vary in length, -> (m,). The mask `relabelled`
    bool (n,) says which rows; `terminated` and `discount` stay. `strategy`: "future": an observation after this step or
    a later one, each as likely, among those that are there; "final": the episode's last; "episode": any but the first,
    also earlier ones. The latter two draw only from episodes that have ended, "episode" only while they are live as a
    whole.

    `reward` is called in the process that samples, and kept in the store as "module:function", which is what may be
    given as well. Another process imports it when it first samples; where it cannot, as of a function in a script or in
    another function, give it: `table.use_reward(function)`.

    Source: M. Andrychowicz et al., "Hindsight experience replay", NIPS 2017.

    Nothing is relabelled in `table.rows`. With n > 1 `achieved` (n, n, *goal_shape) holds the goals achieved after each
    step, zeros behind the last.

    Raises:
        ConfigError: an unknown strategy, ratio not in [0, 1], a reward that is neither, goal or achieved no name, n or
            gamma not allowed.
    """

    reward: Callable[[Any, Any], Any] | str
    strategy: str = "future"
    ratio: float = 0.8
    goal: str = "obs/desired_goal"
    achieved: str = "obs/achieved_goal"
    n: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "reward", references.name_of(self.reward))
        if not isinstance(self.strategy, str) or self.strategy not in ("future", "final", "episode"):
            raise ConfigError(f"strategy is {self.strategy!r}: give 'future', 'final' or 'episode'")
        for what in ("goal", "achieved"):
            if not isinstance(getattr(self, what), str):
                raise ConfigError(f"{what} is {getattr(self, what)!r}: give the name of a column, as 'obs/{what}'")
        put(self, "ratio", real_number("ratio", self.ratio, 0.0, 1.0))
        put(self, "n", whole_number("n", self.n, 1, 1024))
        put(self, "gamma", real_number("gamma", self.gamma, 0.0, 1.0))


Window = Row | Transition | NStep | Sequence | Episode | FrameStack | Hindsight


def _names(what: str, names: Any) -> tuple[str, ...]:
    listed = isinstance(names, list | tuple)
    if not listed or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{what} is {names!r}: give a tuple of column names")
    return tuple(names)
