"""C71: a producer that nobody held back, or whose consumer had stopped, grew without limit."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from conduit import AppendTimeout, Store, limiters
from tests.queue_support import overfill, queue_in, rest
from tests.store_support import column_of, fresh_store, schema
from tests.worker import worker, workers

BOUND, ROW = 1_000, 1_024
LIMITERS = {
    "capacity": {"limiter": limiters.QueueCapacity(BOUND), "max_times_sampled": 1},
    "ratio": {"limiter": limiters.SampleToInsertRatio(1, min_size=1, error_buffer=BOUND - 1)},
}


def produce(name: str) -> tuple[int, int, str]:
    """A million appends: how many went in, by how much the memory of the process grew, and what stopped it."""
    with Store.attach(name) as store, store["t"].writer(timeout=0.5) as writer:
        payload = np.zeros(ROW - 8, np.uint8)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(1_000_000):
            try:
                writer.append(x=i, payload=payload)
            except AppendTimeout as error:
                return i, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, str(error)
    raise AssertionError("nobody stopped it")


@pytest.mark.parametrize("kind", LIMITERS)
def test_the_producer_is_stopped_at_the_bound(kind: str) -> None:
    with fresh_store("64MiB") as store, worker() as producer:
        table = store.create_table("t", schema(x="i8", payload=("u1", (ROW - 8,))), 4_000, **LIMITERS[kind])
        done, grown, said = producer.call(produce, store.name)
        assert done == len(table) == BOUND
        assert grown < 8 << 20  # the bound's rows are 1 MiB; 1,000,000 would be 1 GB
        assert "Check that learners sample" in said
        assert column_of(table).tolist() == list(range(BOUND))
        table.sample(300, timeout=0)
        done, grown, _ = producer.call(produce, store.name)
        assert done == 300
        assert grown < 8 << 20
        assert len(table) == (BOUND if kind == "capacity" else BOUND + 300)
        table.verify()


def test_a_producer_meets_the_bound() -> None:
    with fresh_store("16MiB") as store, workers(1) as (producer,):
        queue = queue_in(store, 1000, schema=schema(x="i8", payload=("u1", (1024,))))
        error, done, grown = producer.call(overfill, store.name, "q", 1_000_000, 0.2)
        assert error.startswith("AppendTimeout: no room in queue 'q' within 0.2 s: 1000 of 1000 rows")
        assert (done, len(queue)) == (1000, 1000)
        assert grown < 8 << 20
        assert len(rest(queue)) == 1000
        assert producer.call(overfill, store.name, "q", 10, 0.2)[0] == "no error"
