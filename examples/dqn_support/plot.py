"""The picture of a run of the DQN example: return over time, and both sides' time by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dqn_support.record import WINDOW, Run, Stage

INK, QUIET, GRID = "#1f2933", "#7b8794", "#e4e7eb"
ACTORS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7")  # Okabe and Ito: told apart by colour-blind readers
STAGES = {
    "draw": "#d55e00",
    "gather": "#e69f00",
    "hand over": "#f0c05a",
    "wait": "#f7e3b0",
    "learn": "#0072b2",
    "priorities": "#009e73",
    "publish": "#7fcfb4",
    "play": "#0072b2",
    "ingest": "#d55e00",
    "weights": "#7fcfb4",
    "paused": "#cbd2d9",
    "other": "#e4e7eb",
}
Point = tuple[float, float]
KEY_COLUMNS = 8  # as many as the learner has stages
STYLE: dict[Any, Any] = {  # keys are a Literal in matplotlib's types
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(run: Run, target: Path) -> None:
    """Write the picture of `run` to `target` as PNG.

    Raises:
        OSError: the file cannot be written.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.8), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        returns, stages = figure.subplots(2, 1, height_ratios=(4, 1.2))
        _draw_returns(returns, run)
        _draw_stages(stages, run)
        figure.savefig(target)


def _draw_returns(axes: Axes, run: Run) -> None:
    at = np.array([episode.at_s for episode in run.episodes])
    values = np.array([episode.value for episode in run.episodes])
    who = np.array([episode.actor for episode in run.episodes])
    for actor in np.unique(who):
        own, color = who == actor, ACTORS[actor % len(ACTORS)]
        label = f"episode of actor {actor}"
        axes.scatter(at[own], values[own], 15, color, alpha=0.6, linewidths=0, label=label)
    sums = np.cumsum(np.concatenate(([0.0], values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - WINDOW)
    axes.plot(at, (sums[ends] - sums[starts]) / (ends - starts), color=INK, lw=2, label=f"mean of {WINDOW}")
    axes.axhline(run.target, color=QUIET, lw=1, ls=(0, (4, 3)), zorder=0)
    _note(axes, f"solved at {run.target:.0f}", (0, run.target), (4, 8), QUIET)
    if run.solved:
        axes.plot(at[-1], run.mean_return, "o", color=INK, ms=7, mec="white", clip_on=False, zorder=5)
    axes.set(xlim=(0, max(run.seconds, 1e-3)), ylim=(0, max(510.0, run.target * 1.05)))
    axes.set(xlabel="seconds", ylabel="return of an episode")
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.76), frameon=False, markerscale=1.8)
    title = f"DQN on CartPole-v1: {run.outcome} after {run.seconds:.0f} s"
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=22)
    counts = f"{run.steps:,} env steps, {len(run.episodes):,} episodes, {run.updates:,} updates"
    axes.text(0, 1.03, f"{counts}, seed {run.seed}", transform=axes.transAxes, color=QUIET)


def _draw_stages(axes: Axes, run: Run) -> None:
    """Two bars of all the time, a key with the shares under each: most pieces are too narrow for text."""
    axes.set_title("Where the time went", loc="left", fontsize=11, fontweight="bold")
    for y, stages in ((1.0, run.learner), (0.0, run.actors)):
        left = 0.0
        for column, stage in enumerate(stages):
            share = stage.seconds / run.seconds if run.seconds else 0.0
            axes.barh(y, share, 0.36, left, color=STAGES[stage.name], edgecolor="white", linewidth=0.8)
            left += share
            _draw_key(axes, stage, share, column / KEY_COLUMNS, y - 0.4)
    _draw_exposed(axes, run)
    axes.set(xlim=(0, 1), ylim=(-0.6, 1.55), yticks=(1, 0), yticklabels=("learner", "actors"), xticks=())
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines[["left", "bottom"]].set_visible(False)


def _draw_exposed(axes: Axes, run: Run) -> None:
    """A bracket over the learner's exposed stages, which come first in its bar."""
    share = run.exposed_s / run.seconds if run.seconds else 0.0
    axes.plot((0, 0, share, share), (1.26, 1.32, 1.32, 1.26), color=INK, lw=1)
    _note(axes, f"exposed wait {100 * share:.1f} %: the learner waits for experience", (share, 1.32), (6, 0))


def _draw_key(axes: Axes, stage: Stage, share: float, x: float, y: float) -> None:
    axes.plot(x + 0.006, y, "s", color=STAGES[stage.name], ms=7)
    _note(axes, f"{stage.name} {100 * share:.1f} %", (x + 0.006, y), (8, 0))


def _note(axes: Axes, text: str, at: Point, offset: Point, color: str = INK) -> None:
    """Small `text` to the right of the point `at`, `offset` points away."""
    axes.annotate(text, at, offset, textcoords="offset points", va="center", fontsize=8.5, color=color)
