"""C01: rounding made the prefix search fall off the filled part of the tree, and index and weight disagreed."""

from __future__ import annotations

import numpy as np

from conduit_store.native import native
from tests.store_support import fresh_store, keys_of, plain_table, prioritized


def test_edges_of_the_search_after_many_updates() -> None:
    rng = np.random.default_rng(1)
    tree = native.SumTree(500)
    ids = list(range(100))
    leaves = np.zeros(100)
    for _ in range(1000):
        leaves = rng.random(100)
        leaves[-1] = max(leaves[-1], 1e-3)
        tree.update(ids, leaves.tolist())
        total = tree.total()
        assert tree.find([0.0, total, np.nextafter(total, 0.0), total * 1.001]) == [0, 99, 99, 99]
        assert max(tree.find((rng.random(200) * total).tolist())) <= 99
    np.testing.assert_allclose(tree.total(), leaves.sum(), rtol=1e-6)


def test_drawn_rows_are_filled_ones_and_carry_their_own_probability() -> None:
    rng = np.random.default_rng(2)
    with fresh_store() as store:
        table = plain_table(store, 500, sampler=prioritized())
        table.extend({"x": np.arange(100)})
        keys = keys_of(table)
        for _ in range(20):
            raw = rng.random(100).astype(np.float32)
            table.update_priorities(keys, raw)
            batch = table.sample(10_000)
            assert batch["x"].min() >= 0
            assert batch["x"].max() <= 99
            expected = raw.astype(float) / raw.sum(dtype=float)
            np.testing.assert_allclose(batch.probabilities, expected[batch["x"]], rtol=1e-9)
        table.verify()
