"""A reader that is stopped while it draws rows that vary in length, until its rows' memory holds others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """
import json, os, sys, threading
os.environ["CONDUIT_NATIVE"] = "test"
import conduit
from conduit_store.native import native
from tests.crash import rows, varying_rows

point = sys.argv[1]
store = rows.create_store("stopped")
table = store.create_table("varying", **rows.TABLES["varying"])
table.extend(varying_rows.columns(1, 0, 48))
native.failpoint_arm(point, "pause", 1)
hits = native.failpoint_hits(point)
batches = []
sampling = threading.Thread(target=lambda: batches.append(table.sample(24)))
sampling.start()
while native.failpoint_hits(point) == hits:
    pass
for first in range(0, 480, 24):  # every block is used again, with other lengths, some for rows that need two
    table.extend(varying_rows.columns(2, 5 + first, 24))
native.failpoint_resume()
sampling.join()
table.verify()
faults = varying_rows.faults(batches[0]) + varying_rows.table_faults(table)
discarded, writers = table.info().discarded_batches, sorted(set(batches[0]["writer"].tolist()))
print(json.dumps({"faults": faults, "discarded": discarded, "writers": writers}))
store.close()
"""


@pytest.mark.parametrize("point", ["gather_begin", "gather_measure", "gather_column", "gather_end"])
def test_its_batch_is_thrown_away_and_drawn_again(session_runtime_dir: Path, point: str) -> None:
    environment = {"CONDUIT_RUNTIME_DIR": str(session_runtime_dir), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", _SCRIPT, point]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer == {"faults": [], "discarded": 1, "writers": [2]}
