"""What was measured of a cell, as one JSON line."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from conduit.rllib.clock import EXPERIENCE, STAGES
from conduit.rllib.measure import SIDES, Cell, Plan, Steps

__all__ = ["machine", "record"]


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
