"""C55: spilling to a full disk went on for ever, and cancelled jobs left their files."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from conduit import Disk, DiskError, Store, Table
from tests.disk_support import SCHEMA, check, columns, create, fill, tier
from tests.shm_support import private_runtime_dir
from tests.store_support import fresh_store
from tests.waiting import until
from tests.worker import worker

_ROWS = 140_000  # about 30 MB


def test_a_full_disk_is_one_error_in_time_and_loses_nothing(tmp_path: Path) -> None:
    with private_runtime_dir(), worker() as writer:
        written = writer.call(_fill_a_folder_of_10_mb, str(tmp_path))
        assert 10e6 / SCHEMA.row_bytes < written < _ROWS


def _fill_a_folder_of_10_mb(folder: str) -> int:
    store = Store.create(f"c55-{os.getpid()}", "64MiB")
    table = store.create_table("t", SCHEMA, _ROWS, max_writers=2, disk=Disk(folder, "2MB"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, resource.RLIM_INFINITY))  # a quota: Python ignores SIGXFSZ
    written = _until_it_fails(table, 0, 500)
    for _ in range(2):  # and each time it is asked for again, at once, until there is room
        _until_it_fails(table, written, 10)
    assert tier(table)["failures"] >= 3
    keys = np.concatenate([block.keys for block in table.blocks()])
    batch = table.rows(keys)
    check(batch)
    assert sorted(batch["x"].tolist())[:written] == list(range(written))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    more = int(batch["x"].max()) + 1
    fill(table, _ROWS // 2, more, 500)
    for _ in range(50):
        check(table.sample(256))
    table.verify()
    store.close()
    assert os.listdir(folder) == []
    return written


def _until_it_fails(table: Table, first: int, step: int) -> int:
    """How many rows are in when the disk is full."""
    for at in range(first, _ROWS, step):
        try:
            table.extend(columns(at, step), timeout=30.0)
        except DiskError as error:
            if re.search(r"cannot be moved to disk.*File too large", str(error)):
                return at
            raise
    raise AssertionError("the disk was never full")


_SPILL = """
    import sys
    from pathlib import Path
    from conduit import Store
    from tests.disk_support import create, fill
    with Store.create(sys.argv[1], "16MiB") as store:
        table = create(store, Path(sys.argv[2]))
        print("ready", flush=True)
        first = 0
        while True:
            fill(table, 1_000, first)
            first += 1_000
"""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_who_is_stopped_while_spilling_leaves_no_file(tmp_path: Path, by: signal.Signals) -> None:
    with private_runtime_dir():
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_SPILL), f"c55-{os.getpid()}", str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            until(lambda: sum(path.stat().st_blocks for path in tmp_path.iterdir()) > 1_000)
            process.send_signal(by)
            process.wait()
        if by == signal.SIGINT:
            assert list(tmp_path.iterdir()) == []
        with fresh_store() as store:  # the next start
            table = create(store, tmp_path)
            assert len(list(tmp_path.iterdir())) == 1
            fill(table, 1_000)
        assert list(tmp_path.iterdir()) == []
