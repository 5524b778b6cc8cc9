"""`conduit bench rllib`: where a training step's time goes, stock RLlib beside Conduit, interleaved in one run.

A cell is one algorithm, batch size, network and number of env runners. Both sides of a cell are built with the same
seed and train in turns (AB, BA, AB, ...), each step timed by a `StepClock`, so that what disturbs the machine disturbs
both. One JSON line a cell; plots.py makes tables and pictures of these records.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from conduit.rllib.clock import EXPERIENCE, STAGES, StepClock
from conduit_store.errors import ConfigError

__all__ = ["Cell", "GRID", "QUICK", "Plan", "Turns", "choose", "config_of", "machine", "record", "run"]

SIDES = ("stock", "conduit")
FILL_STEPS = 1000  # env steps before learning starts
WARM_STEPS = 20  # learning steps before anything counts
PIECE_STEPS = 20  # learning steps between two looks at Ctrl-C
GLUE_CALLS = 200
BEFORE = {  # the measuring: share of a cell that is done when it begins
    "building stock": 0.0,
    "building conduit": 0.08,
    "warming up stock": 0.12,
    "warming up conduit": 0.2,
}
LINE_S = 10.0  # between two lines of progress where there is no terminal

Steps = list[dict[str, float]]


@dataclass(frozen=True)
class Cell:
    """What is trained: `algorithm` "dqn" (CartPole-v1) or "sac" (Pendulum-v1), both prioritized, RLlib's defaults."""

    algorithm: str
    batch: int  # rows of a train batch
    width: int  # of both hidden layers
    runners: int  # remote env runners; 0: one in the driver

    @property
    def name(self) -> str:
        """As in `dqn/256/64x64/0`."""
        return f"{self.algorithm}/{self.batch}/{self.width}x{self.width}/{self.runners}"

    def estimate_s(self, steps: int) -> float:
        """Seconds that the cell takes, roughly; the progress corrects it by what earlier cells took."""
        sac = 2.0 if self.algorithm == "sac" else 1.0
        each_ms = sac * (18 + 0.07 * self.batch) + 8 * bool(self.runners)
        return 10 + 2 * FILL_STEPS * 0.003 + (WARM_STEPS + steps) * each_ms / 1e3


@dataclass(frozen=True)
class Plan:
    """How long to measure: `steps` training steps of each side, in `rounds` turns."""

    steps: int = 300
    rounds: int = 6
    seed: int = 1


GRID = tuple(
    Cell(algorithm, batch, width, runners)
    for algorithm in ("dqn", "sac")
    for batch in (32, 256, 512)
    for width in (64, 256)
    for runners in (0, 2)
)
QUICK = (Cell("dqn", 32, 256, 0), Cell("dqn", 256, 256, 0), Cell("sac", 256, 256, 0), Cell("dqn", 32, 256, 2))
QUICK_PLAN = Plan(steps=200, rounds=4)


def choose(*, quick: bool, only: str | None) -> tuple[Cell, ...]:
    """The cells of the grid, or of the quick selection, whose names match the pattern `only` (as in 'sac/*/0').

    Raises:
        ConfigError: none does.
    """
    cells = QUICK if quick else GRID
    chosen = tuple(cell for cell in cells if only is None or fnmatchcase(cell.name, only))
    if not chosen:
        raise ConfigError(f"no cell matches {only!r}; there are {', '.join(cell.name for cell in cells)}")
    return chosen


def config_of(cell: Cell, side: str, *, seed: int, piece: int = PIECE_STEPS) -> Any:
    """RLlib's config of one side of a cell; one `train()` of its algorithm is at least `piece` training steps."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.sac import SACConfig

    import conduit.rllib

    kind: Any = DQNConfig if cell.algorithm == "dqn" else SACConfig
    config = kind().environment("CartPole-v1" if cell.algorithm == "dqn" else "Pendulum-v1")
    config.training(train_batch_size_per_learner=cell.batch, num_steps_sampled_before_learning_starts=FILL_STEPS)
    config.rl_module(model_config={"fcnet_hiddens": [cell.width, cell.width]})
    config.env_runners(num_env_runners=cell.runners)
    config.reporting(min_sample_timesteps_per_iteration=piece * max(1, cell.runners), min_time_s_per_iteration=0)
    config.fault_tolerance(restart_failed_env_runners=False)  # one that dies fails the cell; Ray's core warns otherwise
    config.debugging(seed=seed)
    return conduit.rllib.attach(config, host_memory="512MiB") if side == "conduit" else config


class Stopped(Exception):
    """Ctrl-C: what has been measured counts, nothing more is begun."""


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
                algorithm = build(config_of(cell, side, seed=plan.seed, piece=piece))
                self._stack.callback(algorithm.stop)
                self._algorithms[side] = algorithm
                self._clocks[side] = StepClock(algorithm)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop both algorithms; the store goes with them. Idempotent."""
        self._stack.close()

    def measure(self) -> None:
        """Fill both replays, warm both sides up, then train in turns; `rounds` grows as it goes."""
        for side in SIDES:
            self._train(side, WARM_STEPS, "warming up")
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

    def glue_ms(self) -> float:
        """Milliseconds that RLlib itself takes around a batch whose tensors are ready: the median of 200 calls.

        That is its SampleBatch, MultiAgentBatch and TrainingData. Made in a loop, with warm caches: inside a training
        step it takes longer.
        """
        from ray.rllib.core.learner.training_data import TrainingData
        from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

        algorithm = self._algorithms["conduit"]
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


