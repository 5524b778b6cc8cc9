"""C29: n-step returns ran over a time limit into the next episode."""

from __future__ import annotations

import pytest

from tests.store_support import episode, episodes, fresh_store, scalar_writer, windows_of


def test_truncation_bounds_the_return_and_keeps_the_bootstrap() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=3, gamma=0.9)
        with scalar_writer(table) as writer:
            episode(writer, [0, 1, 2], [1, 1, 1], "truncated", 9)
            episode(writer, [100, 101, 102], [10, 10, 10], "terminated", 109)
        found = windows_of(table)
    expected = {
        0: (2.71, 0.729, 3, 9), 1: (1.9, 0.81, 2, 9), 2: (1.0, 0.9, 1, 9),
        100: (27.1, 0, 3, 109), 101: (19.0, 0, 2, 109), 102: (10.0, 0, 1, 109),
    }  # fmt: skip
    assert set(found) == set(expected)
    for obs, (reward, discount, m, next_obs) in expected.items():
        window = found[obs]
        assert (window["reward"], window["discount"]) == pytest.approx((reward, discount), rel=1e-6)
        assert (window["n_step"], window["next_obs"]) == (m, next_obs)
        assert (window["terminated"], window["truncated"]) == (obs >= 100, obs < 100)
