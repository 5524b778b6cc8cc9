"""A loader that leases ahead gives rows in the order in which they were appended, however its caller asks for them."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from conduit import LeaseExpired, QueueEnded, QueueLoader, SampleTimeout
from tests.queue_support import put, queue_in
from tests.store_support import fresh_store

ROWS = 200


def received(loader: QueueLoader, chance: random.Random, pauses: list[float]) -> list[int]:
    """Every row until the end, or until a lease was over before its batch could be acknowledged."""
    seen: list[int] = []
    while True:
        try:
            batch = loader.next(timeout=chance.choice([0.0, 1.0]))
        except SampleTimeout:
            continue
        except QueueEnded:
            return seen
        try:
            batch.ack()
        except LeaseExpired:  # this machine was busy
            return seen
        seen += batch["x"].tolist()
        if chance.random() < 0.2:
            time.sleep(chance.choice(pauses))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prefetch", [1, 3])
def test_who_does_not_wait_gets_no_younger_rows_first(prefetch: int, seed: int) -> None:
    """Its call ends while the thread has older rows in hand."""
    with fresh_store() as store:
        queue = queue_in(store, ROWS)
        put(queue, *range(ROWS))
        queue.end()
        with queue.loader(1, prefetch=prefetch) as loader:
            assert received(loader, random.Random(seed), [0.0]) == list(range(ROWS))


@pytest.mark.parametrize("prefetch", [1, 3])
def test_rows_whose_lease_ran_out_come_before_younger_ones(prefetch: int) -> None:
    """What was ready goes back, and so does what the thread has in hand."""
    with fresh_store() as store:
        queue = queue_in(store, ROWS, lease_timeout=0.01)
        put(queue, *range(ROWS))
        queue.end()
        with queue.loader(2, prefetch=prefetch) as loader:
            seen = received(loader, random.Random(prefetch), [0.0005, 0.011, 0.02])
            assert seen == list(range(len(seen)))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_who_does_not_wait_gets_what_is_there(prefetch: int) -> None:
    """Rows that were in before a call come with it, also when the thread waits for them."""
    with fresh_store() as store:
        queue = queue_in(store)
        with queue.loader(2, prefetch=prefetch) as loader:
            for x in range(0, 40, 2):
                with pytest.raises(SampleTimeout, match="0 rows wait, 0 are out"):
                    loader.next(timeout=0.0)
                put(queue, x, x + 1)
                batch = loader.next(timeout=0.0)
                np.testing.assert_array_equal(batch["x"], [x, x + 1])
                batch.ack()
