"""C20: many episodes at once, more than fit, broke a prioritised table.

Policy: eviction is by step, so exactly the newest 100 steps stay; more than the capacity in one call is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from conduit import CapacityError
from tests.store_support import episode, episodes, fresh_store, prioritized, scalar_writer, unchanged, windows_of


def test_sixteen_episodes_of_nine_steps_into_a_hundred() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, sampler=prioritized(), mean_episode_length=9)
        with scalar_writer(table) as writer:
            for e in range(16):
                episode(writer, range(100 * e, 100 * e + 9), [1.0] * 9, "terminated", 100 * e + 9)
        expected = {408, *(100 * e + i for e in range(5, 16) for i in range(9))}
        assert set(windows_of(table)) == expected
        info = table.info()
        assert (info.rows, info.ready_rows, info.total_priority) == (100, 100, 100.0)
        assert set(table.sample(1000)["obs"]) <= expected
        table.verify()


def test_more_steps_than_capacity_in_one_call_are_refused() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, sampler=prioritized(), mean_episode_length=9)
        n = 144
        ends = np.arange(n) % 9 == 8
        columns = {
            "obs": np.arange(n), "action": np.arange(n), "reward": np.ones(n, np.float32),
            "terminated": ends, "truncated": np.zeros(n, bool), "next_obs": np.arange(1, n + 1),
        }  # fmt: skip
        with unchanged(table), pytest.raises(CapacityError, match="144 rows"):
            table.extend(columns)
        assert table.extend({name: column[:99] for name, column in columns.items()}) == 99
        assert (len(table), table.info().ready_rows) == (99, 99)
