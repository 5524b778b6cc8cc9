"""Runs pip and says how far it is: packages or compile steps of how many, rate, time so far, time left.

On a terminal one line is redrawn in place; elsewhere a line is printed every few seconds. The whole output of
pip goes to a log file, whose end is shown when pip fails. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

COLLECTED = re.compile(r"\s*(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9_.-]+)")
WHEEL = re.compile(
    r"\s*(?:Downloading|Using cached|Processing) (\S*?([^/\s]+)\.whl)(?: \(([\d.]+) ([kMG])B\))?$"
)
BYTES = re.compile(r"Progress (\d+) of (\d+)")
INSTALLING = re.compile(r"Installing collected packages: (.*)")
COMPILED = re.compile(r"\[(\d+)/(\d+)\] (?:Build|Link)")
SCALE = {"k": 1e-3, "M": 1.0, "G": 1e3}
MB = 1_000_000


class Interrupted(Exception):
    """The user pressed Ctrl-C; pip has ended."""


class PipFailed(Exception):
    """pip ended with an error; the text says where its output is and what may help."""


class Progress:
    """What is known of one run of pip. `read` is fed its lines by one thread, `line` is asked by another."""

    def __init__(self, label: str, total: int, site: Path | None) -> None:
        self.label, self.total, self.site = label, total, site
        self.started = self.phase_began = time.monotonic()
        self.collected: set[str] = set()
        self.installing: set[str] = set()
        self.sizes: dict[str, float] = {}  # MB by package: a large one takes its share of the time
        self.steps = (0, 0)
        self.download = ("", 0, 0, 0.0)  # name, bytes so far, bytes in all, when it began

    def read(self, text: str) -> None:
        text = text.rstrip()
        if match := COLLECTED.match(text):
            self.collected.add(_norm(match[1]))
        elif match := WHEEL.match(text):
            self.download = (match[2].partition("-")[0], 0, 0, time.monotonic())
            self.sizes[_norm(self.download[0])] = _megabytes(match[1], match[3], match[4])
        elif match := BYTES.match(text):
            name, _, _, began = self.download
            self.download = (name, int(match[1]), int(match[2]), began)
        elif match := INSTALLING.match(text):
            self.phase_began = time.monotonic()
            self.installing = {_norm(name) for name in match[1].split(",")}
        elif match := COMPILED.search(text):
            self.steps = (int(match[1]), int(match[2]))

    def line(self) -> str:
        elapsed = time.monotonic() - self.started
        if self.total == 0:
            state, share = self._compiling(elapsed)
        elif self.installing:
            state, share = self._installing()
        else:
            state, share = self._collecting(elapsed)
        left = f", about {_clock(elapsed * (1 - share) / share)} left" if 0.05 < share < 1 else ""
        return f"{self.label}: {state}, {_clock(elapsed)} so far{left}"

    def _compiling(self, elapsed: float) -> tuple[str, float]:
        done, total = self.steps
        if total == 0:
            return "configuring", 0.0
        return f"compiled {done}/{total} ({60 * done / elapsed:.0f}/min)", done / total

    def _collecting(self, elapsed: float) -> tuple[str, float]:
        total = max(self.total, len(self.collected))
        state = f"found {len(self.collected)}/{total} ({len(self.collected) / max(elapsed, 0.1):.1f}/s)"
        name, so_far, size, began = self.download
        if size > 10 * MB and so_far < size:
            rate = so_far / max(time.monotonic() - began, 0.1)
            left = _clock((size - so_far) / max(rate, 1))
            state += f", {name} {so_far / MB:.0f}/{size / MB:.0f} MB at {rate / MB:.0f} MB/s ({left} left)"
        return state, 0.5 * len(self.collected) / total

    def _installing(self) -> tuple[str, float]:
        records = self.site.glob("*.dist-info/RECORD") if self.site else ()
        done = self.installing & {_norm(record.parent.name.partition("-")[0]) for record in records}
        weight = {name: 1.0 + self.sizes.get(name, 0.0) for name in self.installing}
        rate = len(done) / max(time.monotonic() - self.phase_began, 0.1)
        share = sum(weight[name] for name in done) / sum(weight.values())
        return f"installed {len(done)}/{len(self.installing)} ({rate:.1f}/s)", 0.3 + 0.7 * share


def run_pip(label: str, command: list[str], log: Path, *, total: int) -> None:
    """Runs one pip command to its end; blocks.

    `total` is how many packages are expected, or 0 for a build, whose compile steps are counted instead.

    Raises:
        PipFailed: pip failed; the end of its output has been printed.
        Interrupted: the user pressed Ctrl-C; pip and what it had started have been stopped.
    """
    site = next((Path(command[0]).parent.parent / "lib").glob("python3*/site-packages"), None)
    progress = Progress(label, total, site)
    env = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONUNBUFFERED="1")
    with open(log, "a") as out:
        out.write(f"\n$ {' '.join(command)}\n")
        # A session of its own: Ctrl-C then reaches pip and its compilers once, through _stop.
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            close_fds=False,
        )
        reader = threading.Thread(target=_pump, args=(child, out, progress), daemon=True)
        try:
            reader.start()
            _show(progress, reader)
            code = child.wait()
        except KeyboardInterrupt:
            _stop(child)
            raise Interrupted from None
    if code != 0:
        raise PipFailed(_explain(label, code, log))
    print(f"[setup] {label}: done in {_clock(time.monotonic() - progress.started)}", flush=True)


def _pump(child: subprocess.Popen[str], out: TextIO, progress: Progress) -> None:
    assert child.stdout is not None
    for text in child.stdout:
        progress.read(text)
        if not BYTES.match(text):
            out.write(text)


def _show(progress: Progress, reader: threading.Thread) -> None:
    terminal = sys.stdout.isatty()
    while reader.is_alive():
        if terminal:
            width = os.get_terminal_size().columns
            print("\r\x1b[K" + f"[setup] {progress.line()}"[: width - 1], end="", flush=True)
        else:
            print(f"[setup] {progress.line()}", flush=True)
        reader.join(0.25 if terminal else 5.0)
    if terminal:
        print("\r\x1b[K", end="", flush=True)


def _stop(child: subprocess.Popen[str]) -> None:
    for number, patience_s in ((signal.SIGINT, 5), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, number)
            child.wait(patience_s)


def _explain(label: str, code: int, log: Path) -> str:
    """Prints the end of pip's output; returns the message that sums it up."""
    text = log.read_text(errors="replace").rpartition("\n$ ")[2]
    lines = [line for line in text.splitlines() if "is ignored: it is neither" not in line]
    print("\n".join(lines[-40:]), file=sys.stderr)
    hint = ""
    if "No space left on device" in text:
        hint = ". The disk is full: make room and run make again"
    elif any(sign in text for sign in ("NewConnectionError", "No matching distribution", "ConnectTimeout")):
        hint = ". A package was not found: can the package index be reached? Do the pins serve this Python?"
    return f"{label} failed: pip ended with {code}, its output is in {log}{hint}"


def _megabytes(path: str, number: str | None, unit: str | None) -> float:
    if number and unit:
        return float(number) * SCALE[unit]
    return os.path.getsize(path) / MB if os.path.exists(path) else 0.0


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _norm(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