def build(config: Any) -> Any:
    """The config's algorithm, without the empty folder that RLlib makes for it in ~/ray_results."""
    algorithm = config.build_algo()
    with suppress(OSError):
        Path(algorithm.logdir).rmdir()
    return algorithm


def _waited_s() -> float:
    """Seconds that the threads of this process have waited for a core; 0 where the kernel does not tell."""
    waited = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):  # a thread that has just ended
            waited += int(task.read_text(encoding="ascii").split()[1])
    return waited / 1e9


def record(
    cell: Cell,
    plan: Plan,
    rounds: dict[str, list[Steps]],
    glue_ms: float | None,
    about: dict[str, Any],
    waiting: float = 0.0,
) -> dict[str, Any]:
    """One cell's line. Milliseconds a training step; shares and ratios of the whole step.

    `step_ratio` is Conduit's median step over stock's: of all steps, and of each round's neighbours; their spread is
    the noise. `waiting` is how many threads of the driver waited for a core, on average: a busy machine makes torch's
    threads wait for each other, and with that the whole step. `complete` is false where Ctrl-C cut it short.
    """
    sides = {side: _summary([step for steps in rounds[side] for step in steps]) for side in SIDES}
    pairs = zip(rounds["stock"], rounds["conduit"], strict=False)
    return {
        "cell": cell.name,
        "algorithm": cell.algorithm,
        "batch": cell.batch,
        "hidden": [cell.width, cell.width],
        "runners": cell.runners,
        "unit": "ms",
        **sides,
        "glue_ms": None if glue_ms is None else round(glue_ms, 4),
        "step_ratio": {
            "median": round(sides["conduit"]["step"]["median"] / sides["stock"]["step"]["median"], 4),
            "rounds": [round(_median_step(ours) / _median_step(stock), 4) for stock, ours in pairs],
        },
        "waiting": round(max(0.0, waiting), 3),
        "complete": all(sum(map(len, rounds[side])) >= plan.steps for side in SIDES),
        "plan": {"steps": plan.steps, "rounds": plan.rounds, "seed": plan.seed},
        "machine": about,
    }


def _median_step(steps: Steps) -> float:
    return float(np.median([step["step"] for step in steps]))


def _summary(steps: Steps) -> dict[str, dict[str, float]]:
    """Median, quartiles and n of each stage, of the experience path, of the step, and of the step without compute."""
    series: dict[str, list[float]] = {stage: [step[stage] for step in steps] for stage in (*STAGES, "step")}
    series["experience"] = [sum(step[stage] for stage in EXPERIENCE) for step in steps]
    series["without_compute"] = [step["step"] - step["compute"] for step in steps]
    series["exposed_share"] = [
        experience / step["step"] for experience, step in zip(series["experience"], steps, strict=True)
    ]
    return {
        name: {
            key: round(float(found), 4)
            for key, found in zip(("q1", "median", "q3"), np.percentile(values, (25, 50, 75)), strict=True)
        }
        | {"n": len(values)}
        for name, values in series.items()
    }


