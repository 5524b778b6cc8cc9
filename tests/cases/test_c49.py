"""C49: rows of other processes were not seen, or two writers overwrote each other."""

from __future__ import annotations

import numpy as np

from tests import store_actions
from tests.store_support import column_of, fresh_store, plain_table, prioritized
from tests.worker import workers


def test_three_processes_write_one_table() -> None:
    with fresh_store() as store, workers(2) as (one, two):
        table = plain_table(store, 40, sampler=prioritized())
        table.extend({"x": np.zeros(10, int)})
        one.call(store_actions.append, store.name, [1] * 10)
        assert (len(table), column_of(table).sum()) == (20, 10)
        one.start(store_actions.append, store.name, list(range(100, 110)))
        two.start(store_actions.append, store.name, list(range(200, 210)))
        one.result()
        two.result()
        values = column_of(table).tolist()
        assert sorted(values) == [0] * 10 + [1] * 10 + list(range(100, 110)) + list(range(200, 210))
        assert [v for v in values if 100 <= v < 200] == list(range(100, 110))
        info = table.info()
        assert (info.rows, info.ready_rows, info.total_priority) == (40, 40, 40.0)
        assert (
            one.call(store_actions.total, store.name) == two.call(store_actions.total, store.name) == (40, sum(values))
        )
        table.verify()
