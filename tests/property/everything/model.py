"""What a table of episodes may hand out, from first principles: which rows can be drawn, and what their windows hold.

The model knows the episodes as they were written, how often each step was drawn, and which advantages were rewritten
since. It doesn't know which rows have been evicted: that it asks the table, and says what follows from it. It shares
nothing with the table's code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from conduit import windows
from tests.property.everything.shapes import SPAN, Window, advantage_of


@dataclass(eq=False)
class Episode:
    number: int
    steps: int = 0
    end: str = ""  # the flag of its last step: "", "terminated" or "truncated"
    final: bool = False  # the observation after its last step is there: nothing more comes
    cut: bool = False  # its writer has gone

    @property
    def next(self) -> int:
        """The number of the observation that comes next."""
        return self.number * SPAN + self.steps

    @property
    def over(self) -> bool:
        return self.final or self.cut

    def flag(self, step: int, which: str) -> bool:
        """Whether a step bears the flag "terminated" or "truncated"."""
        return step == self.steps - 1 and self.end == which


@dataclass(frozen=True)
class Kind:
    """What of a window decides where it may begin and how far it goes, whatever kind it is."""

    reach: int  # steps from the drawn one on, if the episode has as many
    before: int = 0  # steps before the drawn one, if the episode has as many
    period: int = 1  # the steps that can be drawn
    next_obs: bool = True  # with the observation after the last step
    whole: bool = False  # only of episodes that are over
    strict: bool = False  # only where all `before` and `reach` steps are


def kind_of(window: Window) -> Kind:
    match window:
        case windows.Row():
            return Kind(1, next_obs=False)
        case windows.Sequence():
            return Kind(window.length, window.burn_in, window.period, window.next_obs, strict=window.strict)
        case windows.Episode():
            return Kind(window.max_length, period=window.max_length, next_obs=window.next_obs, whole=True)
        case windows.FrameStack():
            return Kind(window.n, window.k - 1)
        case windows.NStep():
            return Kind(window.n)
        case windows.Transition():
            return Kind(1)


class Model:
    def __init__(self, max_times_sampled: int | None) -> None:
        self.episodes: dict[int, Episode] = {}
        self._most = max_times_sampled
        self._draws: dict[int, int] = {}
        self._rewritten: dict[int, float] = {}

    def begin(self) -> Episode:
        episode = Episode(len(self.episodes) + 1)
        self.episodes[episode.number] = episode
        return episode

    @property
    def steps(self) -> int:
        """All that were ever written."""
        return sum(episode.steps for episode in self.episodes.values())

    def find(self, number: int) -> tuple[Episode, int]:
        """The episode of an observation, and its place in it."""
        return self.episodes[number // SPAN], number % SPAN

    def is_step(self, number: int) -> bool:
        """Whether it is a step that may still be drawn: neither a final observation nor one drawn often enough."""
        episode, step = self.find(number)
        return step < episode.steps and not self.spent(number)

    def spent(self, number: int) -> bool:
        return self._most is not None and self._draws.get(number, 0) >= self._most

    def drawn(self, number: int) -> None:
        assert not self.spent(number), f"{number} was drawn more than {self._most} times"
        self._draws[number] = self._draws.get(number, 0) + 1

    def rewrite(self, number: int, advantage: float) -> None:
        """A row that is spent has gone: there is nothing to rewrite."""
        if not self.spent(number):
            self._rewritten[number] = advantage

    def advantage(self, number: int) -> float | None:
        return self._rewritten.get(number, advantage_of(number))

    def extent(self, window: Window, number: int) -> int:
        """How many steps a window has from the drawn one on, as far as its episode has been written."""
        kind, (episode, step) = kind_of(window), self.find(number)
        # Without the observation after it, the last step ends no window that has one.
        there = episode.steps - step - (kind.next_obs and not episode.final)
        return max(0, min(kind.reach, there))

    def complete(self, window: Window, number: int) -> bool:
        """Whether the window of a live step is there, were all rows before it still live."""
        kind, (episode, step) = kind_of(window), self.find(number)
        extent = self.extent(window, number)
        if not self.is_step(number) or step % kind.period or extent == 0:
            return False
        if kind.strict and (step < kind.before or extent < kind.reach):
            return False
        return episode.over or (extent == kind.reach and not kind.whole)

    def drawable(self, window: Window, number: int, live: Collection[int]) -> bool:
        """Whether a live row can be drawn: its window is complete, and the rows before it that it needs are live."""
        step = number % SPAN
        before = range(number - min(kind_of(window).before, step), number)
        return self.complete(window, number) and all(earlier in live for earlier in before)
