"""Results as JSON lines, a markdown page, plots, and tables on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cases import BESIDE_WRITERS, COUNTED, DRIVERS, all_cases
from bench.targets import (
    Record,
    Results,
    Verdict,
    ceiling_value,
    fastest_peer,
    index,
    of_ceiling,
    ratio,
    value,
    verdicts,
)

FOLDER = Path(__file__).parent / "results"
UNITS = {
    "append": "rows/s",
    "append-priorities": "rows/s",
    "cross": "batches/s",
    "paced": "batches/s",
    "import": "ms",
    "memory": "bytes/bytes",
    "memory-frames": "bytes/bytes",
}
DISTURBED = 0.3  # cores
MARK = {True: "yes", False: "NO", None: "-"}


def load(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Machine and records of a results file."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return lines[0]["machine"], lines[1:]


def number(x: float | None) -> str:
    """Three figures, thousands grouped."""
    if x is None:
        return "-"
    if x >= 1e6:
        return f"{x / 1e6:,.2f} M"
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def cell(record: Record | None) -> str:
    if record is None:
        return "-"
    if "error" in record:
        return "failed"
    if "over_row_bytes" in record:
        return f"{record['over_row_bytes']:.3f}"
    text = number(value(record))
    if record["op"] in BESIDE_WRITERS:
        text += f" ({number(record['arriving_rows_per_s'])} rows/s arrive)"
    return text


SUMMARY = ("case", "unit", "conduit", "ceiling", "of it", "best peer", "has", "conduit is")


def summary_rows(records: list[Record]) -> list[list[str]]:
    """What SUMMARY names, of each case, in their own order: beside the physical limit and the best peer."""
    results: Results = index(records)
    rows: list[list[str]] = []
    for case in all_cases():
        ours = results.get((case.name, "conduit"))
        if ours is None:
            continue
        peer = fastest_peer(results, case.name)
        share, times = of_ceiling(ours), ratio(ours, peer)
        ceiling = "1" if "over_row_bytes" in ours else number(ceiling_value(ours))
        row = [case.name, UNITS.get(case.op, "us"), cell(ours), ceiling, "-" if share is None else f"{share:.0%}"]
        row += ["-", "-", "-"] if peer is None else [peer["driver"], cell(peer), f"{times:.2f}x" if times else "-"]
        rows.append(row)
    return rows


def driver_rows(records: list[Record], drivers: list[str]) -> list[list[str]]:
    """Case, unit and each driver's number; cases in their own order."""
    results: Results = index(records)
    rows: list[list[str]] = []
    for case in all_cases():
        found = [results.get((case.name, d)) for d in drivers]
        if any(r is not None for r in found):
            rows.append([case.name, UNITS.get(case.op, "us"), *map(cell, found)])
    return rows


def markdown(machine: dict[str, Any], records: list[Record], plot: str) -> str:
    """The page."""
    drivers = [d for d in DRIVERS if any(r["driver"] == d for r in records)]
    out = ["# Benchmark results", "", "Made by `python -m bench compare`; how to read it: docs/benchmarks.md.", ""]
    out += [f"- {key.replace('_', ' ')}: {shown}" for key, shown in machine.items()]
    for driver in drivers:
        versions: dict[str, str] = next(
            (r["versions"] for r in records if r["driver"] == driver and "versions" in r), {}
        )
        out.append(f"- {driver}: {', '.join(f'{k} {v}' for k, v in versions.items())}")
    out += ["", "## Targets", "", "| target | measured | against | holds |", "|---|---|---|---|"]
    out += [f"| {v.target} | {v.measured} | {v.against} | {MARK[v.holds]} |" for v in verdicts(records)]
    out += ["", "## Cases", "", f"![cases]({plot})", ""]
    out += markdown_table(SUMMARY, summary_rows(records))
    out += ["", "## Every library", "", *markdown_table(("case", "unit", *drivers), driver_rows(records, drivers))]
    out += ["", *notes(records)]
    return "\n".join(out).rstrip() + "\n"


