"""The short examples as a user runs them, with nothing left behind; dqn.py has tests of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until

for extra in ("torch", "gymnasium"):
    pytest.importorskip(extra)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    folder.mkdir(mode=0o700, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CONDUIT_RUNTIME_DIR": str(folder)},
    )


def finish(folder: Path, process: subprocess.Popen[str]) -> tuple[int, str]:
    out, error = process.communicate(timeout=300)
    assert error == ""
    assert list(folder.glob("*.sock")) == []
    return process.returncode, out


def test_her_learns_and_does_not_without_hindsight(tmp_path: Path) -> None:
    """One process, seeded: the same run every time."""
    status, out = finish(tmp_path / "a", start(tmp_path / "a", "her.py", "--bits=10", "--rounds=60"))
    assert status == 0, out
    status, out = finish(tmp_path / "b", start(tmp_path / "b", "her.py", "--bits=10", "--rounds=60", "--ratio=0"))
    assert status == 1, out
    assert " 960 episodes" in out


def test_r2d2_runs(tmp_path: Path) -> None:
    status, out = finish(tmp_path / "a", start(tmp_path / "a", "r2d2_windows.py", "--corridor=3", "--rounds=40"))
    assert status == 0, out


def test_ppo_makes_a_few_updates(tmp_path: Path) -> None:
    status, out = finish(tmp_path / "a", start(tmp_path / "a", "ppo_queue.py", "--updates=5"))
    assert status == 1, out
    assert "update   5   10,240 steps" in out
    assert "not solved" in out


def test_offline_clones_what_it_recorded(tmp_path: Path) -> None:
    """One process, seeded; the files stay where they were asked for."""
    command = ("offline.py", "--steps=6000", "--epochs=3", f"--folder={tmp_path / 'experience'}")
    status, out = finish(tmp_path / "a", start(tmp_path / "a", *command))
    assert status == 0, out
    assert "the clone balances for" in out
    assert [file.name for file in (tmp_path / "experience").iterdir()] == ["part-00000.parquet"]


def test_grpo_learns(tmp_path: Path) -> None:
    """Three processes that run as they will, so not the same every time: the target is far below what it gets to."""
    picture = tmp_path / "curve.png"
    command = ("grpo_rollouts.py", "--target=0.3", f"--plot={picture}")
    status, out = finish(tmp_path / "a", start(tmp_path / "a", *command))
    assert status == 0, out
    assert "accuracy 0.0" in out.splitlines()[0]
    assert "of 128 unseen prompts right" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_grpo_ends_with_its_workers_at_ctrl_c(tmp_path: Path) -> None:
    process = start(tmp_path / "a", "grpo_rollouts.py")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "update  20" in first
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    status, _ = finish(tmp_path / "a", process)
    assert status == 130
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))  # Python's tracker ends last
