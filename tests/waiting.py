"""Waiting for what another thread or process is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0


def until(condition: Callable[[], object]) -> None:
    """Return once `condition` holds; it is what the test waits for, so there is nothing else to wake it."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        time.sleep(0.001)
