"""C18: the table called itself full too early, and slots that were never written were drawn."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import removers, samplers
from tests.store_support import fresh_store, plain_table


def test_only_written_and_live_rows_are_drawn() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10)
        for i in range(2):
            table.extend({"x": np.arange(4 * i, 4 * i + 4) + 100})
        assert len(table) == 8
        assert set(table.sample(10_000)["x"]) == set(range(100, 108))
        table.extend({"x": np.arange(8, 12) + 100})
        assert len(table) == 10
        drawn, counts = np.unique(table.sample(10_000)["x"], return_counts=True)
        assert drawn.tolist() == list(range(102, 112))
        assert (np.abs(counts - 1000) <= 150).all()


@pytest.mark.parametrize("sampler", [samplers.WithoutReplacement(), samplers.Fifo(), samplers.Lifo()])
def test_the_same_by_samplers_that_draw_each_row_once(sampler: samplers.Sampler) -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=sampler)
        for i in range(2):
            table.extend({"x": np.arange(4 * i, 4 * i + 4) + 100})
        assert sorted(table.sample(8)["x"].tolist()) == list(range(100, 108))
        table.extend({"x": np.arange(8, 12) + 100})
        assert sorted(table.sample(10)["x"].tolist()) == list(range(102, 112))


def test_the_same_where_rows_leave_one_by_one() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, remover=removers.Lifo())
        table.extend({"x": np.arange(8) + 100})
        assert set(table.sample(10_000)["x"]) == set(range(100, 108))
        table.extend({"x": np.arange(8, 12) + 100})
        drawn, counts = np.unique(table.sample(10_000)["x"], return_counts=True)
        assert drawn.tolist() == [*range(100, 109), 111]
        assert (np.abs(counts - 1000) <= 150).all()
