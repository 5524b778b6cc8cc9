"""C24: a reader that kept a view of an old batch stopped the writer for good, or saw the view change.

Policy: the view pins its block. A writer goes on in other blocks; when none is left to evict it gets an AppendTimeout
that names the holder, and goes on as soon as the view has gone. So views of every block of a full table stop it.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

from conduit import AppendTimeout, Table
from tests import store_actions
from tests.store_support import column_of, fresh_store, plain_table
from tests.worker import worker

BLOCK = 8  # rows of the smallest block


def fill_until_blocked(table: Table) -> int:
    """Append blocks of rows filled with their number until one finds no space."""
    for number in range(1, 101):
        try:
            table.extend({"x": np.full(BLOCK, number)}, timeout=0.05)
        except AppendTimeout:
            return number
    pytest.fail("100 blocks went into a table of 4 with all of them pinned")


def test_a_view_of_another_process_holds_its_block_and_is_named() -> None:
    with fresh_store() as store, worker() as reader:
        table = plain_table(store, 4 * BLOCK, max_writers=1)
        table.extend({"x": np.zeros(4 * BLOCK, int)})
        assert reader.call(store_actions.pin, store.name) == 4
        fill_until_blocked(table)
        before = column_of(table).tolist()
        with pytest.raises(AppendTimeout) as caught:
            table.extend({"x": np.array([7])}, timeout=0.05)
        message = str(caught.value)
        assert "no free block in table 't' within 0.05 s" in message
        assert "3 pinned by zero-copy views" in message
        assert f"pid {reader.pid}" in message
        assert "0 of 1 rows are in" in message
        assert "Release views" in message
        assert column_of(table).tolist() == before
        assert reader.call(store_actions.look) == [0] * 4 * BLOCK
        reader.call(store_actions.unpin)
        for number in range(200, 230):
            table.extend({"x": np.full(BLOCK, number)}, timeout=60)
        assert len(table) == 4 * BLOCK
        table.verify()


def test_a_view_of_a_killed_process_holds_nothing() -> None:
    with fresh_store() as store, worker() as reader:
        table = plain_table(store, 4 * BLOCK, max_writers=1)
        table.extend({"x": np.zeros(4 * BLOCK, int)})
        reader.call(store_actions.pin, store.name)
        fill_until_blocked(table)
        reader.kill()
        for number in range(30):
            table.extend({"x": np.full(BLOCK, number)}, timeout=60)
        table.verify()


def test_a_view_that_only_a_cycle_holds_goes_with_the_cycle() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4 * BLOCK, max_writers=1)
        table.extend({"x": np.zeros(4 * BLOCK, int)})
        gc.disable()
        try:
            cycle: list[object] = [np.asarray(block.to_arrow().column("x")) for block in table.blocks()]
            cycle.append(cycle)
            del cycle
            number = fill_until_blocked(table)
            assert table.info().blocks_pinned == 4
            gc.collect()
            assert table.info().blocks_pinned == 0
            table.extend({"x": np.full(BLOCK, number)}, timeout=60)
        finally:
            gc.enable()
