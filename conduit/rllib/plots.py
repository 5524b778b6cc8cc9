"""How measurements of RLlib look: tables on the terminal, a markdown page, pictures; by rich and matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich import box
from rich.console import Console
from rich.table import Table

from conduit.rllib.clock import EXPERIENCE, STAGES

__all__ = ["bar", "cut", "draw", "key", "markdown", "note", "show", "write"]

Record = dict[str, Any]
INK, QUIET, GRID = "#1f2933", "#7b8794", "#e4e7eb"
OURS, STOCK = "#0072b2", "#d55e00"
BUSY = 0.3  # threads that waited for a core
KEY_TITLE = "* of the experience path"
COLOURS = {  # the experience path is warm
    "add": "#7f2704",
    "sample": "#d55e00",
    "metrics": "#b5651d",
    "batch": "#e69f00",
    "priorities": "#f0d26a",
    "compute": "#0072b2",
    "rollout": "#009e73",
    "sync": "#7fcfb4",
    "rest": "#cbd2d9",
}
STYLE: dict[Any, Any] = {  # keys are a Literal in matplotlib's types
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "xtick.color": QUIET,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
STEP_HEAD = ("cell", "step, stock", "Conduit", "cut", "ratio", "of rounds", "less compute, stock", "Conduit", "cut")
PATH_HEAD = ("experience, stock", "Conduit", "cut", "of it RLlib's glue", "exposed, stock", "Conduit")


def cut(stock: float, ours: float) -> str:
    """How much less `ours` is, in percent; negative where it is more."""
    return f"{100 * (1 - ours / stock):.1f} %" if stock else "-"


def rows(records: Sequence[Record]) -> list[tuple[list[str], list[str]]]:
    """For each record a row of `STEP_HEAD` and the rest of a row, of `PATH_HEAD`; milliseconds."""
    out = []
    for line in records:
        stock, ours = ({name: found["median"] for name, found in line[side].items()} for side in ("stock", "conduit"))
        ratio = line["step_ratio"]
        step = [
            line["cell"] + ("" if line["complete"] else " (cut short)"),
            f"{stock['step']:.2f}",
            f"{ours['step']:.2f}",
            cut(stock["step"], ours["step"]),
            f"{ratio['median']:.2f}",
            f"{min(ratio['rounds']):.2f}..{max(ratio['rounds']):.2f}" if ratio["rounds"] else "-",
            f"{stock['without_compute']:.2f}",
            f"{ours['without_compute']:.2f}",
            cut(stock["without_compute"], ours["without_compute"]),
        ]
        path = [
            f"{stock['experience']:.2f}",
            f"{ours['experience']:.3f}",
            cut(stock["experience"], ours["experience"]),
            "-" if line["glue_ms"] is None else f"{line['glue_ms']:.3f}",
            f"{100 * stock['exposed_share']:.0f} %",
            f"{100 * ours['exposed_share']:.1f} %",
        ]
        out.append((step, path))
    return out


def stage_rows(records: Sequence[Record]) -> list[list[str]]:
    """Two rows for each record: cell, side, n, then median and quartiles of each stage in milliseconds."""
    return [
        [
            line["cell"],
            name,
            f"{line[side]['step']['n']}",
            *(_quartiles(line[side][stage]) for stage in (*STAGES, "experience", "step")),
        ]
        for line in records
        for side, name in (("stock", "stock"), ("conduit", "Conduit"))
    ]


def _quartiles(found: dict[str, float]) -> str:
    return f"{found['median']:.3g} ({found['q1']:.3g}..{found['q3']:.3g})"


def markdown(records: Sequence[Record], picture: str) -> str:
    """The page: what was measured on which machine, the picture, both tables."""
    plan = records[0]["plan"]
    out = [
        "# A training step of RLlib, stock and through Conduit",
        "",
        "Made by `conduit bench rllib`. Medians in milliseconds a training step. Both sides of a cell, built with the "
        f"same seed ({plan['seed']}), trained in turns: {plan['steps']} steps each in {plan['rounds']} rounds, each "
        "call timed by a clock of our own.",
        "",
        f"Experience is {' + '.join(EXPERIENCE)}; its exposed share is what the training thread spends on it of the "
        "whole step. RLlib's glue (its SampleBatch and MultiAgentBatch around tensors that "
        "are ready) is part of `batch` on both sides, and timed alone in a loop with warm caches, so that inside a "
        "step it takes longer. The step ratio is Conduit's step over stock's, of all steps, and the least and the "
        "most of a round.",
        "",
    ]
    out += [f"- {key.replace('_', ' ')}: {value}" for key, value in records[0]["machine"].items()]
    out += [
        "",
        f"![stages and step ratio]({picture})",
        "",
        *_pipes((*STEP_HEAD, *PATH_HEAD), [step + path for step, path in rows(records)]),
    ]
    out += ["", *notes(records)]
    stages = ("cell", "side", "n", *STAGES, "experience", "step")
    out += ["", "## Stages", "", "Median (quartiles).", "", *_pipes(stages, stage_rows(records))]
    return "\n".join(out) + "\n"


def _pipes(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)]


def show(records: Sequence[Record], console: Console | None = None) -> None:
    """Two tables of all cells: the experience path, and the whole step."""
    console = console or _console()
    found = rows(records)
    for title, head, lines in (
        ("Experience path, ms a training step (medians)", ("cell", *PATH_HEAD), [[s[0], *path] for s, path in found]),
        ("Whole step, ms (medians)", STEP_HEAD, [step for step, _ in found]),
    ):
        table = Table(title=title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD)
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left", style="bold" if name == "cut" else None)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for note in notes(records):
        console.print(note, style="yellow", markup=False, soft_wrap=True)


def notes(records: Sequence[Record]) -> list[str]:
    """What the reader must know: cells that were measured on a busy machine."""
    busy = [line for line in records if line["waiting"] > BUSY]
    if not busy:
        return []
    most = max(line["waiting"] for line in busy)
    return [
        f"The machine was busy in {len(busy)} of {len(records)} cells: up to {most:.1f} threads of the driver waited "
        "for a core. Trust the experience path more than the whole step, whose torch threads wait for each other; "
        "--threads 1 helps."
    ]


def write(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write rllib.md and rllib.png beside rllib.jsonl. Returns all three.

    Raises:
        OSError: they cannot be written.
    """
    picture, page = folder / "rllib.png", folder / "rllib.md"
    draw(records, picture)
    page.write_text(markdown(records, picture.name), encoding="utf-8")
    return [folder / "rllib.jsonl", page, picture]


