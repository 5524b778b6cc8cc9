"""C10: one NaN error of a learner turned the whole tree to NaN. Policy: all of an update, or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import PriorityError
from tests.store_support import fresh_store, keys_of, plain_table, prioritized, unchanged


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, 1e39, -1e-50])
def test_a_bad_priority_is_named_and_nothing_is_applied(bad: float) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8, sampler=prioritized())
        table.extend({"x": np.arange(8)}, priorities=np.ones(8))
        keys = keys_of(table)
        with unchanged(table), pytest.raises(PriorityError, match="position 1 of 3"):
            table.update_priorities(keys[2:5], np.array([5, bad, 5]))
        assert table.info().total_priority == 8.0
        batch = table.sample(1000)
        assert set(batch["x"]) <= set(range(8))
        assert np.isfinite(batch.weights).all()
        assert table.update_priorities(keys[2:5], [5, 5, 5]).applied == 3
        assert table.info().total_priority == 20.0
