"""What the hottest calls cost in instructions: a regression that no noise can hide or feign.

Counted by valgrind, with the interpreter's share. The numbers are of one compiler, Python and NumPy: others differ by a
few per cent, hence the allowance. `python -m pytest tests/performance -s` prints the counts; after a change that is
meant to cost more, or to keep a gain, write them here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker import ROOT

_ALLOWED = 1.15
INSTRUCTIONS = {
    "append": 7_808, "extend": 170_901, "sample": 175_774, "update": 88_752, "n_step": 173_655, "sequence": 52_627,
}  # fmt: skip


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed: apt install valgrind")
def test_no_call_costs_more_instructions_than_it_did(tmp_path: Path) -> None:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={tmp_path}/%p"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.performance.instructions"],
        cwd=ROOT, env=dict(os.environ, PYTHONHASHSEED="0"), check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts: dict[str, list[tuple[int, int]]] = {}
    for name, times, pid in (line.split() for line in done.stdout.splitlines()):
        total = re.search(r"^summary: (\d+)", (tmp_path / pid).read_text(), re.MULTILINE)
        assert total is not None
        counts.setdefault(name, []).append((int(times), int(total[1])))
    costs = {name: (many - few) // (n - m) for name, ((m, few), (n, many)) in counts.items()}
    print(costs)
    assert costs.keys() == INSTRUCTIONS.keys()
    dearer = {name: (cost, INSTRUCTIONS[name]) for name, cost in costs.items() if cost > _ALLOWED * INSTRUCTIONS[name]}
    assert dearer == {}
