"""What make and CMake do before any of our own code can: refuse other systems, end quietly on Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_ctrl_c_while_the_demo_is_being_imported(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, str(ROOT / "tools" / "demo.py")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")


def test_cmake_for_another_system(tmp_path: Path) -> None:
    cmake = Path(sys.executable).parent / "cmake"
    if not cmake.exists():
        pytest.skip(f"no {cmake}: the environment was not made by make setup")
    command = [str(cmake), "-S", str(ROOT), "-B", str(tmp_path), "-DCMAKE_SYSTEM_NAME=FreeBSD"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "Conduit needs Linux 5.14 or newer" in said
    assert "this is a build for FreeBSD" in said
