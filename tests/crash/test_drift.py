"""A process dies inside the index lock: nothing that was drawn before counts as close to what is there now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.store_support import fresh_store, plain_table, prioritized

pytestmark = pytest.mark.crash
ROOT = Path(__file__).resolve().parents[2]

CHANGE = """
import sys
import numpy as np
import conduit
from conduit_store.native import native
table = conduit.Store.attach(sys.argv[1])["t"]
keys = table.sample(8).keys
native.failpoint_arm(sys.argv[2], "kill", 1)
if "alpha" in sys.argv[3]:
    table.reconfigure(alpha=0.5)
table.extend({"x": np.arange(40)}, priorities=np.ones(40))
table.update_priorities(keys, np.full(8, 3.0))
"""
PREPARE = """
import sys, time
import conduit
from conduit_store.native import native
table = conduit.Store.attach(sys.argv[1])["t"]
loader = table.loader(8, prefetch=2)
next(loader)
native.failpoint_arm(sys.argv[2], "kill", 1)
while True:
    next(loader)
"""


def killed(code: str, *args: str) -> None:
    """Run `code` in a process of the build with failpoints, which must die of one."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        cwd=ROOT, env=dict(os.environ, CONDUIT_NATIVE="test"), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


@pytest.mark.parametrize(
    ("point", "what"),
    [
        ("update_locked", "update"),
        ("tree_raw_written", "update"),
        ("tree_leaves_written", "update"),
        ("tree_level_written", "update"),
        ("tree_done", "update"),
        ("update_done", "update"),
        ("tree_done", "alpha update"),
    ],
)
def test_after_a_death_in_the_lock_everything_counts_as_changed(point: str, what: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, sampler=prioritized())
        table.extend({"x": np.arange(30)}, priorities=np.arange(1.0, 31.0))
        core = table._native
        mark = core.mark(0)
        assert core.drift(0, mark) == (0.0, False)
        with table.loader(8, prefetch=2, max_priority_drift=0.9, stream=0) as loader:
            next(loader)
            end = time.monotonic() + 10
            while loader.metrics().ready < 2:
                assert time.monotonic() < end
            killed(CHANGE, store.name, point, what)
            assert core.drift(0, mark) == (1.0, True)
            batch = next(loader)
            assert loader.metrics().redrawn >= 1
            live = table.priorities(batch.keys)
            masses = live ** core.settings().view(0).alpha / table.info().total_priority
            assert np.allclose(batch.probabilities, masses)
        assert table.info().recoveries == 1
        now = core.mark(0)
        table.update_priorities(batch.keys[:1], live[:1] + np.float32(1))
        bound, changed = core.drift(0, now)
        assert changed
        assert 0 < bound < 0.1
        table.verify()


@pytest.mark.parametrize("point", ["draw_locked", "draw_done", "gather_begin", "gather_end", "reader_entered"])
def test_a_loader_may_be_killed_anywhere(point: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, sampler=prioritized())
        table.extend({"x": np.arange(64)})
        killed(PREPARE, store.name, point)
        for _ in range(10):
            table.extend({"x": np.arange(64)})  # its epoch holds nothing up
        assert len(table.sample(8)) == 8
        table.verify()
