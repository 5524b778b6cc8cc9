"""`conduit demo`: RLlib's DQN on CartPole, stock and then through Conduit, and a report of what changed.

Both runs have the same config, seed and budget of env steps; RLlib's defaults but for the exploration schedule, which
is fitted to the budget, and one torch thread. Also here: what both RLlib commands need of Ray, Ctrl-C and the terminal.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from conduit.rllib.clock import StepClock
from conduit.rllib.measure import build
from conduit_store.errors import ConfigError, MissingExtra

__all__ = ["FILL_STEPS", "Interrupts", "ray_session", "Ticker", "Training", "require", "run"]

STEPS = 6_000
FILL_STEPS = 1_000  # env steps before learning starts
PIECE_STEPS = 20  # env steps between two pictures
RECENT = 50  # training steps in the shown milliseconds
WINDOW = 20  # episodes in the shown return
BAR_CELLS = 24
AGAIN_S = 1.0  # a second Ctrl-C sooner than that is not one
_EXTRAS = {"ray": "rllib", "torch": "rllib", "gymnasium": "rllib", "matplotlib": "demo", "rich": "demo"}

_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def require(command: str, instead: str = "") -> None:
    """Check that what `conduit <command>` needs is installed, without importing it. `instead` ends the message.

    Raises:
        MissingExtra: says what is missing and how to get it.
    """
    missing = [name for name in _EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        extras = " ".join(dict.fromkeys(f"'conduit-edp[{_EXTRAS[name]}]'" for name in missing))
        raise MissingExtra(f"conduit {command} needs {', '.join(missing)}: pip install {extras}{instead}")


class Interrupts:
    """SIGINT and SIGTERM, while entered. Main thread only.

    Until `hold()` a signal ends the process at once, with status 128 + signal: there is nothing to clean up, and an
    exception out of the middle of an import would not come out as what it is. From then on the first one sets
    `requested`, which loops look at, so that nothing is cut off half made. One that comes more than a second later
    raises KeyboardInterrupt; one that comes sooner is the same once more, as `timeout` sends it.
    """

    def __init__(self) -> None:
        self.status = 0  # 128 + signal, once there was one
        self._at = 0.0
        self._held = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.status != 0

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        # Registered last, so run first: no traceback out of the exit handlers of ray and torch.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)

    def hold(self) -> None:
        """From now on there is something to clean up. Again after whoever else takes the signals."""
        self._held = True
        for number in self._before:
            signal.signal(number, self._received)

    def ignore(self) -> None:
        """From now on a signal only counts: what follows is the cleaning up."""
        for number in self._before:
            signal.signal(number, self._counted)

    def _counted(self, number: int, _frame: FrameType | None) -> None:
        self.status = 128 + number

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if not self._held:
            os.write(2, b"\n")
            os._exit(128 + number)
        if self.requested:
            if time.monotonic() - self._at > AGAIN_S:
                raise KeyboardInterrupt
            return
        self.status, self._at = 128 + number, time.monotonic()
        os.write(2, b"\nconduit: ending, a moment\n")  # print() is not safe here: it may be what was interrupted


@contextmanager
def ray_session(stop: Interrupts, ticker: Ticker, *, threads: int | None = None) -> Iterator[None]:
    """Ray without its talk: started here if nobody has, and ended if it was started here. Imports what takes seconds.

    `threads`: of torch in this process meanwhile; left as they are if None.
    """
    for name, value in _RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)  # RLlib warns of what it will deprecate, of gputil and of its own defaults
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ticker.say("importing ray and torch")
            import ray
            import ray.rllib.algorithms.dqn
            import ray.rllib.algorithms.sac  # all that takes seconds to import, before anything is held
            import torch

            stop.hold()
            ticker.say("starting Ray")
            threads_before = torch.get_num_threads()
            torch.set_num_threads(threads or threads_before)
            started = not ray.is_initialized()
            try:
                if started:
                    ray.init(
                        address="local",
                        num_cpus=max(4, os.cpu_count() or 1),  # two algorithms with two env runners each
                        include_dashboard=False,
                        log_to_driver=False,
                        configure_logging=False,
                        object_store_memory=128 << 20,
                    )
                stop.hold()  # ray.init takes SIGTERM
                yield
            finally:
                stop.ignore()
                if started:
                    ray.shutdown()
                torch.set_num_threads(threads_before)
    finally:
        logging.disable(level)


class Ticker:
    """A line with a bar that moves on a terminal, a line now and then elsewhere; a context manager."""

    def __init__(self, *, every_s: float = 5.0, stderr: bool = False) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(stderr=stderr, highlight=False)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._terminal = self.console.is_terminal
        self._every_s = 0.2 if self._terminal else every_s
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, soft_wrap=True)
        self._next_s = 0.0

    def show(self, done: float, text: str) -> None:
        """How far it is (0 to 1), if it is time to say something again."""
        now = time.perf_counter()
        if now < self._next_s:
            return
        self._next_s = now + self._every_s
        if not self._terminal:
            self.console.print(f"{100 * done:3.0f} %  {text}", markup=False, soft_wrap=True)
            return
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(1.0, done, width=BAR_CELLS), Text(text, no_wrap=True, overflow="ellipsis"))
        self._live.start()
        self._live.update(grid, refresh=True)


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
            from conduit.rllib import plots

            target = (out or Path("runs")) / time.strftime("%Y%m%d-%H%M%S") / "demo.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            plots.show_demo(trainings)
            plots.draw_demo(trainings, target, f"{budget:,} env steps, seed {seed}", FILL_STEPS)
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
