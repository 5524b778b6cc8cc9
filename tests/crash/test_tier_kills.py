"""Who moves blocks between memory and disk is killed or stopped at each step: nobody's rows change, and all go on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_store.native import native
from tests.crash.points import LOCK_FREE, RUN_POINTS, TIER_POINTS
from tests.worker import ROOT

pytestmark = pytest.mark.crash

_SCRIPT = """
import ctypes, os, signal, sys
os.environ["CONDUIT_NATIVE"] = "test"
from pathlib import Path
import numpy as np
from conduit import Store, samplers
from conduit_store.native import native
from tests.disk_support import arm_again, check, columns, create, fill, move_again, settled, stopped_outside, tier

point, action, nth, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
store = Store.create(f"tiers-{os.getpid()}", "16MiB")
table = create(store, folder, compression=sys.argv[5] or None, sampler=samplers.Prioritized(alpha=1.0, beta=0.0))
fill(table, 5_000)


def work(first, rounds):
    for i in range(rounds):
        fill(table, 100, first + i * 100)
        blocks = list(table.blocks())
        old = blocks[len(blocks) // 4].keys  # on disk, and in there for some time
        del blocks
        table.update_priorities(old, np.full(len(old), 1e6))
        for _ in range(6):
            check(table.sample(64))


table._disk.stop()  # for now only the child moves blocks
if (child := os.fork()) == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive us
    arm_again(point, action)
    move_again(table)
    native.failpoint_arm(point, action, nth)
    first = 5_000
    while True:
        work(first, 10)
        first += 1_000
if action == "kill":
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
else:
    stopped_outside(table, child)
move_again(table)
work(100_000, 20)
if action == "stop":
    os.kill(child, signal.SIGCONT)
    work(200_000, 20)
    native.failpoint_arm(point, "kill", 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
table.verify()
batch = table.rows(np.concatenate([block.keys for block in table.blocks()]))
check(batch)
assert len(batch) == len(table) > 3_000, (len(batch), len(table))
before = tier(table)
assert before["blocks_written"] > 0 and before["blocks_promoted"] > 0 and before["failures"] == 0, before
work(300_000, 30)
table.clear()
fill(table, 100, 400_000)  # whoever is short of a frame takes back those of the dead
fill(table, 5_000, 400_100)
settled(table)
table.verify()
store.close()
assert list(folder.iterdir()) == []
print("ok")
"""


def played(runtime_dir: Path, script: str, *arguments: str) -> None:
    """Run a script in a process of its own, from the repository's root: it ends well, and has said ok."""
    environment = dict(os.environ, CONDUIT_RUNTIME_DIR=str(runtime_dir))
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


_STRIKES = [(point, "kill", nth) for point in TIER_POINTS for nth in (1, 3)]
_STRIKES += [(point, "stop", 2) for point in TIER_POINTS if point in LOCK_FREE]


@pytest.mark.parametrize(("point", "action", "nth"), _STRIKES)
def test_a_mover_is_struck(session_runtime_dir: Path, tmp_path: Path, point: str, action: str, nth: int) -> None:
    played(session_runtime_dir, _SCRIPT, point, action, str(nth), str(tmp_path), "")


@pytest.mark.parametrize("point", TIER_POINTS)
def test_a_mover_that_compresses_is_killed(session_runtime_dir: Path, tmp_path: Path, point: str) -> None:
    if not native.has_codec("zstd"):
        pytest.skip("libzstd is not on this machine")
    played(session_runtime_dir, _SCRIPT, point, "kill", "1", str(tmp_path), "zstd")


_PINNED = """
import os, sys
os.environ["CONDUIT_NATIVE"] = "test"
from contextlib import suppress
from pathlib import Path
from conduit import AppendTimeout, Store
from conduit_store.native import native
from tests.disk_support import columns, create, fill, settled

store = Store.create(f"pinned-{os.getpid()}", "16MiB")
table = create(store, Path(sys.argv[1]))
fill(table, 2_000)
settled(table)
hits, first = native.failpoint_hits("tier_copied"), 2_000
native.failpoint_arm("tier_copied", "pause", 1)
while native.failpoint_hits("tier_copied") == hits:
    with suppress(AppendTimeout):  # the mover may be held before these rows have room
        table.extend(columns(first, 10), timeout=0.2)
    first += 10
views = [block.to_arrow() for block in table.blocks()]  # also of those that are just being moved
want = [view.column("x").to_pylist() for view in views]
native.failpoint_resume()
while True:  # as many rows as memory has room for, which nobody's view is of
    try:
        table.extend(columns(first, 10), timeout=1.0)
    except AppendTimeout:
        break
    first += 10
assert [view.column("x").to_pylist() for view in views] == want
del views
table.verify()
fill(table, 2_000, first)
table.verify()
store.close()
print("ok")
"""


def test_who_pins_a_block_that_is_on_its_way_keeps_it(session_runtime_dir: Path, tmp_path: Path) -> None:
    played(session_runtime_dir, _PINNED, str(tmp_path))


_QUEUE = """
import ctypes, os, signal, sys, time
os.environ["CONDUIT_NATIVE"] = "test"
from pathlib import Path
from conduit import AppendTimeout, Disk, Store
from conduit_store.native import native
from tests.disk_support import SCHEMA, arm_again, check, columns, move_again, settled, stopped_outside, tier

point, action, nth, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
store = Store.create(f"backlogs-{os.getpid()}", "16MiB")
queue = store.create_queue("q", SCHEMA, 100_000, max_writers=2, disk=Disk(folder, "200KB"), lease_timeout=600.0)
queue._table._disk.stop()  # for now only the child moves blocks
told, tell = os.pipe()
if (child := os.fork()) == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive us
    arm_again(point, action)
    move_again(queue._table)
    native.failpoint_arm(point, action, nth)
    first = 0
    while first < 30_000:  # it is struck long before
        queue.extend(columns(first, 100))
        os.write(tell, b".")
        first += 100
        if first % 1_000 == 0:
            batch = queue.sample(300)
            check(batch)
            batch.ack(batch.keys[:100])  # and goes back with the rest
            del batch
    os._exit(1)
os.close(tell)
if action == "kill":
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
else:
    stopped_outside(queue._table, child)
    os.set_blocking(told, False)
appended = 100 * len(os.read(told, 1 << 16))
move_again(queue._table)
for first in range(50_000, 53_000, 100):
    queue.extend(columns(first, 100))
settled(queue._table)
queue._table.verify()
assert tier(queue._table)["blocks_on_disk"] > tier(queue._table)["frames"]
if action == "stop":
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
found = []
while len(queue):
    batch = queue.sample(250, timeout=5.0, partial=True)
    check(batch)
    found += batch["x"].tolist()
    batch.ack()
    del batch  # it holds the file
mine, others = [x for x in found if x >= 50_000], [x for x in found if x < 50_000]
assert mine == list(range(50_000, 53_000))
assert len(set(others)) == len(others) and set(others) <= set(range(appended + 100))
done = 100 * (appended // 1_000)
assert len(others) in {appended - done, appended - done + 100, appended - done - 100}, (len(others), appended)
queue._table.verify()
store.close()
assert list(folder.iterdir()) == []
print("ok")
"""

_QUEUED = [("tier_given", "kill", 4), ("tier_chosen", "kill", 1), ("tier_copied", "kill", 3)]
_QUEUED += [("tier_placed", "kill", 2), ("tier_copied", "stop", 3), ("ack_decided", "kill", 2)]


@pytest.mark.parametrize(("point", "action", "nth"), _QUEUED)
def test_a_mover_of_a_queue_is_struck(
    session_runtime_dir: Path, tmp_path: Path, point: str, action: str, nth: int
) -> None:
    played(session_runtime_dir, _QUEUE, point, action, str(nth), str(tmp_path))


_RUN = """
import ctypes, os, signal, sys
os.environ["CONDUIT_NATIVE"] = "test"
from pathlib import Path
import numpy as np
from conduit import Disk, Store
from conduit_store.native import native
from tests.disk_support import arm_again, move_again, settled, stopped_outside
from tests.varying import SCHEMA, columns, faults

point, action, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
store = Store.create(f"runs-{os.getpid()}", "16MiB")
table = store.create_table("t", SCHEMA, 1_000, max_writers=2, disk=Disk(folder, "60KB"))


def work(first, n):
    for serial in range(first, first + n, 10):
        table.extend(columns(range(serial, serial + 10), [1_500, *range(9)]))


work(0, 300)
table._disk.stop()
if (child := os.fork()) == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    arm_again(point, action)
    move_again(table)
    native.failpoint_arm(point, action, 4)
    work(1_000, 5_000)
    os._exit(1)
if action == "kill":
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
else:
    stopped_outside(table, child)
move_again(table)
work(10_000, 2_000)
if action == "stop":
    os.kill(child, signal.SIGCONT)
    work(20_000, 500)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    work(30_000, 1_500)
settled(table)
table.verify()
batch = table.rows(np.concatenate([block.keys for block in table.blocks()]))
assert faults(batch) == [] and len(batch) == len(table) > 50, (faults(batch)[:3], len(batch), len(table))
assert 1_500 in batch["tokens"].lengths
store.close()
print("ok")
"""


@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize("point", RUN_POINTS)
def test_who_appends_a_row_larger_than_a_block_is_struck(
    session_runtime_dir: Path, tmp_path: Path, point: str, action: str
) -> None:
    played(session_runtime_dir, _RUN, point, action, str(tmp_path))
