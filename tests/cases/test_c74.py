"""C74: metadata and rows came from different moments; a place that was used again was restored with another row."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from tests.checkpoint_support import THRICE, append_serials, restored
from tests.store_support import column_of, fresh_store, keys_of
from tests.worker import worker


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
