"""C13: the same row several times in one update was added up. Policy: the last one wins."""

from __future__ import annotations

import numpy as np

from tests.store_support import fresh_store, keys_of, plain_table, prioritized


def test_the_last_of_equal_keys_wins() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8, sampler=prioritized())
        table.extend({"x": np.arange(8)}, priorities=np.ones(8))
        keys = keys_of(table)
        result = table.update_priorities(keys[[5, 5, 5]], [1, 2, 3])
        assert (result.applied, result.stale) == (3, 0)
        assert table.priorities(keys).tolist() == [1, 1, 1, 1, 1, 3, 1, 1]
        assert table.info().total_priority == 10.0
        assert table.info().max_priority == 3.0
        table.update_priorities(keys[[5, 2, 5]], [9, 4, 0.5])
        assert table.info().max_priority == 4.0
        table.verify()
