"""C23: a sampler read rows that were half written."""

from __future__ import annotations

from tests import store_actions
from tests.store_support import fresh_store
from tests.worker import worker

CAPACITY = 64
APPENDED = 20_000


def test_no_row_is_torn_or_outside_the_live_window() -> None:
    with fresh_store() as store, worker() as writer:
        table = store.create_table("torn", store_actions.TORN, CAPACITY)
        writer.start(store_actions.fill_torn, store.name, APPENDED)
        drawn = after = 0
        while after < APPENDED:
            before = table.info().appended
            batch = table.sample(64, timeout=60)
            after = table.info().appended
            rows, numbers = batch["x"], batch["number"]
            assert (rows == numbers[:, None]).all()
            assert numbers.min() >= before - CAPACITY
            assert numbers.max() < after
            drawn += len(batch)
        writer.result()
        assert drawn > 0
        assert len(table) == CAPACITY
        table.verify()
