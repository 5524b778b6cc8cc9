"""C22: the real capacity was a multiple of what was asked. Policy: capacity is the table's, however many write."""

from __future__ import annotations

import pytest

from conduit import removers, samplers
from tests.store_support import column_of, fresh_store, plain_table, scalar_writer


@pytest.mark.parametrize("capacity", [100, 10])
def test_capacity_is_the_tables_whatever_the_number_of_writers(capacity: int) -> None:
    with fresh_store() as store:
        table = plain_table(store, capacity)
        writers = [scalar_writer(table) for _ in range(4)]
        for i in range(1000):
            writers[i % 4].append(x=i)
            assert len(table) == min(i + 1, capacity)
        for writer in writers:
            writer.close()
        assert len(table) == capacity
        assert len(set(column_of(table).tolist())) == capacity
        assert table.info().evicted_early == 0
        table.verify()


@pytest.mark.parametrize("remover", [removers.Lifo(), removers.LowestPriority()])
@pytest.mark.parametrize("capacity", [100, 10])
def test_the_same_where_rows_leave_one_by_one(capacity: int, remover: removers.Remover) -> None:
    with fresh_store() as store:
        table = plain_table(store, capacity, remover=remover, sampler=samplers.Fifo())
        writers = [scalar_writer(table) for _ in range(4)]
        for i in range(1000):
            writers[i % 4].append(x=i)
            assert len(table) == min(i + 1, capacity)
        for writer in writers:
            writer.close()
        assert len(set(table.sample(capacity)["x"].tolist())) == len(table) == capacity
        assert table.info().evicted_early == 0
        table.verify()
