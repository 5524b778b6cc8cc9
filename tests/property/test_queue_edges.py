"""Queues at their edges: exactly full again and again, groups by extreme values, lengths that 64 bits cannot add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conduit import AppendTimeout, CapacityError
from tests.queue_support import put, queue_in, rest
from tests.store_support import fresh_store, schema


@pytest.mark.parametrize("max_size", [1, 2, 7, 64, 65])
def test_exactly_full_many_times(max_size: int) -> None:
    """Every bound is met to the row, also where batches end in the middle of blocks."""
    with fresh_store() as store:
        queue = queue_in(store, max_size)
        seen: list[int] = []
        for turn in range(40):
            put(queue, *range(turn * max_size, (turn + 1) * max_size), timeout=0.0)
            with pytest.raises(AppendTimeout, match=f"{max_size} of {max_size} rows are not acknowledged"):
                put(queue, -1, timeout=0.0)
            first = queue.sample(1 + turn % max_size, timeout=0.0)
            seen += first["x"].tolist()
            first.ack()
            seen += rest(queue)
            assert len(queue) == 0
        assert seen == list(range(40 * max_size))
        queue.verify()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("i8", [-(2**63), 2**63 - 1, 0]), ("u8", [2**64 - 1, 0, 2**63]), ("?", [True, False]), ("i1", [-128, 127, -1])],
)
def test_groups_by_the_most_extreme_values(dtype: str, values: list[Any]) -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=schema(g=dtype))
        queue.extend({"g": np.array(values * 3, dtype)})
        queue.extend({"g": np.array(values[:1], dtype)})
        batch = queue.sample(3 * len(values), group_by="g", group_size=3)
        assert batch["g"].tolist() == [value for value in values for _ in range(3)]
        batch.ack()
        ((value, rows, _),) = queue.incomplete("g", group_size=3)
        assert (value, rows) == (values[0], 1)


def test_lengths_of_a_group_that_add_up_to_more_than_64_bits() -> None:
    with fresh_store() as store:
        queue = queue_in(store, schema=schema(g="i8", n_tokens="u8"))
        queue.extend({"g": np.array([1, 1, 2, 2]), "n_tokens": np.array([2**63, 2**63, 3, 4], np.uint64)})
        demand: dict[str, Any] = {"group_by": "g", "group_size": 2, "max_tokens": 10, "timeout": 0.0}
        with pytest.raises(CapacityError, match="the group of 2 rows"):
            queue.sample(partial=True, **demand)
        assert queue.drop(keys_of_all(queue)[:1]) == 1
        batch = queue.sample(partial=True, **demand)
        assert batch["n_tokens"].tolist() == [3, 4]


def keys_of_all(queue: Any) -> Any:
    return np.concatenate([block.keys for block in queue.blocks()])
