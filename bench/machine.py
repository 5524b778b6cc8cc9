"""The machine and the versions a result belongs to."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.ceilings import cpu_model

ROOT = Path(__file__).parent.parent


def describe() -> dict[str, Any]:
    """First line of a results file."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": {
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(memory, 1),
            "kernel": platform.release(),
            "huge_pages_for_shared_memory": shared_huge_pages(),
            "python": platform.python_version(),
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "load_at_start": round(os.getloadavg()[0], 2),
        }
    }


def shared_huge_pages() -> str:
    """The chosen mode of the kernel's setting."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text(encoding="ascii")
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or "unknown"


def commit() -> str:
    """Of the working tree, with '+' when something in it is not committed; 'unknown' outside git."""
    try:
        named = git("rev-parse", "--short=12", "HEAD")
        return named + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
