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

__all__ = ["EXPERIENCE", "STAGES", "StepClock"]

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
            writer = getattr(group.local_env_runner, "_conduit_writer", None)
            if isinstance(writer, FragmentWriter | EpisodeWriter):
                self._wrap(writer, "write", "add")
        self._wrap_aggregate(algorithm.metrics)
        if isinstance(learner, BatchLearner):
            self._wrap(learner, "_from_delivery", "batch")
        self._wrap_step(algorithm)

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
                stages = {stage: self._now.get(stage, 0.0) * 1e3 for stage in STAGES[:-1]}
                self.steps.append({**stages, "rest": whole - sum(stages.values()), "step": whole})
            return result

        algorithm.training_step = timed
