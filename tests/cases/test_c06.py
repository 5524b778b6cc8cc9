"""C06: the default priority of a new row was raised to alpha twice."""

from __future__ import annotations

import numpy as np

from tests.store_support import fresh_store, keys_of, plain_table, prioritized


def test_alpha_is_applied_once_to_given_and_to_default_priorities() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized(alpha=0.5))
        table.extend({"x": np.array([0])})
        table.update_priorities(keys_of(table), [16.0])
        table.extend({"x": np.array([1])})
        assert table.priorities(keys_of(table)).tolist() == [16.0, 16.0]
        assert table.info().total_priority == 8.0
        assert (table.sample(16).probabilities == 0.5).all()
