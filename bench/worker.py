"""The process of one case: `python -m bench.worker '{"driver": ..., "case": {...}}'`.

Started by the runner, which writes one JSON command a line to its standard input and reads one JSON answer each:
{"do": "slice", "seconds": s} measures, {"do": "result"} sums up and ends. Alone on a terminal (`--alone`) it
measures one slice and prints its result. It ends, and its writers with it, when its input ends or the runner dies.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import sys
import traceback
from typing import Any, TextIO

from bench.cases import CEILING, COUNTED, Case
from bench.measure import Measurement, build
from bench.timing import cpu_use, end_with_parent, interference

DISTRIBUTIONS = ("conduit-edp", "cpprb", "torchrl", "tensordict", "tianshou", "stable_baselines3", "flashbax", "jax",
                 "dm-reverb", "tensorflow", "TransferQueue", "ray", "pyarrow", "torch", "numpy")  # fmt: skip


def main() -> None:
    request = json.loads(sys.argv[1])
    case = Case(**request["case"])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print do not disturb the answers
    if "--alone" in sys.argv:
        alone(request["driver"], case, answers)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the runner, which ends the case in order
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end_with_parent(signal.SIGTERM)
    try:
        serve(request["driver"], case, answers)
    except Exception as error:
        traceback.print_exc()
        say(answers, {"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


def serve(driver: str, case: Case, answers: TextIO) -> None:
    """Build the case, then answer commands until the input ends."""
    measurement = prepare(driver, case)
    try:
        pids = [os.getpid(), *getattr(measurement, "pids", list)()]
        others: list[float] = []
        steal: list[float] = []
        say(answers, {"ready": True})
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "result":
                load = {"other_cores": round(max(others, default=0.0), 2), "steal": round(max(steal, default=0.0), 2)}
                say(answers, {**measurement.result(), **load, "versions": versions(driver)})
                return
            before = cpu_use(pids)
            measurement.slice(float(command["seconds"]))
            disturbed = interference(before, cpu_use(pids))
            others.append(disturbed[0])
            steal.append(disturbed[1])
            say(answers, {"done": True})
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # closing is not to be interrupted; the runner kills in the end
        measurement.close()


def alone(driver: str, case: Case, answers: TextIO) -> None:
    measurement = prepare(driver, case)
    try:
        measurement.slice(1.0)
        say(answers, {"case": case.name, "driver": driver, **measurement.result(), "versions": versions(driver)})
    finally:
        measurement.close()


def prepare(driver: str, case: Case) -> Measurement:
    """One thread, then the table."""
    if driver != CEILING and case.op not in COUNTED:
        import torch

        torch.set_num_threads(1)
    return build(driver, case)


def versions(driver: str) -> dict[str, str]:
    """Of the libraries in this environment that bear on the result."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found if driver != CEILING else {}


def say(answers: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=answers, flush=True)


if __name__ == "__main__":
    main()
