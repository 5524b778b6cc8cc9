"""examples/ppo_queue.py as a user runs it, for a few updates; nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

for extra in ("torch", "gymnasium"):
    pytest.importorskip(extra)

PPO = Path(__file__).resolve().parents[2] / "examples" / "ppo_queue.py"


def test_a_few_updates(tmp_path: Path) -> None:
    environment = os.environ | {"CONDUIT_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(PPO), "--updates=5"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "update   5   10,240 steps" in done.stdout
    assert "not solved" in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == [], "a store's name is left"