def draw(records: Sequence[Record], target: Path) -> None:
    """Stacked stages of both sides of each cell, and beside them the ratio of the whole step with its rounds."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 1.9 + 0.62 * len(records)), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, width_ratios=(3, 1.25), sharey=True)
        for y, line in enumerate(records):
            for side, offset in (("stock", -0.2), ("conduit", 0.2)):
                medians = {stage: line[side][stage]["median"] for stage in STAGES}
                end = bar(left, y + offset, medians, 0.36)
                name = "stock" if side == "stock" else "Conduit"
                note(left, f"{name} {line[side]['step']['median']:.1f} ms", (end, y + offset))
            _ratio(right, y, line)
        left.set_yticks(range(len(records)), [line["cell"] for line in records])
        left.set_ylim(len(records) - 0.45, -0.55)
        left.set_xlim(0, 1.16 * max(sum(line["stock"][stage]["median"] for stage in STAGES) for line in records))
        left.set_xlabel("ms a training step, medians by stage")
        left.set_title("Where a training step's time goes", loc="left", fontweight="bold", fontsize=11)
        left.tick_params(axis="y", length=0)
        right.set_title("Whole step, Conduit / stock", loc="left", fontweight="bold", fontsize=11)
        right.set_xlabel("shorter is better; dots are rounds, 1 is stock")
        right.axvline(1.0, color=INK, lw=1)
        right.tick_params(axis="y", length=0, labelleft=False)
        most = max([1.0, *(max(line["step_ratio"]["rounds"], default=1.0) for line in records)])
        right.set_xlim(0, 1.3 * most)
        for axes in (left, right):
            axes.grid(axis="x", color=GRID)
            axes.set_axisbelow(True)
        figure.legend(
            title=KEY_TITLE, handles=key(), loc="outside upper center", ncols=len(COLOURS), frameon=False, fontsize=9
        )
        figure.savefig(target)


def bar(axes: Axes, y: float, medians: dict[str, float], height: float) -> float:
    """One stacked bar in the order of `COLOURS`; returns where it ends."""
    end = 0.0
    for stage, colour in COLOURS.items():
        axes.barh(y, medians[stage], height, end, color=colour, edgecolor="white", linewidth=0.4)
        end += medians[stage]
    return end


def _ratio(axes: Axes, y: float, line: Record) -> None:
    ratio = line["step_ratio"]
    axes.barh(y, ratio["median"], 0.42, color=OURS if ratio["median"] < 1 else STOCK, alpha=0.85)
    axes.plot(ratio["rounds"], [y] * len(ratio["rounds"]), "o", color=INK, ms=3)
    note(axes, f"{ratio['median']:.2f}", (max([ratio["median"], *ratio["rounds"]]), y))


def key() -> list[Patch]:
    return [
        Patch(color=colour, label=stage + ("*" if stage in EXPERIENCE else "")) for stage, colour in COLOURS.items()
    ]


def note(axes: Axes, text: str, at: tuple[float, float], colour: str = INK) -> None:
    """Small `text` to the right of the point `at`."""
    axes.annotate(text, at, (5, 0), textcoords="offset points", va="center", fontsize=8.5, color=colour)


def _console() -> Console:
    """As wide as the terminal; wide where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


