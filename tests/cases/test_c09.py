"""C09: importance weights were divided by the wrong extreme.

Policy: by the batch's largest, w_i = (min P / P_i)^beta over the batch.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.store_support import fresh_store, plain_table, prioritized


@pytest.mark.parametrize(
    ("alpha", "beta", "probabilities", "weights"),
    [
        (1.0, 0.5, [0.1, 0.2, 0.3, 0.4], [1, 0.707107, 0.577350, 0.5]),
        (0.6, 0.4, [0.148230, 0.224674, 0.286555, 0.340542], [1, 0.846745, 0.768229, 0.716978]),
    ],
)
def test_weights_of_a_batch_that_holds_the_least_likely_row(
    alpha: float, beta: float, probabilities: list[float], weights: list[float]
) -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized(alpha, beta))
        table.extend({"x": np.arange(4)}, priorities=[1, 2, 3, 4])
        batch = table.sample(256)
        assert set(batch["x"]) == {0, 1, 2, 3}
        np.testing.assert_allclose(batch.probabilities, np.array(probabilities)[batch["x"]], atol=5e-7)
        np.testing.assert_allclose(batch.weights, np.array(weights)[batch["x"]], atol=5e-7)
        assert batch.weights.max() == 1.0
        assert batch.weights.dtype == np.float32


def test_weights_of_a_batch_of_the_two_likeliest_rows() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized(1.0, 0.5))
        table.extend({"x": np.arange(4)}, priorities=[1, 2, 3, 4])
        pairs = (table.sample(2) for _ in range(1000))
        batch = next(batch for batch in pairs if set(batch["x"]) == {2, 3})
        np.testing.assert_allclose(batch.weights[np.argsort(batch["x"])], [1, 0.866025], atol=5e-7)
