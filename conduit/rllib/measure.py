"""`conduit bench rllib`: where a training step's time goes, stock RLlib beside Conduit, interleaved in one run.

A cell is one algorithm, batch size, network and number of env runners. Both sides of a cell are built with the same
seed and train in turns (AB, BA, AB, ...), each step timed by a `StepClock`, so that what disturbs the machine disturbs
both. One JSON line a cell; plots.py makes tables and pictures of these records.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from conduit.rllib.clock import StepClock, clock_of
from conduit.rllib.session import build
from conduit_store.errors import ConfigError

__all__ = ["GRID", "QUICK", "QUICK_PLAN", "SIDES", "Cell", "Plan", "Steps", "Turns", "choose", "config_of"]

SIDES = ("stock", "conduit")
FILL_STEPS = 1000  # env steps before learning starts; fewer where few training steps are measured, see Plan
WARM_STEPS = 20  # learning steps before anything counts; of PPO, whose steps are many times as long, WARM_LONG
WARM_LONG = 3
PIECE_STEPS = 20  # learning steps between two looks at Ctrl-C
GLUE_CALLS = 200
OFFLINE_UPDATES = 10  # a training step of CQL
OFFLINE_ROWS = 20_000
WEIGHTS = {"dqn": 1.0, "sac": 2.0, "tqc": 2.5, "ppo": 12.0, "impala": 8.0, "appo": 8.0, "cql": 40.0, "dqn-pong": 60.0}

Steps = list[dict[str, float]]


@dataclass(frozen=True)
class Cell:
    """What is trained, with RLlib's defaults.

    `algorithm`: "dqn" (CartPole-v1), "sac" or "tqc" (Pendulum-v1), all prioritized; "ppo" (CartPole-v1), whose train
    batch is collected anew for each step, in minibatches of 128, four epochs. "dqn-pong": stacks of four images of
    84x84, prioritized, four steps of each env runner a training step; `width` is of one layer behind the convolutions.
    "impala" and "appo" (CartPole-v1): a learner thread in the driver, see `UpdateClock`. "cql":
    from files of 20,000 random steps of Pendulum-v1; see `OfflineClock`.
    """

    algorithm: str
    batch: int  # rows of a train batch
    width: int  # of both hidden layers
    runners: int  # remote env runners; 0: one in the driver

    @property
    def name(self) -> str:
        """As in `dqn/256/64x64/0`."""
        return f"{self.algorithm}/{self.batch}/{self.width}x{self.width}/{self.runners}"

    @property
    def warm(self) -> int:
        """Learning steps before anything counts."""
        return WARM_LONG if self.algorithm in ("ppo", "impala", "appo", "cql", "dqn-pong") else WARM_STEPS

    def estimate_s(self, steps: int) -> float:
        """Seconds that the cell takes, roughly; the progress corrects it by what earlier cells took."""
        weight = WEIGHTS[self.algorithm]
        each_ms = weight * (18 + 0.07 * self.batch) + 8 * bool(self.runners)
        return 10 + 2 * FILL_STEPS * 0.003 + (self.warm + steps) * each_ms / 1e3


@dataclass(frozen=True)
class Plan:
    """How long to measure: `steps` training steps of each side, in `rounds` turns."""

    steps: int = 300
    rounds: int = 6
    seed: int = 1

    @property
    def fill(self) -> int:
        """Env steps before learning starts."""
        return min(FILL_STEPS, 50 * self.steps)


_BATCHES = {"dqn": (32, 256, 512), "sac": (32, 256, 512), "tqc": (256,), "ppo": (512,)}
_THREADS = tuple(Cell(algorithm, 500, 64, runners) for algorithm in ("impala", "appo") for runners in (0, 2))
GRID = (
    *(
        Cell(algorithm, batch, width, runners)
        for algorithm, batches in _BATCHES.items()
        for batch in batches
        for width in (64, 256)
        for runners in (0, 2)
    ),
    *_THREADS,
    Cell("cql", 256, 64, 0),
    Cell("dqn-pong", 32, 256, 2),
)
QUICK = (Cell("dqn", 32, 256, 0), Cell("dqn", 256, 256, 0), Cell("sac", 256, 256, 0), Cell("dqn", 32, 256, 2))
QUICK_PLAN = Plan(steps=200, rounds=4)


def choose(*, quick: bool, only: Sequence[str] = ()) -> tuple[Cell, ...]:
    """The cells of the grid, or of the quick selection, whose names match one of the patterns `only` (as in 'sac/*/0').

    All of them without a pattern; in the grid's order, each once.

    Raises:
        ConfigError: a pattern matches none.
    """
    cells = QUICK if quick else GRID
    for pattern in only:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise ConfigError(f"no cell matches {pattern!r}; there are {', '.join(cell.name for cell in cells)}")
    return tuple(cell for cell in cells if not only or any(fnmatchcase(cell.name, pattern) for pattern in only))


def config_of(
    cell: Cell, side: str, *, seed: int, piece: int = PIECE_STEPS, fill: int = FILL_STEPS
) -> Any:
    """RLlib's config of one side of a cell; one `train()` of its algorithm is at least `piece` training steps."""
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.cql import CQLConfig
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.algorithms.tqc import TQCConfig

    import conduit.rllib

    kinds: dict[str, Any] = {
        "sac": SACConfig, "tqc": TQCConfig, "ppo": PPOConfig, "impala": IMPALAConfig, "appo": APPOConfig,
        "cql": CQLConfig,
    }  # fmt: skip
    environments: dict[str, Any] = dict.fromkeys(("dqn", "ppo", "impala", "appo"), "CartPole-v1")
    attached: dict[str, Any] = {"host_memory": "512MiB"}
    if cell.algorithm == "dqn-pong":
        from conduit.rllib import pong

        environments["dqn-pong"] = pong.Pong
        attached["frames"] = pong.FRAMES
    config = kinds.get(cell.algorithm, DQNConfig)().environment(environments.get(cell.algorithm, "Pendulum-v1"))
    config.training(train_batch_size_per_learner=cell.batch)
    if cell.algorithm == "cql":
        from conduit.rllib.recordings import pendulum

        config.training(lr=None)
        config.offline_data(input_=pendulum(OFFLINE_ROWS), dataset_num_iters_per_learner=OFFLINE_UPDATES)
        config.reporting(min_train_timesteps_per_iteration=piece * OFFLINE_UPDATES * cell.batch)
        attached, piece = {}, 0
    elif cell.algorithm in ("ppo", "impala", "appo"):
        if cell.algorithm == "ppo":
            config.training(minibatch_size=128, num_epochs=4)
        config.learners(num_learners=0)
        piece *= cell.batch
    else:
        config.training(num_steps_sampled_before_learning_starts=fill)
        piece *= max(1, cell.runners)
    if cell.algorithm == "dqn-pong":
        config.training(replay_buffer_config={**config.replay_buffer_config, "capacity": 20_000})
        config.env_runners(rollout_fragment_length=4)
        config.rl_module(model_config={"head_fcnet_hiddens": [cell.width]})
        piece *= 4
    else:
        config.rl_module(model_config={"fcnet_hiddens": [cell.width, cell.width]})
    config.env_runners(num_env_runners=cell.runners)
    config.reporting(min_sample_timesteps_per_iteration=piece, min_time_s_per_iteration=0)
    config.fault_tolerance(restart_failed_env_runners=False)  # one that dies fails the cell; Ray's core warns otherwise
    config.debugging(seed=seed)
    return conduit.rllib.attach(config, **attached) if side == "conduit" else config


