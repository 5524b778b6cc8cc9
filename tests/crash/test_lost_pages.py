"""Numbers that are rewritten on disk, and a disk that does not take them.

The kernel writes their pages back when it likes, and tells the next sync alone that it could not. Whoever syncs next,
and for whatever, has each process told once, and nothing stops.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.test_tier_kills import played

pytestmark = pytest.mark.crash

_COMMON = """
import os, sys
os.environ["CONDUIT_NATIVE"] = "test"
from pathlib import Path
import numpy as np
from conduit import Column, Disk, DiskError, Schema, Store
from conduit_store.native import native
from tests.disk_support import SCHEMA, check, columns, move_again, settled, tier
from tests.waiting import until

store = Store.create(f"lost-{os.getpid()}", "64MiB")
schema = Schema((*SCHEMA.columns, Column("reward", np.dtype("f4"), mutable=True)))


def extend(table, first, n, step):
    for at in range(first, first + n, step):
        table.extend({**columns(at, step), "reward": np.zeros(step, np.float32)})


def made(name):
    folder = Path(sys.argv[1]) / name
    folder.mkdir()
    table = store.create_table(name, schema, 4_000, max_writers=2, disk=Disk(folder, "200KB"))
    extend(table, 0, 4_000, 100)
    settled(table)
    return table, next(iter(table.blocks())).keys  # the oldest: on disk


def rewrite(table, keys, number):
    table.update(keys, reward=np.full(len(keys), number, np.float32))


def confirmed(table):
    before = native.failpoint_hits("tier_sync")
    table._native.wake_movers()
    until(lambda: native.failpoint_hits("tier_sync") > before)


def heard(call):
    try:
        call()
    except DiskError as error:
        return str(error)
    return ""


LOST = "that were rewritten may not have reached the disk, file "
"""

_TOLD = (
    _COMMON
    + """
who = sys.argv[2]
table, keys = made("t")
ask, asked = os.pipe()
if (child := os.fork()) == 0:
    os.read(ask, 1)
    told = [heard(lambda: table.rows(keys)) for _ in range(2)]
    os._exit(0 if LOST in told[0] and told[1] == "" else 1)

native.failpoint_arm("tier_sync", "fail", 1)
rewrite(table, keys, 1)
table._native.wake_movers()
until(lambda: tier(table)["losses"] == 1)
if who == "loader":
    with table.loader(256) as loader:
        told = heard(lambda: next(loader))
else:
    calls = {"update": lambda: rewrite(table, keys, 2), "rows": lambda: table.rows(keys),
             "sample": lambda: table.sample(256)}
    told = heard(calls[who])
assert LOST in told and "Input/output error" in told, told
assert (table.rows(keys)["reward"] == 1).all()
rewrite(table, keys, 3)
confirmed(table)
check(table.sample(256))
assert (table.rows(keys)["reward"] == 3).all()
os.write(asked, b".")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
told = table.info().disk
assert (told.losses, told.failures) == (1, 1), told
extend(table, 4_000, 2_000, 100)
table.verify()
store.close()
print("ok")
"""
)

_OTHERS = (
    _COMMON
    + """

def fails_to_move(table):
    native.failpoint_arm("tier_sync", "fail", 1)
    move_again(table)
    while tier(table)["failures"] == 0:
        heard(lambda: extend(table, 4_000, 500, 10))  # who waits for room is told, see tests/cases/test_c55.py


# A sync that is for blocks on their way to disk answers for numbers that were rewritten before it.
table, keys = made("doubted")
table._disk.stop()
rewrite(table, keys, 1)
fails_to_move(table)
assert tier(table)["losses"] == 1
assert LOST in heard(lambda: table.rows(keys))
extend(table, 8_000, 1_000, 100)
table.verify()

# And not for those that a sync has confirmed, nor for those in memory.
table, keys = made("confirmed")
rewrite(table, keys, 1)
confirmed(table)
table._disk.stop()
rewrite(table, list(table.blocks())[-1].keys, 1)
fails_to_move(table)
assert tier(table)["losses"] == 0
check(table.sample(256))
store.close()
print("ok")
"""
)


@pytest.mark.parametrize("who", ["update", "sample", "rows", "loader"])
def test_each_process_is_told_once(session_runtime_dir: Path, tmp_path: Path, who: str) -> None:
    played(session_runtime_dir, _TOLD, str(tmp_path), who)


def test_whatever_a_sync_is_for_it_answers_for_what_was_rewritten(session_runtime_dir: Path, tmp_path: Path) -> None:
    played(session_runtime_dir, _OTHERS, str(tmp_path))
