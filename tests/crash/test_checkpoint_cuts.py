"""A process that saves is paused or killed between two steps: later changes are not in the cut, and nobody waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from conduit import Table, checkpoints
from tests.checkpoint_support import restored
from tests.store_support import column_of, fresh_store, keys_of, plain_table, prioritized

pytestmark = pytest.mark.crash
ROOT = Path(__file__).resolve().parents[2]

SAVE = """
import sys, threading, time
import conduit
from conduit_store.native import native
name, folder, point, action = sys.argv[1:]
store = conduit.Store.attach(name)
store.tables() and store["t"]
native.failpoint_arm(point, action, 1)

def watch():
    while native.failpoint_hits(point) == 0:
        time.sleep(0.001)
    print("there", flush=True)
    sys.stdin.readline()
    native.failpoint_resume()

if action == "pause":
    threading.Thread(target=watch, daemon=True).start()
store.checkpoint(folder)
store.close()
"""


@contextmanager
def saving(store: str, folder: Path, point: str, action: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE, store, str(folder), point, action],
        cwd=ROOT, env=dict(os.environ, CONDUIT_NATIVE="test"), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def go_on(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate("\n", timeout=60)
    assert process.returncode == 0, said


def by_key(table: Table) -> dict[int, float]:
    keys = keys_of(table)
    return dict(zip(keys.tolist(), table.priorities(keys).tolist(), strict=True))


@pytest.mark.parametrize("changes", [1, 3, 200])
def test_what_changes_after_the_cut_is_not_in_it(tmp_path: Path, changes: int) -> None:
    """200 changes of every row are more than are remembered: then another cut is taken, which has them."""
    with fresh_store() as store:
        table = plain_table(store, 200, sampler=prioritized(), max_writers=1)
        table.extend({"x": np.arange(150)}, priorities=np.arange(150) + 1.0)
        before = by_key(table)
        with saving(store.name, tmp_path, "cut_copying", "pause") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            for n in range(changes):
                table.update_priorities(keys_of(table), np.arange(len(table)) + 1000.0 * (n + 1))
            table.extend({"x": np.arange(150, 200)})  # priorities of these become known when they are folded
            table.sample(1)
            table.extend({"x": np.arange(200, 210)})  # and these push others out
            table.sample(1)
            after = by_key(table)
            go_on(process)
        with restored(tmp_path) as again:
            if changes < 200:
                assert by_key(again["t"]) == before
                assert column_of(again["t"]).tolist() == list(range(150))
            else:
                assert by_key(again["t"]) == after
                assert column_of(again["t"]).tolist() == list(range(10, 210))
        table.verify()


@pytest.mark.parametrize("point", ["cut_locked", "cut_held", "cut_copying", "cut_released"])
def test_a_dead_saver_holds_up_nobody(tmp_path: Path, point: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, sampler=prioritized(), max_writers=1)
        table.extend({"x": np.arange(64)})
        store.checkpoint(tmp_path)
        with saving(store.name, tmp_path, point, "kill") as process:
            assert process.wait(60) == -signal.SIGKILL
        for n in range(20):
            table.extend({"x": np.full(30, n)}, timeout=5.0)
            table.update_priorities(keys_of(table), np.ones(len(keys_of(table))))
        table.verify()
        assert checkpoints.verify(tmp_path).number in (1, 2)
        store.checkpoint(tmp_path)
        with restored(tmp_path) as again:
            assert column_of(again["t"]).tolist() == column_of(table).tolist()
