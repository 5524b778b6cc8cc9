"""C72: an interrupted save destroyed the last good checkpoint."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from conduit import CheckpointError, checkpoints
from tests.checkpoint_support import digest, filled, restored
from tests.store_support import column_of, fresh_store

_KILLS = int(os.environ.get("CONDUIT_CHECKPOINT_KILLS", "30"))


def test_killed_at_any_moment_there_is_a_whole_one(tmp_path: Path) -> None:
    """30 kills; CONDUIT_CHECKPOINT_KILLS=3000 for a campaign."""
    chance = random.Random(72)
    found: list[int] = []
    for _ in range(_KILLS):
        shutil.rmtree(tmp_path)
        with fresh_store() as store:
            table = filled(store, 100)
            whole_s = store.checkpoint(tmp_path).seconds
            table.extend({"x": np.arange(100, 200)})
            pid = os.fork()
            if pid == 0:
                try:
                    store.checkpoint(tmp_path)
                finally:
                    os._exit(0)
            time.sleep(chance.random() * 2 * whole_s if found else 0.0)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            checkpoints.verify(tmp_path)
            with restored(tmp_path) as again:
                values = column_of(again["t"]).tolist()
            assert values in (list(range(100)), list(range(200)))
            found.append(len(values))
            store.checkpoint(tmp_path)  # what the dead had begun is in nobody's way
            with restored(tmp_path) as again:
                assert len(again["t"]) == 200
    assert found[0] == 100, "killed at once"


@pytest.mark.parametrize("most", [0, 1, 1_000, 3_000, 4_096])
def test_a_full_disk_leaves_the_last_one(tmp_path: Path, most: int) -> None:
    """No file may be longer than so many bytes, as of a quota: some of the files are whole then, or all but one."""
    with fresh_store() as store:
        table = filled(store, 100)
        store.checkpoint(tmp_path)
        before = digest(tmp_path)
        table.extend({"x": np.arange(100, 200)})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))  # Python ignores SIGXFSZ: writes fail
        try:
            with pytest.raises(CheckpointError, match="File too large"):
                store.checkpoint(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert digest(tmp_path) == before
        with restored(tmp_path) as again:
            assert len(again["t"]) == 100
        store.checkpoint(tmp_path)
        with restored(tmp_path) as again:
            assert len(again["t"]) == 200
