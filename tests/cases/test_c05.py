"""C05: the default priority of a new row was cut to an integer."""

from __future__ import annotations

import numpy as np

from tests.store_support import fresh_store, keys_of, plain_table, prioritized


def test_a_new_row_gets_the_largest_priority_uncut() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized(alpha=1))
        table.extend({"x": np.arange(3)}, priorities=[2.7, 1, 1])
        table.extend({"x": np.array([3])})
        assert table.priorities(keys_of(table))[3] == np.float32(2.7)
        batch = table.sample(64)
        np.testing.assert_allclose(batch.probabilities[batch["x"] == 3], 0.364865, rtol=1e-6)
        assert (batch["x"] == 3).any()
