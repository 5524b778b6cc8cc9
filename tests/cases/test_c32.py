"""C32: the last n-1 steps of a finished episode were lost."""

from __future__ import annotations

import numpy as np
import pytest

from tests.store_support import episode, episodes, fresh_store, scalar_writer, windows_of

RETURNS = [2.71, 2.71, 2.71, 1.9, 1.0]
DISCOUNTS = [0.729, 0.729, 0, 0, 0]


@pytest.mark.parametrize("way", ["row by row", "as one batch"])
def test_every_step_of_a_terminated_episode_has_its_window(way: str) -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=3, gamma=0.9)
        if way == "row by row":
            with scalar_writer(table) as writer:
                episode(writer, range(5), [1] * 5, "terminated", 5)
        else:
            table.extend({
                "obs": np.arange(5), "action": np.arange(5), "reward": np.ones(5, np.float32),
                "terminated": np.arange(5) == 4, "truncated": np.zeros(5, bool), "next_obs": np.arange(1, 6),
            })  # fmt: skip
        found = windows_of(table)
    assert list(found) == [0, 1, 2, 3, 4]
    assert [found[i]["reward"] for i in range(5)] == pytest.approx(RETURNS, rel=1e-6)
    assert [found[i]["discount"] for i in range(5)] == pytest.approx(DISCOUNTS, rel=1e-6)
    assert [found[i]["n_step"] for i in range(5)] == [3, 3, 3, 2, 1]
