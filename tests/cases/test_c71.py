"""C71: a producer whose consumer had stopped grew without limit."""

from __future__ import annotations

from tests.queue_support import overfill, queue_in, rest
from tests.store_support import fresh_store, schema
from tests.worker import workers


def test_a_producer_meets_the_bound() -> None:
    with fresh_store("16MiB") as store, workers(1) as (producer,):
        queue = queue_in(store, 1000, schema=schema(x="i8", payload=("u1", (1024,))))
        error, done, grown = producer.call(overfill, store.name, "q", 1_000_000, 0.2)
        assert error.startswith("AppendTimeout: no room in queue 'q' within 0.2 s: 1000 of 1000 rows")
        assert (done, len(queue)) == (1000, 1000)
        assert grown < 8 << 20
        assert len(rest(queue)) == 1000
        assert producer.call(overfill, store.name, "q", 10, 0.2)[0] == "no error"
