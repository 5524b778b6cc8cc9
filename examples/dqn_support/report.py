"""What the DQN example says: progress while it runs, and at its end where the time went."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dqn_support.record import WINDOW, Run, Stage

SHOW_S, PRINT_S = 0.25, 5.0  # between two pictures on a terminal, and between two lines in a file
RATE_S = 5.0  # rates are means over so long
SPARKS = "▁▂▃▄▅▆▇█"
BAR_CELLS, TABLE_CELLS = 24, 16


class Progress:
    """A live picture of `run` on a terminal, a line now and then elsewhere; a context manager."""

    def __init__(self, run: Run, store_name: str, console: Console | None = None) -> None:
        self.run, self.store_name = run, store_name
        self.console = console or Console(highlight=False)
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self._next_s = 0.0
        self._marks: deque[tuple[float, int, int]] = deque()  # (seconds, steps, updates), of RATE_S
        self._means: list[float] = []  # mean return at each picture, for the spark line

    def __enter__(self) -> Self:
        self.console.print(
            f"[bold]DQN on CartPole-v1[/], solved at a mean return of {self.run.target:.0f} over {WINDOW} "
            f"episodes. Seed {self.run.seed}, store [cyan]{self.store_name}[/]. Ctrl-C ends it.",
            soft_wrap=True,
        )
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
        self.console.print("ending the actors")

    def show(self) -> None:
        """Say how far `run` is, if it is time to say something again."""
        run = self.run
        if run.seconds < self._next_s:
            return
        self._next_s = run.seconds + (SHOW_S if self._live else PRINT_S)
        self._marks.append((run.seconds, run.steps, run.updates))
        while len(self._marks) > 2 and run.seconds - self._marks[0][0] > RATE_S:
            self._marks.popleft()
        self._means.append(run.mean_return)
        if self._live:
            self._live.update(self._picture(), refresh=True)
        else:
            self.console.print(f"{self._steps()}; {self._numbers()}", soft_wrap=True)

    def _picture(self) -> Group:
        done = ProgressBar(self.run.budget, min(self.run.steps, self.run.budget), width=BAR_CELLS)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(done, self._steps())
        numbers = Text(f"{self._spark():{BAR_CELLS}} ", style="cyan")
        return Group(bar, numbers.append(self._numbers(), style="default"))

    def _steps(self) -> str:
        steps_a_s, _ = self._rates()
        done = f"{_clock(self.run.seconds)}  {self.run.steps:,} of {self.run.budget:,} env steps"
        if not steps_a_s:
            return f"{done}, actors are starting"
        return f"{done}, {_clock((self.run.budget - self.run.steps) / steps_a_s)} left at most"

    def _numbers(self) -> str:
        steps_a_s, updates_a_s = self._rates()
        return (
            f"{len(self.run.episodes):,} episodes, mean return {self.run.mean_return:.1f}; "
            f"{steps_a_s:,.0f} env steps/s, {updates_a_s:,.0f} updates/s"
        )

    def _rates(self) -> tuple[float, float]:
        if len(self._marks) < 2:
            return 0.0, 0.0
        (from_s, *before), (to_s, *now) = self._marks[0], self._marks[-1]
        steps, updates = ((b - a) / (to_s - from_s) for a, b in zip(before, now, strict=True))
        return steps, updates

    def _spark(self) -> str:
        stride = max(1, -(-len(self._means) // BAR_CELLS))
        heights = [mean / self.run.target for mean in self._means[::stride]]
        return "".join(SPARKS[min(len(SPARKS) - 1, int(height * len(SPARKS)))] for height in heights)


def stage_table(run: Run) -> Table:
    """Where the time went, for the learner and the mean actor; the shares of each add up to all its time."""
    table = Table(title="Where the time went", title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("stage", no_wrap=True)
    for name in ("seconds", "share", "calls", "us a call"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=TABLE_CELLS)
    for title, stages in (("learner", run.learner), ("actors (mean)", run.actors)):
        table.add_row(f"[bold]{title}[/]", f"[bold]{run.seconds:.2f}[/]")
        for stage in stages:
            table.add_row(*_cells(stage, run.seconds), style="yellow" if stage.exposed else None)
        table.add_section()
    table.add_row(*_cells(Stage("exposed wait", run.exposed_s), run.seconds), style="bold yellow")
    table.caption = "exposed wait = draw + gather + hand over + wait"
    table.caption_justify = "left"
    return table


def _cells(stage: Stage, whole_s: float) -> tuple[str, ...]:
    share = stage.seconds / whole_s if whole_s else 0.0
    calls = (f"{stage.calls:,}", f"{stage.seconds / stage.calls * 1e6:,.1f}") if stage.calls else ("", "")
    return f"  {stage.name}", f"{stage.seconds:.2f}", f"{100 * share:.1f} %", *calls, _bar(share)


def _bar(share: float) -> str:
    whole, eighths = divmod(round(share * TABLE_CELLS * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def write_report(run: Run, folder: Path, console: Console | None = None) -> Path | None:
    """Print the outcome and the table, draw the plot into `folder`/<time>/dqn.png and return its path.

    Before the first episode has ended there is nothing to draw: None.

    Raises:
        OSError: the folder cannot be made or written.
    """
    console = console or Console(highlight=False)
    style = {"solved": "bold green", "interrupted": "bold yellow", "not solved": "bold red"}[run.outcome]
    console.print(
        f"[{style}]{run.outcome}[/]: mean return {run.mean_return:.1f} over the last {WINDOW} training "
        f"episodes, after {run.seconds:.1f} s, {run.steps:,} env steps, {len(run.episodes):,} episodes, "
        f"{run.updates:,} updates",
        soft_wrap=True,
    )
    if not run.episodes:
        return None
    console.print(stage_table(run))
    from dqn_support.plot import draw  # here: matplotlib takes a second to import

    target = folder / f"{datetime.now():%Y%m%d-%H%M%S}" / "dqn.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    draw(run, target)
    console.print(f"plot: {target}", soft_wrap=True)
    return target


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
