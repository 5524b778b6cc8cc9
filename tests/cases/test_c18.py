"""C18: the table called itself full too early, and slots that were never written were drawn."""

from __future__ import annotations

import numpy as np

from tests.store_support import fresh_store, plain_table


def test_only_written_and_live_rows_are_drawn() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10)
        for i in range(2):
            table.extend({"x": np.arange(4 * i, 4 * i + 4) + 100})
        assert len(table) == 8
        assert set(table.sample(10_000)["x"]) == set(range(100, 108))
        table.extend({"x": np.arange(8, 12) + 100})
        assert len(table) == 10
        drawn, counts = np.unique(table.sample(10_000)["x"], return_counts=True)
        assert drawn.tolist() == list(range(102, 112))
        assert (np.abs(counts - 1000) <= 150).all()
