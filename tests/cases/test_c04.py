"""C04: an off-by-one at the end of the sum left the newest row out."""

from __future__ import annotations

import numpy as np

from tests.store_support import fresh_store, plain_table, prioritized


def test_the_newest_row_is_drawn_by_its_weight() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized())
        table.extend({"x": np.arange(3)}, priorities=[1, 1, 2])
        drawn = table.sample(10_000)["x"]
    assert abs(np.count_nonzero(drawn == 2) - 5_000) <= 250


def test_a_single_row_is_always_drawn() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized())
        table.extend({"x": np.array([7])}, priorities=[5])
        batch = table.sample(100)
    assert (batch["x"] == 7).all()
    assert (batch.weights == 1.0).all()
    assert (batch.probabilities == 1.0).all()
