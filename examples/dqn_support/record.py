"""What a run of the DQN example was: its episodes, and its time by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import conduit

WORK = ("learn", "priorities", "publish")  # what the learner does beside waiting for experience
WINDOW = 20  # episodes in the mean that decides whether the task is solved


class Clock:
    """Seconds and calls by named stage, on one thread: `with clock("learn"): ...`."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget what was counted and begin at zero."""
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def stop(self) -> None:
        """Hold `elapsed` where it is."""
        self._stopped = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds from start to stop, or to now."""
        return (self._stopped or time.perf_counter()) - self._started

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the block's time, also when it raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started
            self.calls[stage] = self.calls.get(stage, 0) + 1


@dataclass(frozen=True)
class Episode:
    """One finished training episode."""

    at_s: float  # since the start
    actor: int
    value: float  # undiscounted return


@dataclass(frozen=True)
class Stage:
    """Time spent on one kind of work."""

    name: str
    seconds: float
    calls: int = 0  # 0: not counted
    exposed: bool = False  # the learner waited for experience meanwhile


@dataclass
class Run:
    """Everything that the report tells about one run."""

    seed: int
    target: float
    budget: int  # env steps
    episodes: list[Episode] = field(default_factory=list)
    steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    learner: tuple[Stage, ...] = ()  # sums to `seconds`
    actors: tuple[Stage, ...] = ()  # mean over the actors, sums to `seconds`

    def record(self, news: Sequence[Mapping[str, Any]], at_s: float, steps: int, updates: int) -> None:
        """Take what happened since the last call; episodes after the one that solved it do not count."""
        self.steps, self.updates, self.seconds = steps, updates, at_s
        for line in news:
            if not self.solved:
                self.episodes.append(Episode(at_s, line["actor"], line["return"]))

    @property
    def mean_return(self) -> float:
        """Mean return of the last `WINDOW` training episodes, of fewer at the start, 0 without any."""
        last = [episode.value for episode in self.episodes[-WINDOW:]]
        return sum(last) / max(1, len(last))

    @property
    def solved(self) -> bool:
        """Whether the last `WINDOW` training episodes reach the target on average."""
        return len(self.episodes) >= WINDOW and self.mean_return >= self.target

    @property
    def exposed_s(self) -> float:
        """Seconds that the learner waited for experience."""
        return sum(stage.seconds for stage in self.learner if stage.exposed)

    @property
    def outcome(self) -> str:
        """One word for how it ended."""
        return "solved" if self.solved else "interrupted" if self.interrupted else "not solved"

    @property
    def exit_status(self) -> int:
        """0 solved, 130 interrupted before that, 1 neither."""
        return {"solved": 0, "interrupted": 130, "not solved": 1}[self.outcome]

    def finish(
        self,
        clock: Clock,
        replay: conduit.TableMetrics,
        actors: Sequence[Mapping[str, float]],
        *,
        interrupted: bool,
    ) -> None:
        """Work out the stages from the learner's clock, the table's metrics and what the actors told."""
        self.seconds, self.interrupted = clock.elapsed, interrupted
        self.learner = _complete(self.seconds, learner_stages(clock, replay))
        self.actors = _complete(self.seconds, actor_stages(actors))


def learner_stages(clock: Clock, replay: conduit.TableMetrics) -> list[Stage]:
    """The stages of the learner; what `sample()` spent outside draw, gather and limiter is its hand-over."""
    samples = clock.calls.get("sample", 0)
    hand_over = clock.seconds.get("sample", 0.0) - replay.draw_s - replay.gather_s - replay.sample_wait_s
    waited = clock.seconds.get("wait", 0.0) + replay.sample_wait_s
    return [
        Stage("draw", replay.draw_s, samples, exposed=True),
        Stage("gather", replay.gather_s, samples, exposed=True),
        Stage("hand over", max(0.0, hand_over), samples, exposed=True),
        Stage("wait", waited, exposed=True),
        *(Stage(name, clock.seconds.get(name, 0.0), clock.calls.get(name, 0)) for name in WORK),
    ]


def actor_stages(actors: Sequence[Mapping[str, float]]) -> list[Stage]:
    """The stages of the actors, each the mean over those that told."""
    told = [spent for spent in actors if spent]
    if not told:
        return []
    mean = {key: sum(spent[key] for spent in told) / len(told) for key in told[0]}
    return [
        Stage("play", mean["play_s"], int(mean["appends"])),
        Stage("ingest", mean["ingest_s"], int(mean["appends"])),
        Stage("weights", mean["control_s"]),
        Stage("paused", mean["paused_s"]),
    ]


def _complete(seconds: float, stages: list[Stage]) -> tuple[Stage, ...]:
    return (*stages, Stage("other", max(0.0, seconds - sum(stage.seconds for stage in stages))))
