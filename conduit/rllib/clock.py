"""Where a training step's time goes, by a clock of our own around the same calls of stock RLlib and of Conduit.

RLlib's own timers are moving averages over windows that hide what a single step costs. Here every call that belongs
to a stage is timed, and a stage inside another (the connector inside the update) is taken off the outer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from conduit.rllib.ingest import FragmentWriter
from conduit.rllib.learner import BatchLearner
from conduit.rllib.rollouts import EpisodeWriter

__all__ = ["EXPERIENCE", "STAGES", "StepClock", "UpdateClock", "clock_of"]

STAGES = ("rollout", "add", "sample", "metrics", "batch", "priorities", "compute", "sync", "rest")
EXPERIENCE = ("add", "sample", "metrics", "batch", "priorities")


class StepClock:
    """Milliseconds of each training step of one algorithm, by stage; `steps` grows as it trains.

    Stages: rollout (waiting for env runners), add, sample, metrics (of the buffer), batch (episodes or a delivery into
    tensors; of PPO, which has no buffer, advantages too), priorities, compute (forward, backward, optimizer), sync
    (weights to env runners), rest (RLlib's glue: its metrics, timers and callbacks). Steps that did not learn are left
    out.
    """

    def __init__(self, algorithm: Any) -> None:
        self.steps: list[dict[str, float]] = []
        self._now: dict[str, float] = {}
        self._nested: list[float] = []
        self._wrap_calls(algorithm)
        self._wrap_step(algorithm)

    def _wrap_calls(self, algorithm: Any) -> None:
        buffer, learner = algorithm.local_replay_buffer, algorithm.learner_group._learner
        group = algorithm.env_runner_group
        if buffer is not None:
            self._wrap(buffer, "add", "add")
            self._wrap(buffer, "sample", "sample")
            self._wrap(buffer, "get_metrics", "metrics")
            self._wrap(buffer, "update_priorities", "priorities")
        self._wrap(learner, "_make_batch_if_necessary", "batch")
        self._wrap(learner, "_update", "compute")
        self._wrap(group, "sync_weights", "sync")
        if group.num_remote_workers() > 0:
            self._wrap(group, "foreach_env_runner", "rollout")
        else:
            self._wrap(group.local_env_runner, "sample", "rollout")
            self._wrap_writer(group.local_env_runner)
        self._wrap_aggregate(algorithm.metrics)
        if isinstance(learner, BatchLearner):
            self._wrap(learner, "_from_delivery", "batch")

    def _wrap_writer(self, env_runner: Any) -> None:
        """What the driver's own env runner writes is no rollout."""
        writer = getattr(env_runner, "_conduit_writer", None)
        if isinstance(writer, FragmentWriter | EpisodeWriter):
            self._wrap(writer, "write", "add")

    def _timed(self, stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            self._nested.append(0.0)
            began = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                took = time.perf_counter() - began
                inside = self._nested.pop()
                self._now[stage] = self._now.get(stage, 0.0) + took - inside
                if self._nested:
                    self._nested[-1] += took

        return timed

    def _wrap(self, owner: Any, name: str, stage: str) -> None:
        """Times `owner.name` on this instance alone; the class keeps what it has."""
        setattr(owner, name, self._timed(stage, getattr(owner, name)))

    def _wrap_aggregate(self, metrics: Any) -> None:
        """The buffer's metrics are merged into the algorithm's: that belongs to them."""
        aggregate = metrics.aggregate
        timed = self._timed("metrics", aggregate)

        def choose(*given: Any, **named: Any) -> Any:
            return (timed if named.get("key") == "replay_buffer" else aggregate)(*given, **named)

        metrics.aggregate = choose

    def _wrap_step(self, algorithm: Any) -> None:
        step = algorithm.training_step

        def timed() -> Any:
            self._now = {}
            began = time.perf_counter()
            result = step()
            whole = (time.perf_counter() - began) * 1e3
            if "compute" in self._now:
                self._add(whole)
            return result

        algorithm.training_step = timed

    def _add(self, whole: float) -> None:
        """Keep a step of so many milliseconds, and begin the next."""
        stages = {stage: self._now.get(stage, 0.0) * 1e3 for stage in STAGES[:-1]}
        self.steps.append({**stages, "rest": whole - sum(stages.values()), "step": whole})
        self._now = {}


class OfflineClock(StepClock):
    """Of CQL, whose training step is a number of updates: milliseconds of each update, averaged over a step's.

    Stages: sample (of the offline data: an iterator), batch (all of the learner's `update` around its updates: waiting
    for the next batch, tensors, RLlib's own), compute, rest.
    """

    def _wrap_calls(self, algorithm: Any) -> None:
        learner = algorithm.learner_group._learner
        self._updates = 0
        self._wrap(algorithm.offline_data, "sample", "sample")
        self._wrap(learner, "update", "batch")
        timed = self._timed("compute", learner._update)

        def counted(*given: Any, **named: Any) -> Any:
            self._updates += 1
            return timed(*given, **named)

        learner._update = counted

    def _wrap_step(self, algorithm: Any) -> None:
        super()._wrap_step(algorithm)
        step = algorithm.training_step

        def averaged() -> Any:
            self._updates, known = 0, len(self.steps)
            result = step()
            for found in self.steps[known:]:
                for stage in found:
                    found[stage] /= self._updates
            return result

        algorithm.training_step = averaged


class UpdateClock(StepClock):
    """Of IMPALA and APPO, whose training steps often have nothing to learn from: a step is what a batch takes.

    It goes from one batch that was handed to the learner thread to the next, all training steps between them together;
    a batch of n steps in t ms is n / t thousand env steps a second. Its stages are where the main thread's time went:
    rollout (asking env runners, and waiting), add (the driver's own env runner writes), sample (episodes out of Ray's
    object store; of handles, only these), batch (connectors), compute (waiting for the learner thread: to take the
    batch, and to be done), sync, rest. What the learner thread computes meanwhile takes nobody's time.
    """

    def _wrap_calls(self, algorithm: Any) -> None:
        learner, group = algorithm.learner_group._learner, algorithm.env_runner_group
        self._began = 0.0  # of the piece of a training step that is going on
        self._before = 0.0  # seconds of training steps since the last batch, which are over
        self._wrap(algorithm, "_sample_and_get_connector_states", "rollout")
        self._wrap_writer(group.local_env_runner)
        self._wrap(learner, "_make_batch_if_necessary", "batch")
        self._wrap(group, "sync_env_runner_states", "sync")
        update = self._timed("compute", learner.update)

        def handed_over(training_data: Any, **named: Any) -> Any:
            training_data.solve_refs = self._timed("sample", training_data.solve_refs)
            result = update(training_data=training_data, **named)
            now = time.perf_counter()
            whole = (self._before + now - self._began) * 1e3
            self._add(whole)
            self._before, self._began = 0.0, now
            return result

        learner.update = handed_over

    def _wrap_step(self, algorithm: Any) -> None:
        step = algorithm.training_step

        def timed() -> Any:
            self._began = time.perf_counter()
            try:
                return step()
            finally:
                self._before += time.perf_counter() - self._began

        algorithm.training_step = timed


def clock_of(algorithm: Any) -> StepClock:
    """The clock for this kind of algorithm, wrapped around its calls."""
    if algorithm.config.is_offline:
        return OfflineClock(algorithm)
    return (UpdateClock if hasattr(algorithm, "_sample_and_get_connector_states") else StepClock)(algorithm)
