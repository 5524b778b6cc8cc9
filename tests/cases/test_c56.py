"""C56: a slice's offset was ignored when nested storage was opened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import Column, Schema, samplers
from conduit_store.arrow import to_numpy
from tests.store_support import fresh_store, schema

ROWS = np.arange(1200, dtype=np.float32).reshape(100, 3, 4)


def taken(array: Any) -> list[np.ndarray[Any, Any]]:
    """Rows by each way that leads to NumPy."""
    torch = pytest.importorskip("torch")
    found = to_numpy("x", array)
    return [found, torch.from_numpy(found.copy()).numpy()]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_slice_and_a_slice_of_it_begin_where_they_should(chunked: bool) -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(x=("f4", (3, 4))), 100, max_writers=1)
        table.extend({"x": ROWS})
        blocks = pa.Table.from_batches([view.to_arrow() for view in table.blocks()])
        column = blocks.column("x") if chunked else blocks.combine_chunks().column("x").chunk(0)
        piece = column.slice(2, 2)
        for rows in taken(piece):
            assert rows.shape == (2, 3, 4)
            assert (rows.flat[0], rows.sum()) == (24, 852)
        for rows in taken(piece.slice(1, 1)):
            assert (rows.flat[0], rows.sum()) == (36, 498)
        again = store.create_table("again", schema(x=("f4", (3, 4))), 100, sampler=samplers.Fifo())
        again.extend(pa.table({"x": piece}))
        again.extend(pa.table({"x": piece.slice(1, 1)}))
        assert again.sample(3)["x"].sum(axis=(1, 2)).tolist() == [354, 498, 498]


@pytest.mark.parametrize("chunked", [False, True])
def test_the_same_of_rows_that_vary_in_length(chunked: bool) -> None:
    of = Schema((Column("x", "float32", (None, 4), mean_length=3),))
    with fresh_store() as store:
        table = store.create_table("t", of, 100, max_writers=1)
        table.extend({"x": list(ROWS)})
        blocks = pa.Table.from_batches([view.to_arrow() for view in table.blocks()])
        column = blocks.column("x") if chunked else blocks.combine_chunks().column("x").chunk(0)
        piece = column.slice(2, 2)
        again = store.create_table("again", of, 100, sampler=samplers.Fifo())
        again.extend(pa.table({"x": piece}))
        again.extend(pa.table({"x": piece.slice(1, 1)}))
        found = again.sample(3)["x"]
        assert found.lengths.tolist() == [3, 3, 3]
        assert [float(row.sum()) for row in found] == [354, 498, 498]
        assert found[0][0, 0] == 24
        assert found[2][0, 0] == 36
