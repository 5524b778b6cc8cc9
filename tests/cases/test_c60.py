"""C60: of a small slice the whole parent buffer was sent, or the wrong rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from conduit import Column, Ragged, Schema, samplers
from tests.store_support import fresh_store, schema
from tests.worker import worker


def sent(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def received(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def rows_between(name: str, start: int, stop: int) -> bytes:
    """In a process that attaches: the stream of some rows of the one block."""
    from conduit import Store

    with Store.attach(name, read_only=True) as store:
        return sent(store["t"].blocks()[0].to_arrow().slice(start, stop - start))


def test_a_slice_of_a_block_is_sent_alone() -> None:
    with fresh_store() as store, worker() as other:
        table = store.create_table("t", schema(x="i4"), 100_000)
        table.extend({"x": np.arange(400, dtype=np.int32)})
        (view,) = table.blocks()
        everything, part = sent(view.to_arrow()), other.call(rows_between, store.name, 100, 200)
        assert sum(received(part).column("x").to_pylist()) == 14_950
        assert 400 <= len(part) <= len(everything) - 1_100
        again = store.create_table("again", schema(x="i4"), 400, sampler=samplers.Fifo())
        again.extend(received(part))
        assert again.sample(100)["x"].sum() == 14_950


def test_a_slice_of_rows_that_vary_in_length() -> None:
    of = Schema((Column("x", "int32", (None,), mean_length=10),))
    rows = [np.full(i % 20, i, np.int32) for i in range(400)]
    with fresh_store() as store, worker() as other:
        table = store.create_table("t", of, 200_000, max_writers=1)
        table.extend({"x": rows})
        (view,) = table.blocks()
        everything, part = sent(view.to_arrow()), other.call(rows_between, store.name, 100, 200)
        assert len(part) < 0.35 * len(everything)
        again = store.create_table("again", of, 400, sampler=samplers.Fifo())
        again.extend(received(part))
        found = again.sample(100)["x"]
        assert [row.tolist() for row in found] == [row.tolist() for row in rows[100:200]]
        # what a batch holds goes to another table as it is, without its neighbours
        store.create_table("third", of, 400).extend({"x": Ragged(found.values, found.offsets[10:21])})
        assert len(store["third"]) == 10
