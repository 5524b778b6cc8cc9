"""C07: the running maximum never came down.

Policy: a row without a priority gets the largest priority among the rows that are live when it is taken in, the
ones it evicts included; 1.0 where there is none.
"""

from __future__ import annotations

import numpy as np
import pytest

from conduit import Table
from tests.store_support import fresh_store, keys_of, plain_table, prioritized


def append(table: Table, x: int, priority: float | None = None) -> float:
    """Append a row; the priority that it got."""
    table.extend({"x": np.array([x])}, priorities=None if priority is None else [priority])
    return float(table.priorities(keys_of(table))[-1])


def test_the_maximum_comes_down_when_the_extreme_row_is_lowered() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized())
        table.extend({"x": np.arange(4)}, priorities=[1000, 0.01, 0.01, 0.01])
        table.update_priorities(keys_of(table)[:1], [0.01])
        assert append(table, 4) == np.float32(0.01)
        assert len(table) == 4
        np.testing.assert_allclose(table.sample(64).probabilities, 0.25)


def test_the_maximum_comes_down_to_the_next_largest() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized())
        table.extend({"x": np.arange(3)}, priorities=[5, 1, 1])
        table.update_priorities(keys_of(table)[:1], [0.5])
        assert append(table, 3) == 1.0
        batch = table.sample(64)
        np.testing.assert_allclose(batch.probabilities[batch["x"] == 3], 1 / 3.5)


def test_the_maximum_comes_down_when_the_extreme_row_is_evicted() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized())
        table.extend({"x": np.arange(4)}, priorities=[1000, 1, 1, 1])
        assert append(table, 4, 2.0) == 2.0
        assert append(table, 5) == 2.0
        assert table.info().max_priority == 2.0


@pytest.mark.parametrize("look", [False, True], ids=["unwatched", "watched"])
def test_looking_at_a_table_does_not_change_what_a_new_row_gets(look: bool) -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized())
        table.extend({"x": np.arange(1)}, priorities=[1])
        first = keys_of(table)
        table.extend({"x": np.arange(1)})
        if look:
            assert len(table) == 2
        table.update_priorities(first, [1000.0])
        assert table.priorities(keys_of(table)).tolist() == [1000.0, 1.0]


def test_weights_follow_the_smallest_probability_that_is_left() -> None:
    with fresh_store() as store:
        table = plain_table(store, 3, sampler=prioritized(beta=1))
        table.extend({"x": np.arange(3)}, priorities=[0.1, 1, 1])
        append(table, 3, 1.0)
        assert (table.sample(64).weights == 1.0).all()


def test_an_empty_table_starts_at_one_again() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized())
        assert append(table, 0) == 1.0
        table.update_priorities(keys_of(table), [7.0])
        table.clear()
        assert append(table, 1) == 1.0
