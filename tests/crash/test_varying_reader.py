"""A reader that is stopped while it draws rows that vary in length, until its rows' memory holds others.

Rows as they are, and sequences of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_store.native import native

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[2]

_ROWS = """
from tests.crash.varying_rows import columns, faults, table_faults

table = store.create_table("varying", **rows.TABLES["varying"])
"""

_SEQUENCES = """
import numpy as np
from conduit import Column, Schema, windows

ends = (Column("reward", "float32"), Column("terminated", "bool"), Column("truncated", "bool"))
varying = (Column("obs/tokens", "int32", (None,), mean_length=8), Column("words", "string", mean_length=4))
schema = Schema((Column("obs/at", "int64"), Column("writer", "int64"), *varying, *ends))
table = store.create_table("t", schema, 48, window=windows.Sequence(4, burn_in=2, next_obs=False), max_writers=1)

def tokens(writer, at):
    return np.arange(at, at + (at * 7919 + writer) % 17, dtype=np.int32)

def columns(writer, first, n):
    ats = np.arange(first, first + n)
    return {
        "obs/at": ats, "next_obs/at": ats + 1, "obs/tokens": [tokens(writer, at) for at in ats],
        "next_obs/tokens": [tokens(writer, at + 1) for at in ats], "writer": np.full(n, writer),
        "words": ["ab" * (at % 5) for at in ats], "reward": np.zeros(n, np.float32),
        "terminated": ats % 12 == 11, "truncated": np.zeros(n, bool),
    }

def faults(batch):
    wrong = []
    for place in zip(*np.nonzero(batch["mask"])):
        at, writer = int(batch["obs/at"][place]), int(batch["writer"][place])
        words = "ab" * (at % 5)
        if not np.array_equal(batch["obs/tokens"][place], tokens(writer, at)) or batch["words"][place] != words:
            wrong.append([writer, at])
    wrong += [["padding"]] * int(batch["obs/tokens"][~batch["mask"]].lengths.sum() > 0)
    return wrong

def table_faults(table):
    return faults(table.sample(64))
"""

# Most of them compressed on disk: what the reader has not decompressed when it is stopped is something else afterwards.
_COMPRESSED = _SEQUENCES.replace(
    'table = store.create_table("t", schema, 48,',
    'from pathlib import Path; from tests.disk_support import with_least_memory\n'
    'table = with_least_memory(Path(sys.argv[2]), lambda disk: store.create_table("t", schema, 480, disk=disk,',
).replace("max_writers=1)", 'max_writers=1), "lz4")').replace(
    "np.arange(first, first + n)", "np.arange(first * 10, (first + n) * 10)"
).replace("np.full(n, writer)", "np.full(len(ats), writer)").replace("zeros(n,", "zeros(len(ats),").replace(
    "    return faults(", "    assert table.info().disk.blocks_written > 20\n    return faults("
)

_SCRIPT = """
import json, os, sys, threading
os.environ["CONDUIT_NATIVE"] = "test"
import conduit
from conduit_store.native import native
from tests.crash import rows

point = sys.argv[1]
store = rows.create_store("stopped")
TABLE
table.extend(columns(1, 0, 48))
native.failpoint_arm(point, "pause", 1)
hits = native.failpoint_hits(point)
batches = []
sampling = threading.Thread(target=lambda: batches.append(table.sample(24)))
sampling.start()
while native.failpoint_hits(point) == hits:
    pass
for first in range(0, 480, 24):  # every block is used again, with other lengths, some for rows that need two
    table.extend(columns(2, 5 + first, 24))
native.failpoint_resume()
sampling.join()
table.verify()
wrong = faults(batches[0]) + table_faults(table)
discarded, writers = table.info().discarded_batches, sorted({*batches[0]["writer"].ravel().tolist()} - {0})
print(json.dumps({"faults": wrong, "discarded": discarded, "writers": writers}))
store.close()
"""


@pytest.mark.parametrize("point", ["gather_begin", "gather_measure", "gather_column", "gather_end"])
@pytest.mark.parametrize("given", [_ROWS, _SEQUENCES, _COMPRESSED], ids=["rows", "sequences", "compressed"])
def test_its_batch_is_thrown_away_and_drawn_again(
    session_runtime_dir: Path, tmp_path: Path, point: str, given: str
) -> None:
    if given is _COMPRESSED and not native.has_codec("lz4"):
        pytest.skip("liblz4 is not on this machine")
    environment = {"CONDUIT_RUNTIME_DIR": str(session_runtime_dir), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", _SCRIPT.replace("TABLE", given), point, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer == {"faults": [], "discarded": 1, "writers": [2]}
