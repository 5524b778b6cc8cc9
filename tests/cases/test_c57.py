"""C57: bools are packed bits in Arrow, and came out as the packed bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from conduit import Column, Schema, samplers
from conduit_store.arrow import to_numpy
from tests.store_support import fresh_store, schema
from tests.worker import worker

DONE = [True, False, True, True, False, False, False, False, True]


def in_another_process(name: str) -> tuple[str, list[bool]]:
    """What a process that attaches sees: dtype and values."""
    from conduit import Store

    with Store.attach(name, read_only=True) as store:
        column = store["t"].blocks()[0].to_arrow().column("done")
        rows = to_numpy("done", column)
        return str(rows.dtype), rows.tolist()


@pytest.mark.parametrize("start", [0, 3])
def test_one_byte_each_and_any_offset(start: int) -> None:
    expected = DONE[start:]
    packed = pa.array(DONE).slice(start)
    assert packed.offset % 8 == start
    with fresh_store() as store, worker() as other:
        table = store.create_table("t", schema(done="?"), 100_000, sampler=samplers.Fifo())
        table.extend(pa.table({"done": packed}))
        rows = table.sample(len(expected))["done"]
        assert (rows.dtype, rows.tolist(), int(rows.sum())) == (np.bool_, expected, 4 if start == 0 else 2)
        torch = pytest.importorskip("torch")
        tensor = table.sample(len(expected)).torch()["done"]
        assert (tensor.dtype, tensor.tolist()) == (torch.bool, expected)
        batch = table.blocks()[0].to_arrow()
        assert batch.schema.field("done").type == pa.bool8()  # a byte each: zero-copy says what it is
        assert other.call(in_another_process, store.name) == ("bool", expected)


def test_bools_of_rows_that_vary_in_length() -> None:
    lists = pa.array([DONE[:3], DONE[3:4], [], DONE[4:]], pa.list_(pa.bool_()))
    of = Schema((Column("done", "bool", (None,), mean_length=3),))
    with fresh_store() as store:
        table = store.create_table("t", of, 16, sampler=samplers.Fifo())
        table.extend(pa.table({"done": lists.slice(1)}))
        rows = table.sample(3)["done"]
        assert [row.tolist() for row in rows] == [DONE[3:4], [], DONE[4:]]
        assert rows.values.dtype == np.bool_
