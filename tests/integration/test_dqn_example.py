"""examples/dqn.py as a user runs it: short, interrupted, and with an actor that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

for extra in ("torch", "gymnasium", "matplotlib", "rich"):
    pytest.importorskip(extra)

DQN = Path(__file__).resolve().parents[2] / "examples" / "dqn.py"
COUNTS = re.compile(r"not solved: .*?, ([\d,]+) env steps, ([\d,]+) episodes, ([\d,]+) updates")


class Start(Protocol):
    """The fixture `start`."""

    def __call__(self, *options: str) -> subprocess.Popen[str]: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a demo with names of its own; afterwards no process and no name may be left."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(DQN), f"--out={tmp_path / 'out'}", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "CONDUIT_RUNTIME_DIR": str(runtime)},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
        assert actors_of(process.pid) == []
    assert list(runtime.glob("*.sock")) == []


def actors_of(learner: int) -> list[int]:
    """Processes that play into the store of the process `learner`, whoever their parent is by now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"dqn-%d" % learner in words:
                found.append(int(entry.name))
    return found


def wait_for_actors(learner: subprocess.Popen[str], count: int) -> list[int]:
    deadline = time.monotonic() + 60
    while len(found := actors_of(learner.pid)) < count:
        assert learner.poll() is None, "the learner ended first"
        assert time.monotonic() < deadline, f"{len(found)} of {count} actors after 60 s"
        time.sleep(0.02)
    return found


def first_line_with(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was never printed")


def test_a_short_run(start: Start, tmp_path: Path) -> None:
    learner = start("--steps=2500", "--seed=3")
    out, err = learner.communicate(timeout=100)
    assert err == ""
    assert learner.returncode == 1, out
    counts = COUNTS.search(out)
    assert counts is not None, out
    steps, episodes, updates = (int(count.replace(",", "")) for count in counts.groups())
    assert 2_500 <= steps < 5_000
    assert episodes > 20
    assert updates > 100
    for stage in ("ingest", "draw", "gather", "learn", "exposed wait"):
        assert stage in out
    (plot,) = (tmp_path / "out").glob("*/dqn.png")
    assert f"plot: {plot}" in out
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_it_trains(start: Start, number: signal.Signals) -> None:
    learner = start()
    first_line_with(learner, "env steps")
    wait_for_actors(learner, 2)
    learner.send_signal(number)
    out, err = learner.communicate(timeout=60)
    assert err == ""
    assert learner.returncode == 130
    assert "interrupted: mean return" in out


def test_an_actor_that_dies_ends_the_run(start: Start) -> None:
    learner = start()
    victim = wait_for_actors(learner, 2)[0]
    os.kill(victim, signal.SIGKILL)
    _, err = learner.communicate(timeout=60)
    assert learner.returncode == 2
    assert re.fullmatch(rf"dqn: actor \d \(pid {victim}\) ended with status -9\n", err)


def test_actors_end_when_the_learner_is_killed(start: Start, tmp_path: Path) -> None:
    learner = start()
    wait_for_actors(learner, 2)
    first_line_with(learner, "env steps")
    learner.kill()
    deadline = time.monotonic() + 30
    while actors_of(learner.pid):
        assert time.monotonic() < deadline, "the actors outlived their learner by 30 s"
        time.sleep(0.02)
    for path in (tmp_path / "run").glob("*.sock"):
        path.unlink()  # a killed creator cannot do that; users have `conduit gc`
