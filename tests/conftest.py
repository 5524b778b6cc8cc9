"""For every test: a runtime directory that is the session's own, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

_SETTLE_S = 3.0  # for threads that are just ending, and for children that have been told to
# Opened once and kept, by Python and libraries; none of them is ours.
_IGNORED = ("/dev/", "/proc/", "/sys/", "anon_inode:[eventpoll]", "/usr/", "/etc/")
_SERVANTS = ("resource_tracker", "multiprocessing.forkserver")


@pytest.fixture(autouse=True, scope="session")
def session_runtime_dir() -> Iterator[Path]:
    """Names of stores lead into a directory of this session: short, for the limit on socket paths."""
    path = Path(tempfile.mkdtemp(prefix="cdt-", dir="/tmp"))
    before = os.environ.get("CONDUIT_RUNTIME_DIR")
    os.environ["CONDUIT_RUNTIME_DIR"] = str(path)
    yield path
    os.environ.pop("CONDUIT_RUNTIME_DIR")
    if before is not None:
        os.environ["CONDUIT_RUNTIME_DIR"] = before
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(session_runtime_dir: Path) -> Iterator[None]:
    """Fail a test that leaves a segment, a child process, a thread, a store's name or a descriptor behind."""
    before = _belongings(session_runtime_dir)
    yield
    end = time.monotonic() + _SETTLE_S
    left = _belongings(session_runtime_dir) - before
    while left and time.monotonic() < end:
        gc.collect()  # what waits for the collector is not leaked
        time.sleep(0.01)
        left = _belongings(session_runtime_dir) - before
    if left:
        pytest.fail(f"left behind: {', '.join(sorted(left))}", pytrace=False)


def _belongings(runtime_dir: Path) -> set[str]:
    """What this process holds that a test must give back, each as a line of text."""
    found = {f"thread {thread.name}" for thread in threading.enumerate() if thread.name.startswith("conduit-")}
    found |= {f"name {path.name}" for path in runtime_dir.glob("*.sock")}
    found |= {f"child {pid} ({command})" for pid, command in _children()}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if not target.startswith(_IGNORED):
                found.add(f"descriptor {fd} -> {target}")
    return found


def _children() -> Iterator[tuple[int, str]]:
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            for pid in (task / "children").read_text().split():
                command = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
                if not any(servant in command for servant in _SERVANTS):
                    yield int(pid), command[:80] or "ended, not waited for"
