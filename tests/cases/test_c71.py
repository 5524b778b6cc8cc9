"""C71: a writer that nobody held back grew without limit."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from conduit import AppendTimeout, Store, limiters
from tests.store_support import column_of, fresh_store, schema
from tests.worker import worker

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
