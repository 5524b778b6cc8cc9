"""C12: a sampler redrew for ever while the mass sat on a row whose window was not complete."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import SampleTimeout
from tests.store_support import episodes, fresh_store, keys_of, prioritized, scalar_writer, step


def test_a_heavy_row_without_its_window_is_not_drawn() -> None:
    with fresh_store() as store:
        table = episodes(store, 10, n=3, sampler=prioritized())
        with scalar_writer(table) as writer:
            for i in range(14):
                step(writer, i, priority=1e-6)
            step(writer, 14, priority=1e6)
            batch = table.sample(32, timeout=10)
            assert len(table) == 10
            assert set(batch["obs"]) <= set(range(5, 12))  # 12 and 13 lack their third step, as does 14
            assert (batch["n_step"] == 3).all()
            np.testing.assert_allclose(batch.probabilities, 1 / 7)
            assert set(table.priorities(keys_of(table))) == {np.float32(1e-6), np.float32(1e6)}
            table.verify()


def test_when_no_row_has_its_window_the_error_says_so() -> None:
    with fresh_store() as store:
        table = episodes(store, 10, n=3, sampler=prioritized())
        with scalar_writer(table) as writer:
            for i in range(3):
                step(writer, i, priority=5.0)
            with pytest.raises(SampleTimeout, match=r"no row to draw.*NStep\(n=3.*needs the steps that follow"):
                table.sample(1, timeout=0.01)
            step(writer, 3)
            assert (table.sample(4, timeout=10)["obs"] == 0).all()
