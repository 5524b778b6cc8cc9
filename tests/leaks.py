"""What a test must give back: segments, descriptors, child processes, threads, names of stores."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["belongings", "left_behind"]

_SETTLE_S = 3.0  # for threads that are just ending, and for children that have been told to
# Opened once and kept, by Python and libraries; none of them is ours.
_IGNORED = ("/dev/", "/proc/", "/sys/", "anon_inode:[eventpoll]", "/usr/", "/etc/")
_SERVANTS = ("resource_tracker", "multiprocessing.forkserver")


def left_behind(before: set[str], runtime_dir: Path) -> list[str]:
    """Return what is there and was not in `before`, after a while in which it may still go."""
    end = time.monotonic() + _SETTLE_S
    while (left := belongings(runtime_dir) - before) and time.monotonic() < end:
        gc.collect()  # what waits for the collector is not leaked
        time.sleep(0.01)
    return sorted(left)


def belongings(runtime_dir: Path) -> set[str]:
    """Return what this process holds that a test must give back, each as a line of text."""
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
