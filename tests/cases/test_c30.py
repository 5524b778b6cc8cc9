"""C30: n-step windows ran over the write cursor, and the target was discounted by gamma instead of gamma^m."""

from __future__ import annotations

import pytest

from tests.store_support import episodes, fresh_store, scalar_writer, step, windows_of


def test_windows_end_at_the_newest_step() -> None:
    with fresh_store() as store:
        table = episodes(store, 6, n=3, gamma=0.99)
        with scalar_writer(table) as writer:
            for i in range(8):
                step(writer, i, float(i))
            found = windows_of(table)
            assert set(found) == {2, 3, 4}  # 0 and 1 are evicted; 5, 6 and 7 lack their third step
            assert found[2]["reward"] == pytest.approx(8.8904, rel=1e-6)
            assert found[2]["discount"] == pytest.approx(0.970299, rel=1e-6)
            assert found[2]["next_obs"] == 5
        # The writer has gone, so 5 and 6 keep the shorter windows that there are.
        found = windows_of(table)
        assert set(found) == {2, 3, 4, 5, 6}
        assert found[6]["reward"] == pytest.approx(6.0)
        assert (found[6]["n_step"], found[6]["next_obs"]) == (1, 7)
        assert found[5]["reward"] == pytest.approx(5 + 0.99 * 6)
        assert (found[5]["n_step"], found[5]["next_obs"]) == (2, 7)
        assert found[5]["discount"] == pytest.approx(0.9801)
