"""C35: observations stored once lost the true last one: a time limit's next_obs was the next episode's first."""

from __future__ import annotations

import pytest

from tests.store_support import episode, episodes, fresh_store, scalar_writer, windows_of


@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_next_obs_of_the_last_step_is_the_final_observation(end: str) -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=1, gamma=0.9)
        with scalar_writer(table) as writer:
            episode(writer, [0, 1, 2], [1, 1, 1], end, 3)
            episode(writer, [100, 101], [1, 1], "terminated", 102)
        last = windows_of(table)[2]
    assert last["next_obs"] == 3
    assert last["terminated"] == (end == "terminated")
    assert last["truncated"] == (end == "truncated")
    assert last["discount"] == pytest.approx(0.0 if end == "terminated" else 0.9)
