"""A vector step that lies in two blocks is in as a whole or not at all, whoever comes in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[2]

# Blocks of 8 rows, steps of 3: the third step lies in two of them.
_SCRIPT = """
import json, os, sys, threading
os.environ["CONDUIT_NATIVE"] = "test"
import numpy as np
import conduit
from conduit_store.native import native
from tests.crash import rows

point, other = sys.argv[1:]
store = rows.create_store("steps")
table = store.create_table("episodic", **rows.TABLES["episodic"])
assert table._layout.rows == 8
writer = table.writer(num_envs=3)

def append(serial, into=writer):
    each = [rows.episode_rows(who, serial, 1) for who in rows.siblings(1)]
    into.append(**{name: np.concatenate([one[name] for one in each]) for name in each[0]})

append(0)
append(1)
native.failpoint_arm(point, "pause", 1)
hits = native.failpoint_hits(point)
appending = threading.Thread(target=append, args=(2,))
appending.start()
while native.failpoint_hits(point) == hits:
    pass
def evict():
    second = table.writer(num_envs=3)  # needs every block: those of the stopped writer are sealed
    for serial in range(3):
        append(serial, second)
    for _ in range(40):
        second.append(**{n: np.repeat(c, 3, 0) for n, c in rows.episode_rows(9, 0, 1).items()})
    second.close()
acting = threading.Thread(target=table.clear if other == "clear" else evict)
acting.start()
acting.join(20 if point == "append_before_publish" else 0.3)
between = not acting.is_alive()  # not where the lock is held
native.failpoint_resume()
appending.join()
acting.join()
append(3)
table.verify()
serials = sorted(int(s) for b in table.blocks() for s in b.to_arrow().column("serial").to_pylist())
print(json.dumps({"between": between, "serials": serials, "rows": len(table)}))
store.close()
"""


def _play(directory: Path, point: str, other: str) -> dict[str, Any]:
    command = [sys.executable, "-c", _SCRIPT, point, other]
    environment = {"CONDUIT_RUNTIME_DIR": str(directory), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_cleared_before_the_step_is_published(session_runtime_dir: Path) -> None:
    """Both blocks were sealed: the step is written anew into others, and stays."""
    answer = _play(session_runtime_dir, "append_before_publish", "clear")
    assert answer == {"between": True, "serials": [2, 2, 2, 3, 3, 3], "rows": 6}


@pytest.mark.parametrize("point", ["append_together", "append_noted", "append_halfway"])
def test_nobody_clears_while_the_step_is_published(session_runtime_dir: Path, point: str) -> None:
    """The lock is held: what comes after it clears the whole step."""
    answer = _play(session_runtime_dir, point, "clear")
    assert answer == {"between": False, "serials": [3, 3, 3], "rows": 3}


@pytest.mark.parametrize(
    ("point", "evicts_meanwhile", "kept"),
    [("append_before_publish", True, 3), ("append_halfway", False, 0)],
    ids=["sealed before", "pushed out after"],
)
def test_blocks_that_an_evictor_seals(
    session_runtime_dir: Path, point: str, evicts_meanwhile: bool, kept: int
) -> None:
    answer = _play(session_runtime_dir, point, "evict")
    assert answer["between"] is evicts_meanwhile
    assert [answer["serials"].count(serial) for serial in (2, 3)] == [kept, 3]
