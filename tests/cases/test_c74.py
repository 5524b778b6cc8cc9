"""C74: metadata and rows came from different moments; a place that was used again was restored with another row."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from tests.checkpoint_support import THRICE, append_serials, priority_of, restored, set_priorities
from tests.store_support import column_of, fresh_store, keys_of, prioritized
from tests.worker import worker, workers


def test_every_cut_is_a_run_of_whole_rows(tmp_path: Path) -> None:
    with fresh_store() as store, worker() as other:
        table = store.create_table("t", THRICE, 64, max_writers=1)
        other.start(append_serials, store.name)
        while len(table) < 64:
            time.sleep(0.001)
        seen = set()
        for _ in range(50):
            store.checkpoint(tmp_path)
            with restored(tmp_path) as again:
                found = again["t"]
                serial = column_of(found, "a")
                assert np.array_equal(serial, np.arange(serial[0], serial[0] + 64))
                assert np.array_equal(column_of(found, "b"), serial)
                assert (column_of(found, "c") == serial[:, None]).all()
                assert len(set(keys_of(found).tolist())) == 64
                seen.add(int(serial[0]))
        other.kill()
        assert len(seen) > 25, "the writer was at work meanwhile"


def test_several_writers_and_a_learner(tmp_path: Path) -> None:
    """Each writer's rows are a run; priorities are those that the rows' numbers call for, or a new row's."""
    with fresh_store() as store, workers(3) as team:
        table = store.create_table("t", THRICE, 512, max_writers=2, sampler=prioritized())
        for writer in (0, 1):
            team[writer].start(append_serials, store.name, writer * 10**9)
        while len(table) < 512:
            time.sleep(0.001)
        team[2].start(set_priorities, store.name)
        for _ in range(15):
            store.checkpoint(tmp_path)
            with restored(tmp_path) as again:
                found = again["t"]
                serial = column_of(found, "a")
                assert np.array_equal(column_of(found, "b"), serial)
                assert (column_of(found, "c") == serial[:, None]).all()
                for writer in (0, 1):
                    own = serial[serial // 10**9 == writer]  # none, where the other one is quicker for long
                    assert (np.diff(own) == 1).all()
                assert len(serial) == 512
                raw = found.priorities(keys_of(found))
                assert ((raw == priority_of(serial)) | (raw == raw.max())).all()
        for other in team:
            other.kill()
