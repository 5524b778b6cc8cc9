"""`conduit demo`: RLlib's DQN, stock and through Conduit; with --plain examples/dqn.py.

The example runs from a checkout or from an installed wheel.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from conduit_store.errors import ConduitError, MissingExtra

__all__ = ["examples_dir", "run", "run_rllib"]

NEEDS = ("torch", "gymnasium", "matplotlib", "rich")


def run_rllib(*, steps: int | None = None, seed: int | None = None, out: Path | None = None) -> int:
    """Train RLlib's DQN twice, report what changed, and return the exit status; see `conduit.rllib.demo.run`.

    Raises:
        MissingExtra: ray, torch, gymnasium, matplotlib or rich is not installed.
        ConfigError: so few `steps` (env steps of each run) that nothing would be learnt.
    """
    from conduit.rllib import demo

    return demo.run(steps=steps, seed=seed, out=out)


def run(argv: Sequence[str]) -> int:
    """Trains with the options `argv` of examples/dqn.py and returns its exit status: 0 solved.

    Main thread only: it takes over SIGINT, and gives it back.

    Raises:
        MissingExtra: torch, gymnasium, matplotlib or rich is not installed.
        ConduitError: the store cannot be made, or the examples are not part of this installation.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(f"conduit demo --plain needs {', '.join(missing)}: pip install 'conduit-edp[demo]'")
    folder = str(examples_dir())
    # Until the example handles Ctrl-C by itself, it ends the process: no traceback out of an import.
    before = signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    try:
        print("conduit demo: importing torch", flush=True)
        sys.path.insert(0, folder)
        status: int = importlib.import_module("dqn").main(list(argv))
    finally:
        sys.path.remove(folder)
        signal.signal(signal.SIGINT, before)
    return status


def examples_dir() -> Path:
    """The folder with dqn.py: beside this file in a wheel, beside the package in a checkout.

    Raises:
        ConduitError: neither has it.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "examples", here.parent / "examples"):
        if (folder / "dqn.py").is_file():
            return folder
    raise ConduitError(f"examples/dqn.py is neither in {here} nor beside it: install conduit-edp again")