def markdown_table(head: Sequence[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def notes(records: list[Record]) -> list[str]:
    """What the reader must know about single numbers."""
    out: list[str] = []
    for r in records:
        where = f"{r['case']}, {r['driver']}"
        if "error" in r:
            out.append(f"- {where}: failed: {r['error']}")
        if r.get("wrong_rows"):
            out.append(f"- {where}: {r['wrong_rows']} rows sampled beside writers were not rows that had been appended")
        if not r.get("interleaved", True):
            out.append(f"- {where}: too large for memory beside the others, so measured after them, not in turns")
    disturbed = [r for r in records if r.get("other_cores", 0) > DISTURBED or r.get("steal", 0) > DISTURBED]
    if disturbed:
        cores = max(max(r["other_cores"], r["steal"]) for r in disturbed)
        out.append(
            f"- the machine was not quiet: in {len(disturbed)} of {len(records)} measurements other processes or the "
            f"hypervisor took more than {DISTURBED} cores (up to {cores}). Trust the ratios more than the numbers"
        )
    return ["## Notes", "", *out] if out else []


def plot(records: list[Record], path: Path) -> None:
    """Bars by case: how many times the ceiling's time each library takes (logarithmic; 1 is the ceiling)."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drivers = [d for d in DRIVERS if any(r["driver"] == d for r in records)]
    results = index(records)
    names = [
        c.name for c in all_cases() if c.op not in COUNTED and any(r["case"] == c.name for r in records)
    ]
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.16 * len(drivers) * max(len(names), 1)), layout="constrained")
    for k, driver in enumerate(drivers):
        lengths = [times_ceiling(results.get((name, driver))) for name in names]
        places = [i + (k - (len(drivers) - 1) / 2) * 0.8 / len(drivers) for i in range(len(names))]
        axes.barh(places, lengths, 0.8 / len(drivers), label=driver)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("time over the ceiling's (C, one core, same rows); shorter is better")
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.set_ylim(len(names) - 0.5, -0.5)
    figure.legend(loc="outside upper center", ncols=min(len(drivers), 6))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def times_ceiling(record: Record | None) -> float:
    """Zero where there is no number."""
    if record is None or "error" in record:
        return 0.0
    share = of_ceiling(record)
    return 1.0 / share if share else 0.0


def write(machine: dict[str, Any], records: list[Record], folder: Path, name: str) -> list[Path]:
    """Markdown and plot beside the JSON lines. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    page, picture = folder / f"{name}.md", folder / f"{name}.png"
    plot(records, picture)
    page.write_text(markdown(machine, records, picture.name), encoding="utf-8")
    return [page, picture]


def write_bars(
    folder: Path, name: str, title: str, machine: dict[str, Any], lines: list[dict[str, Any]]
) -> list[Path]:
    """Lines of case, library, unit and median as JSON lines, a table and bars. Returns the files."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    data, page, picture = (folder / f"{name}.{ending}" for ending in ("jsonl", "md", "png"))
    data.write_text("".join(f"{json.dumps(line)}\n" for line in [machine, *lines]), encoding="utf-8")
    cases = list(dict.fromkeys(line["case"] for line in lines))
    libraries = list(dict.fromkeys(line["library"] for line in lines))
    found = {(line["case"], line["library"]): line for line in lines}
    out = [f"# {title}", "", *(f"- {key.replace('_', ' ')}: {shown}" for key, shown in machine["machine"].items()), ""]
    out += ["| case | unit | " + " | ".join(libraries) + " |", "|" + "---|" * (len(libraries) + 2)]
    for case in cases:
        row = [found.get((case, library)) for library in libraries]
        unit = next(line["unit"] for line in row if line is not None)
        out.append(f"| {case} | {unit} | {' | '.join(number(line['median'] if line else None) for line in row)} |")
    page.write_text("\n".join([*out, "", f"![{name}]({picture.name})", ""]), encoding="utf-8")
    figure, panels = plt.subplots(1, len(cases), figsize=(4.2 * len(cases), 3), layout="constrained", squeeze=False)
    for axes, case in zip(panels[0], cases, strict=True):
        shown = [line for line in lines if line["case"] == case]
        axes.barh([line["library"] for line in shown], [line["median"] for line in shown])
        axes.invert_yaxis()
        axes.set(title=case, xlabel=shown[0]["unit"])
    figure.savefig(picture, dpi=130)
    plt.close(figure)
    return [data, page, picture]


def show(records: list[Record], console: Any) -> None:
    """Rich tables: every case, then the targets."""
    from rich.table import Table

    cases = Table(title="cases (medians)", title_justify="left")
    for column in SUMMARY:
        left = column in ("case", "unit", "best peer")
        cases.add_column(column, justify="left" if left else "right", no_wrap=column in ("case", "best peer"))
    for row in summary_rows(records):
        cases.add_row(*row)
    console.print(cases)
    goals = Table(title="targets", title_justify="left")
    for column in ("target", "measured", "against", "holds"):
        goals.add_column(column)
    styles = {True: "green", False: "bold red", None: "dim"}
    found: list[Verdict] = verdicts(records)
    for v in found:
        goals.add_row(v.target, v.measured, v.against, MARK[v.holds], style=styles[v.holds])
    console.print(goals)
    for line in notes(records)[2:]:
        console.print(line, style="yellow", markup=False, highlight=False)
