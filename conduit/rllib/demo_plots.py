"""The demo's table and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from conduit.rllib.clock import EXPERIENCE, STAGES
from conduit.rllib.plots import COLOURS, GRID, OURS, QUIET, STOCK, STYLE, bar, cut, key, note

if TYPE_CHECKING:
    from conduit.rllib.demo import Training

__all__ = ["draw", "show"]


def medians(training: Training) -> dict[str, float]:
    """Median milliseconds of each stage, of the experience path and of the whole step."""
    found = {stage: float(np.median([step[stage] for step in training.steps])) for stage in (*STAGES, "step")}
    found["experience"] = float(np.median([sum(step[stage] for stage in EXPERIENCE) for step in training.steps]))
    return found


def show(trainings: Sequence[Training], console: Console | None = None) -> None:
    """The demo's table, and what it comes to."""
    console = console or Console(highlight=False)
    stock, ours = (medians(training) for training in trainings)
    table = Table(title="ms a training step (medians)", title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("stage", no_wrap=True)
    for name in (*(training.title for training in trainings), "cut"):
        table.add_column(name, justify="right", no_wrap=True)
    ordered = (*EXPERIENCE, *(stage for stage in STAGES if stage not in EXPERIENCE))
    for stage in ordered:
        table.add_row(
            stage,
            f"{stock[stage]:.3f}",
            f"{ours[stage]:.3f}",
            cut(stock[stage], ours[stage]),
            style="yellow" if stage in EXPERIENCE else None,
            end_section=stage == ordered[-1],
        )
    for name, part in (("experience path", "experience"), ("whole step", "step")):
        table.add_row(name, f"{stock[part]:.3f}", f"{ours[part]:.3f}", cut(stock[part], ours[part]), style="bold")
    for title, values in (
        ("wall time", [f"{training.seconds:.1f} s" for training in trainings]),
        ("env steps", [f"{training.env_steps:,}" for training in trainings]),
        ("training steps", [f"{len(training.steps):,}" for training in trainings]),
        ("final return", [f"{training.mean_return:.1f}" for training in trainings]),
    ):
        less = cut(*(training.seconds for training in trainings)) if title == "wall time" else ""
        table.add_row(title, *values, less)
    table.caption = f"experience path = {' + '.join(EXPERIENCE)}; final return: mean of the last 20 episodes"
    table.caption_justify = "left"
    console.print(table)
    console.print(
        f"[bold]Experience path {cut(stock['experience'], ours['experience'])} shorter, whole training step "
        f"{cut(stock['step'], ours['step'])} shorter.[/]",
        soft_wrap=True,
    )


def draw(trainings: Sequence[Training], target: Path, subtitle: str, learning_from: int) -> None:
    """Two panels: the stages of both runs as stacked bars, and the return of their episodes over env steps.

    `learning_from`: the env step at which learning starts.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.6), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        stages, returns = figure.subplots(2, 1, height_ratios=(1.3, 3))
        found = [medians(training) for training in trainings]
        for y, (training, times) in enumerate(zip(trainings, found, strict=True)):
            end = bar(stages, y, times, 0.62)
            note(stages, f"{times['step']:.1f} ms, {times['experience']:.2f} of it experience*", (end, y))
            _returns(returns, training, OURS if y else STOCK)
        stages.set_yticks(range(len(trainings)), [training.title for training in trainings])
        stages.set_ylim(len(trainings) - 0.45, -0.55)
        stages.set_xlim(0, 1.3 * max(sum(times[stage] for stage in STAGES) for times in found))
        stages.set_xlabel("ms a training step, medians by stage")
        title = f"RLlib's DQN on CartPole-v1: experience path {cut(*(t['experience'] for t in found))} shorter, "
        stages.set_title(
            f"{title}whole step {cut(*(t['step'] for t in found))} shorter", loc="left", fontweight="bold", fontsize=12
        )
        stages.tick_params(axis="y", length=0)
        stages.legend(
            handles=key(), loc="upper left", bbox_to_anchor=(0, -0.42), ncols=len(COLOURS), frameon=False, fontsize=9
        )
        returns.axvline(learning_from, color=QUIET, lw=1, ls=":")
        returns.annotate(
            "learning starts",
            (learning_from, 0.62),
            (5, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=QUIET,
            fontsize=8.5,
        )
        returns.set(xlabel="env steps", ylabel="return of an episode")
        returns.set_title(f"Return while exploring ({subtitle})", loc="left", fontweight="bold", fontsize=11)
        returns.set_xlim(left=0)
        returns.set_ylim(bottom=0)
        returns.grid(axis="y", color=GRID)
        returns.set_axisbelow(True)
        returns.legend(loc="upper left", frameon=False)
        figure.savefig(target)


def _returns(axes: Axes, training: Training, colour: str) -> None:
    """Every episode as a dot, the mean of the last 20 as a line."""
    if not training.episodes:
        return
    at, values = (np.array(series, np.float64) for series in zip(*training.episodes, strict=True))
    axes.plot(at, values, "o", color=colour, ms=4, alpha=0.4, markeredgewidth=0)
    means = [values[max(0, i - 19) : i + 1].mean() for i in range(len(values))]
    axes.plot(at, means, color=colour, lw=1.8, label=f"{training.title}, mean of 20 episodes")