class Turns:
    """Both sides of a cell, built, and trained in turns. `close()` stops the algorithms."""

    def __init__(self, cell: Cell, plan: Plan, tell: Callable[[str, int], None]) -> None:
        self.cell, self.plan = cell, plan
        self._tell = tell  # what is being done, steps of the plan that are done; raises Stopped
        self.rounds: dict[str, list[Steps]] = {side: [] for side in SIDES}
        self.waiting = 0.0  # threads of this process that waited for a core, on average, while it was measured
        self._measuring = False
        self._stack = ExitStack()
        self._algorithms: dict[str, Any] = {}
        self._clocks: dict[str, StepClock] = {}
        piece = min(PIECE_STEPS, max(1, plan.steps // plan.rounds))
        try:
            for side in SIDES:
                tell(f"building {side}", 0)
                algorithm = build(config_of(cell, side, seed=plan.seed, piece=piece, fill=plan.fill))
                self._stack.callback(algorithm.stop)
                self._algorithms[side] = algorithm
                self._clocks[side] = clock_of(algorithm)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop both algorithms; the store goes with them. Idempotent."""
        self._stack.close()

    def measure(self) -> None:
        """Fill both replays, warm both sides up, then train in turns; `rounds` grows as it goes."""
        for side in SIDES:
            self._train(side, self.cell.warm, "warming up")
        for side in SIDES:
            self._clocks[side].steps.clear()
        self._measuring = True
        before, began = _waited_s(), time.perf_counter()
        try:
            for turn in range(self.plan.rounds):
                until = self.plan.steps * (turn + 1) // self.plan.rounds
                for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                    gc.collect()
                    self._round(side, until)
        finally:
            self.waiting = (_waited_s() - before) / (time.perf_counter() - began)

    def _round(self, side: str, until: int) -> None:
        steps = self._clocks[side].steps
        before = len(steps)
        try:
            self._train(side, until, "measuring")
        finally:
            if new := steps[before:]:
                self.rounds[side].append(new)

    def _train(self, side: str, until: int, what: str) -> None:
        algorithm, steps = self._algorithms[side], self._clocks[side].steps
        while len(steps) < until:
            done = sum(len(clock.steps) for clock in self._clocks.values()) // 2 if self._measuring else 0
            self._tell(f"{what} {side}", min(done, self.plan.steps))
            algorithm.train()

    def glue_ms(self) -> float | None:
        """Milliseconds that RLlib itself takes around a batch whose tensors are ready: the median of 200 calls.

        That is its SampleBatch, MultiAgentBatch and TrainingData. Made in a loop, with warm caches: inside a training
        step it takes longer. None where there is no replay, and RLlib makes the batch itself.
        """
        from ray.rllib.core.learner.training_data import TrainingData
        from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

        algorithm = self._algorithms["conduit"]
        if algorithm.local_replay_buffer is None or algorithm.config.is_offline:
            return None
        module_id = next(iter(algorithm.learner_group._learner.module.keys()))
        (delivery,) = algorithm.local_replay_buffer.sample(self.cell.batch)
        ready = delivery.training_data(module_id).batch.policy_batches[module_id]
        columns = {name: ready[name] for name in ready}
        sample_batch: Any = SampleBatch  # untyped
        took: list[float] = []
        for _ in range(GLUE_CALLS):
            began = time.perf_counter()
            TrainingData(batch=MultiAgentBatch({module_id: sample_batch(columns)}, env_steps=self.cell.batch))
            took.append(time.perf_counter() - began)
        return float(np.median(took)) * 1e3


def _waited_s() -> float:
    """Seconds that the threads of this process have waited for a core; 0 where the kernel does not tell."""
    waited = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # a thread that has just ended
            waited += int(task.read_text(encoding="ascii").split()[1])
    return waited / 1e9


