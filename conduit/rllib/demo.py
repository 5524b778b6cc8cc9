"""`conduit demo`: RLlib's DQN on CartPole, stock and then through Conduit, and a report of what changed.

Both runs have the same config, seed and budget of env steps; RLlib's defaults but for the exploration schedule, which
is fitted to the budget, and one torch thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conduit.rllib.clock import StepClock
from conduit.rllib.session import Interrupts, Ticker, build, ray_session, require
from conduit_store.errors import ConfigError

__all__ = ["FILL_STEPS", "Training", "run"]

STEPS = 6_000
FILL_STEPS = 1_000  # env steps before learning starts
PIECE_STEPS = 20  # env steps between two pictures
RECENT = 50  # training steps in the shown milliseconds
WINDOW = 20  # episodes in the shown return


@dataclass
class Training:
    """One of the two runs: its steps by stage in milliseconds, its episodes, and seconds from start to end."""

    title: str
    steps: list[dict[str, float]] = field(default_factory=list)
    episodes: list[tuple[int, float]] = field(default_factory=list)  # env steps at its end, return
    env_steps: int = 0
    seconds: float = 0.0

    def take(self, length: int) -> None:
        """An episode of `length` env steps ended. CartPole gives a reward of 1 a step, so that is its return."""
        self.episodes.append((length + (self.episodes[-1][0] if self.episodes else 0), float(length)))

    @property
    def recent_ms(self) -> float:
        """Median of the last training steps; 0 before the first."""
        last = sorted(step["step"] for step in self.steps[-RECENT:])
        return last[len(last) // 2] if last else 0.0

    @property
    def mean_return(self) -> float:
        """Mean return of the last `WINDOW` episodes, which explore; 0 before the first has ended."""
        last = [value for _, value in self.episodes[-WINDOW:]]
        return sum(last) / max(1, len(last))


def run(*, steps: int | None = None, seed: int | None = None, out: Path | None = None) -> int:
    """Train both, print the report and draw it into `out`/<time>/demo.png. `steps`: env steps of each run.

    Returns 0, or 130 after Ctrl-C (143: SIGTERM); what there is of both runs by then is reported. Main thread only: it
    takes over SIGINT and SIGTERM, and gives them back.

    Raises:
        MissingExtra: ray, torch, gymnasium, matplotlib or rich is not installed.
        ConfigError: so few steps that nothing would be learnt.
    """
    require("demo", "; or, without ray, `conduit demo --plain`")
    budget, seed = steps or STEPS, 1 if seed is None else seed
    if budget <= FILL_STEPS:
        raise ConfigError(f"{budget:,} env steps: learning starts after {FILL_STEPS:,}; give --steps more than that")
    trainings = [Training("stock RLlib"), Training("through Conduit")]
    with Interrupts() as stop:
        with Ticker() as ticker:
            ticker.say(
                f"RLlib's DQN on CartPole-v1, stock and then through Conduit: {budget:,} env steps each, "
                f"seed {seed}. Ctrl-C ends it."
            )
            # One thread: networks so small gain nothing by more, and lose much where cores are busy.
            with ray_session(stop, ticker, threads=1):
                for training in trainings:
                    if not stop.requested:
                        _train(training, budget, seed, ticker, stop, trainings)
        if all(training.steps for training in trainings):
            from conduit.rllib import demo_plots

            target = (out or Path("runs")) / time.strftime("%Y%m%d-%H%M%S") / "demo.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            demo_plots.show(trainings)
            demo_plots.draw(trainings, target, f"{budget:,} env steps, seed {seed}", FILL_STEPS)
            print(f"plot: {target}", flush=True)
        elif stop.requested:
            print("interrupted before both had trained: nothing to compare", flush=True)
    return stop.status


def _train(
    training: Training, budget: int, seed: int, ticker: Ticker, stop: Interrupts, trainings: list[Training]
) -> None:
    """One run, from building the algorithm to stopping it."""
    ticker.say(f"building {training.title}")
    algorithm = build(_config(training, budget, seed))
    try:
        clock = StepClock(algorithm)
        training.steps = clock.steps
        began = time.perf_counter()
        while training.env_steps < budget and not stop.requested:
            result = algorithm.train()
            training.env_steps = int(result["num_env_steps_sampled_lifetime"])
            training.seconds = time.perf_counter() - began
            done = sum(other.env_steps for other in trainings) / (budget * len(trainings))
            ticker.show(min(1.0, done), _told(training, budget, trainings))
        cut_short = "" if training.env_steps >= budget else ", interrupted"
        ticker.say(
            f"{training.title}{cut_short}: {training.env_steps:,} env steps in {training.seconds:.1f} s, "
            f"{training.recent_ms:.1f} ms a training step, return {training.mean_return:.1f}"
        )
    finally:
        algorithm.stop()


def _config(training: Training, budget: int, seed: int) -> Any:
    from ray.rllib.algorithms.dqn import DQNConfig

    import conduit.rllib

    def on_episode_end(*, episode: Any, **_: Any) -> None:
        training.take(int(episode.t))

    kind: Any = DQNConfig  # untyped
    config = kind().environment("CartPole-v1")
    config.training(
        num_steps_sampled_before_learning_starts=FILL_STEPS,
        epsilon=[(0, 1.0), (budget // 2, 0.05)],
    )
    config.reporting(min_sample_timesteps_per_iteration=PIECE_STEPS, min_time_s_per_iteration=0)
    config.debugging(seed=seed)
    config.callbacks(on_episode_end=on_episode_end)
    if training.title != "stock RLlib":
        conduit.rllib.attach(config, host_memory="512MiB")
    return config


def _told(training: Training, budget: int, trainings: list[Training]) -> str:
    """Env steps, milliseconds a step, return, and how long it will still take at most."""
    text = f"{training.title}: {min(training.env_steps, budget):,} of {budget:,} env steps"
    if not training.steps:
        return f"{text}, filling the replay"
    left = sum(max(0, budget - max(other.env_steps, FILL_STEPS)) for other in trainings)
    mean_ms = sum(step["step"] for step in training.steps) / len(training.steps)
    seconds = left * mean_ms * 1.1 / 1e3  # RLlib's results and metrics come on top of the steps
    return (
        f"{text}, {training.recent_ms:.1f} ms a step, return {training.mean_return:.1f}, "
        f"{'at most ' if training is trainings[0] else ''}{int(seconds) // 60}:{int(seconds) % 60:02d} left"
    )
