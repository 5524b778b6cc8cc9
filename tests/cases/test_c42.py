"""C42: a reader that had only attached destroyed the segment when it left."""

from __future__ import annotations

import numpy as np

from tests import store_actions
from tests.store_support import fresh_store, plain_table
from tests.worker import workers


def test_readers_come_and_go_by_exit_and_by_kill() -> None:
    with fresh_store() as store, workers(3) as (leaves, dies, comes):
        table = plain_table(store, 100)
        table.extend({"x": np.arange(10)})
        for reader in (leaves, dies):
            assert set(reader.call(store_actions.sample, store.name, 100)) <= set(range(10))
        assert leaves.finish() == ""
        dies.kill()
        table.extend({"x": np.arange(10, 20)})
        assert comes.call(store_actions.total, store.name) == (20, 190)
        assert comes.finish() == ""
        assert store.metrics().processes == 1
