"""C34: in a table that was not full yet, windows wrapped into slots that were never written."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import StaleKey
from tests.store_support import episodes, fresh_store, keys_of, scalar_writer, step, windows_of


def test_an_unfinished_episode_offers_only_whole_windows() -> None:
    with fresh_store() as store:
        table = episodes(store, 10_000, n=5, gamma=1.0)
        with scalar_writer(table) as writer:
            for i in range(10):
                step(writer, i, 1.0)
            keys = keys_of(table)
            for start in (7, 9):
                with pytest.raises(StaleKey, match=f"key {keys[start]} at position 0 of 1"):
                    table.rows(keys[start : start + 1])
            assert set(windows_of(table)) == {0, 1, 2, 3, 4}
            step(writer, 10, 1.0, "terminated")
            writer.end(11)
            found = windows_of(table)
        assert [(found[i]["reward"], found[i]["n_step"]) for i in (5, 7, 9, 10)] == [(5, 5), (4, 4), (2, 2), (1, 1)]
        assert set(np.unique(table.sample(1000)["obs"])) <= set(range(11))