def machine() -> dict[str, Any]:
    """What a result belongs to: versions, CPU, cores, load. Imports ray and torch."""
    import ray
    import torch

    from conduit import __version__

    return {
        "python": platform.python_version(),
        "ray": ray.__version__,
        "torch": torch.__version__,
        "conduit": __version__,
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class _Progress:
    """Which cell is at work, how much is left of all of them; and Ctrl-C on its way in."""

    def __init__(self, cells: Sequence[Cell], plan: Plan, ticker: Any, stop: Any) -> None:
        self.cells, self.plan, self.ticker, self.stop = cells, plan, ticker, stop
        self.at = 0
        self._within = 0.0  # share of the cell at hand that is done
        self._began = time.perf_counter()
        self._estimates = [cell.estimate_s(plan.steps) for cell in cells]

    def tell(self, what: str, done: int) -> None:
        """Show what is being done in the cell at hand, `done` of whose steps are behind it."""
        if self.stop.requested:
            raise Stopped
        self._within = 0.3 + 0.7 * done / self.plan.steps if what.startswith("measuring") else BEFORE[what]
        counted = f" ({done} of {self.plan.steps} steps)" if done else ""
        text = f"[{self.at + 1}/{len(self.cells)}] {self.cells[self.at].name}  {what}{counted}  {self.left()}"
        self.ticker.show(self._done_s() / sum(self._estimates), text)

    def next(self) -> None:
        """The cell at hand is done."""
        self.at += 1
        self._within = 0.0

    def left(self) -> str:
        """How long it will still take, as text: estimates, scaled by what the work so far took."""
        done_s = self._done_s()
        scale = (time.perf_counter() - self._began) / done_s if done_s > 5 else 1.0
        seconds = int((sum(self._estimates) - done_s) * scale)
        return f"about {seconds // 60}:{seconds % 60:02d} left"

    def _done_s(self) -> float:
        now = self._within * self._estimates[self.at] if self._within else 0.0
        return sum(self._estimates[: self.at]) + now


def run(
    *,
    quick: bool = False,
    only: str | None = None,
    steps: int | None = None,
    rounds: int | None = None,
    seed: int = 1,
    threads: int | None = None,
    out: Path | None = None,
) -> int:
    """Measure the chosen cells, print a table, and write rllib.jsonl, rllib.md and rllib.png into `out`.

    `steps` of each side in `rounds` turns. `threads`: of torch in the driver, for both sides; as torch chooses if None.
    Returns 0, 1 where a cell failed, 130 after Ctrl-C: what was measured until then is printed and written.
    Main thread only: it takes over SIGINT and SIGTERM, and gives them back.

    Raises:
        ConfigError: no cell matches `only`, or there are fewer steps than rounds.
        MissingExtra: ray, torch, gymnasium, matplotlib or rich is not installed.
    """
    from conduit.rllib.demo import Interrupts, Ticker, ray_session, require

    require("bench rllib")
    cells = choose(quick=quick, only=only)
    plan = QUICK_PLAN if quick else Plan()
    plan = replace(plan, seed=seed, steps=steps or plan.steps, rounds=rounds or min(plan.rounds, steps or plan.steps))
    if plan.steps < plan.rounds:
        raise ConfigError(f"{plan.steps} steps in {plan.rounds} rounds: give --steps at least as many as --rounds")
    folder = out or Path("runs") / time.strftime("%Y%m%d-%H%M%S-bench-rllib")
    records: list[dict[str, Any]] = []
    with Interrupts() as stop:
        with Ticker(every_s=LINE_S, stderr=True) as ticker:
            ticker.say(
                f"conduit bench rllib: {len(cells)} cells, {plan.steps} training steps of each side. Ctrl-C ends it."
            )
            with ray_session(stop, ticker, threads=threads):
                progress = _Progress(cells, plan, ticker, stop)
                about = machine()
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / "rllib.jsonl").open("w", encoding="utf-8") as file:
                    try:
                        for cell in cells:
                            line = _measured(cell, plan, about, progress.tell)
                            if line is not None:
                                records.append(line)
                                print(json.dumps(line), file=file, flush=True)
                            progress.next()
                            ticker.say(f"[{progress.at}/{len(cells)}] {_told(line, cell)}  {progress.left()}")
                            if stop.requested:
                                break
                    except Stopped:
                        pass
        measured = [line for line in records if "error" not in line]
        if measured:
            from conduit.rllib import plots

            plots.show(measured)
            print("kept in", ", ".join(str(path) for path in plots.write(measured, folder)), flush=True)
        elif stop.requested:
            print("interrupted before anything was measured", flush=True)
    return stop.status or (1 if len(measured) < len(records) else 0)


def _measured(cell: Cell, plan: Plan, about: dict[str, Any], tell: Callable[[str, int], None]) -> dict[str, Any] | None:
    """One cell's record; one with an `error` where it failed, None where Ctrl-C came before there was anything."""
    about = {**about, "load_at_start": round(os.getloadavg()[0], 2)}
    turns: Turns | None = None
    try:
        turns = Turns(cell, plan, tell)
        try:
            turns.measure()
        except Stopped:
            whole = all(turns.rounds[side] for side in SIDES)
            return record(cell, plan, turns.rounds, None, about, turns.waiting) if whole else None
        return record(cell, plan, turns.rounds, turns.glue_ms(), about, turns.waiting)
    except Stopped:
        return None
    except Exception as error:  # one cell that fails does not take the others with it
        return {"cell": cell.name, "error": f"{type(error).__name__}: {error}", "machine": about}
    finally:
        if turns is not None:
            turns.close()


def _told(line: dict[str, Any] | None, cell: Cell) -> str:
    if line is None:
        return f"{cell.name}: interrupted"
    if "error" in line:
        return f"{cell.name}: failed: {line['error']}"
    stock, ours = line["stock"], line["conduit"]
    return (
        f"{cell.name}: step {stock['step']['median']:.2f} -> {ours['step']['median']:.2f} ms, "
        f"experience {stock['experience']['median']:.2f} -> {ours['experience']['median']:.2f} ms"
    )
