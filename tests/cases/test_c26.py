"""C26: prioritised sequences held rows that do not follow each other, once the ring had wrapped."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import windows
from tests.store_support import EPISODIC, fresh_store, prioritized, scalar_writer, step


@pytest.mark.parametrize(("period", "starts"), [(1, set(range(15, 22))), (3, {15, 18, 21})])
def test_sequences_follow_their_own_episode(period: int, starts: set[int]) -> None:
    with fresh_store() as store:
        window = windows.Sequence(4, period=period, next_obs=False)
        table = store.create_table("t", EPISODIC, 10, window=window, sampler=prioritized())
        with scalar_writer(table) as writer:
            for i in range(25):
                step(writer, i, priority=float(i + 1))
                table.verify()
            batch = table.sample(5_000)
            assert set(batch["obs"][:, 0].tolist()) == starts
            assert (batch["obs"] == batch["obs"][:, :1] + np.arange(4)).all()
            masses = {x: x + 1 for x in starts}
            expected = [masses[x] / sum(masses.values()) for x in batch["obs"][:, 0].tolist()]
            np.testing.assert_allclose(batch.probabilities, expected)
