"""TorchRL over Conduit. It loads ray and changes how processes start, so all of it runs in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "integration" / "torch_rl" / "buffer.py"
NAMES = re.findall(r"^def (test_\w+)\(", TESTS.read_text(), re.M)


@cache
def outcomes() -> tuple[dict[str, set[str]], str]:
    """Run the tests; what came of each, and what pytest said."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-vp", "no:cacheprovider", "-W", "ignore::DeprecationWarning", str(TESTS)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # torch threads fight on a busy machine
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found: dict[str, set[str]] = {}
    for name, outcome in re.findall(r"::(test_\w+)\S* (PASSED|FAILED|ERROR|SKIPPED)", done.stdout):
        found.setdefault(name, set()).add(outcome)
    return found, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_torchrl(name: str) -> None:
    found, said = outcomes()
    assert found.get(name) == {"PASSED"}, said[-5000:]
