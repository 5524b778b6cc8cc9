"""C77: two consumers got the same row, or the state of one partition leaked into another.

The policy here: processes of one consumer group share its rows; a batch that is not full is given at the deadline
(`partial=True`). Another consumer group, and another queue, have states of their own.
"""

from __future__ import annotations

import numpy as np

from tests.queue_support import drain_in_batches, queue_in
from tests.store_support import fresh_store
from tests.worker import workers


def test_four_consumers_drain_one_partition() -> None:
    with fresh_store() as store, workers(4) as four:
        p = queue_in(store, 200, "P", consumers=("task", "other"))
        q = queue_in(store, 200, "Q", consumers=("task", "other"))
        for queue in (p, q):
            queue.extend({"x": np.arange(100)})
        for worker in four:
            worker.start(drain_in_batches, store.name, "P", 7, "task")
        batches = [batch for worker in four for batch in worker.result()]
        assert sorted(x for batch in batches for x in batch) == list(range(100))
        assert all(len(batch) <= 7 for batch in batches)
        assert sum(len(batch) == 7 for batch in batches) >= 14 - 3, "at most one batch of each consumer is short"
        assert len(p) == 100, "the other task has had none of them"
        fifth = four[0].call(drain_in_batches, store.name, "P", 7, "other")
        assert [x for batch in fifth for x in batch] == list(range(100))
        assert len(p) == 0
        assert len(q) == 100
        assert [group.undelivered for group in q.info().consumers.values()] == [100, 100]
        p.verify()
        q.verify()
