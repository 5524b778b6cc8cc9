"""What the RLlib commands need of Ray, Ctrl-C and the terminal."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from conduit_store.errors import MissingExtra

__all__ = ["Interrupts", "Stopped", "Ticker", "build", "ray_session", "require"]

AGAIN_S = 1.0  # a second Ctrl-C sooner than that is not one
BAR_CELLS = 24
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


class Stopped(Exception):
    """Ctrl-C: what has been measured counts, nothing more is begun."""


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


def build(config: Any) -> Any:
    """The config's algorithm, without the empty folder that RLlib makes for it in ~/ray_results."""
    algorithm = config.build_algo()
    with suppress(OSError):
        Path(algorithm.logdir).rmdir()
    return algorithm
