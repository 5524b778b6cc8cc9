"""C03: without padding, a tree whose capacity is no power of two mapped mass to the wrong rows."""

from __future__ import annotations

import numpy as np
import pytest

from conduit_store.native import native
from tests.store_support import fresh_store, in_sigma, plain_table, prioritized


def tree_of(leaves: list[float]) -> native.SumTree:
    tree = native.SumTree(len(leaves))
    tree.update(list(range(len(leaves))), leaves)
    return tree


@pytest.mark.parametrize("capacity", [3, 5, 6, 7, 9, 63, 65, 100])
def test_leaves_lie_from_left_to_right(capacity: int) -> None:
    tree = tree_of([1.0] * capacity)
    assert tree.find([k + 0.5 for k in range(capacity)]) == list(range(capacity))


def test_masses_and_range_sums_of_unequal_leaves() -> None:
    tree = tree_of([1, 2, 3, 4, 5])
    assert tree.find([0.5, 2.5, 5.5, 9.5, 14.5]) == [0, 1, 2, 3, 4]
    assert [tree.range_sum(0, k) for k in range(6)] == [0, 1, 3, 6, 10, 15]
    assert tree.range_sum(2, 4) == 7


def test_draws_are_proportional() -> None:
    n = 150_000
    with fresh_store("32MiB") as store:
        table = plain_table(store, 5, sampler=prioritized())
        table.extend({"x": np.arange(5)}, priorities=[1, 2, 3, 4, 5])
        drawn = np.bincount(table.sample(n)["x"], minlength=5)
    assert len(drawn) == 5
    for i, count in enumerate(drawn):
        assert in_sigma(count, n, (i + 1) / 15)
