"""RLlib through Conduit, against RLlib itself. Ray starts once for all of it, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "integration" / "rllib"  # its files import ray, so they are read here and not imported

SOURCES = [(FOLDER / name).read_text() for name in ("exact.py", "on_policy.py", "offline.py", "behaviour.py")]
EXACT = [f"exact_{name}" for source in SOURCES for name in re.findall(r'^    "(\w+)": lambda: exact', source, re.M)]
BEHAVIOUR = [name for source in SOURCES for name in re.findall(r"^def (\w+)\(\) -> None:", source, re.M)]
FLOW = re.compile(r'^    "(\w+)": lambda: (?:flows|restarts|tunes)\(', re.M)
FLOWS = [name for source in SOURCES for name in FLOW.findall(source)]
# Processes start, which takes each ten seconds, and some die: minutes.
SLOW = (
    "remote_runners", "tune_dqn", "crash", "exact_dqn_learners", "exact_dqn_lstm_learners", "exact_sac_learners",
    "exact_ppo_remote", "exact_ppo_learners", *FLOWS,
)  # fmt: skip
QUICK = [name for name in (*EXACT, *BEHAVIOUR) if name not in SLOW]


@cache
def outcomes(names: tuple[str, ...]) -> dict[str, str | None]:
    """Run the scenarios; the traceback of each, None where it passed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.rllib", *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},  # torch threads fight on a busy machine
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]
    found = {line["scenario"]: line["error"] for line in lines}
    if sorted(found) != sorted(names):
        pytest.fail(f"ran {sorted(found)}, status {done.returncode}: {done.stderr[-3000:]}")
    return found


def check(names: tuple[str, ...], name: str) -> None:
    error = outcomes(names)[name]
    if error:
        pytest.fail(error, pytrace=False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", QUICK)
def test_rllib(name: str) -> None:
    check(tuple(QUICK), name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SLOW)
def test_rllib_with_processes(name: str) -> None:
    check(SLOW, name)


def test_every_scenario_is_run() -> None:
    assert set(SLOW) < {*BEHAVIOUR, *EXACT, *FLOWS}
    assert len(EXACT) == 32
    assert len(FLOWS) == 9
