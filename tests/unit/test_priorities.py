"""Priorities: what is given, what is kept, what is drawn, and the weights that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conduit import Store, Table, UpdateResult
from tests.store_support import (
    episodes,
    fresh_store,
    in_sigma,
    keys_of,
    plain_table,
    prioritized,
    scalar_writer,
    step,
)


def filled(store: Store, raw: list[float], **sampler: float) -> Table:
    table = plain_table(store, len(raw), sampler=prioritized(**sampler))
    table.extend({"x": np.arange(len(raw))}, priorities=raw)
    return table


@pytest.mark.parametrize("given", [
    [1, 2], (1, 2), np.array([1, 2]), np.array([1, 2], np.float64), np.array([1, 2], np.float32),
    np.array([1, 9, 2, 9], np.float32)[::2], np.array([1, 2], ">f4"), np.array([1, 2], np.float16),
    torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0, 2.0]).double(),
])  # fmt: skip
def test_priorities_are_taken_in_many_forms(given: Any) -> None:
    with fresh_store() as store:
        table = filled(store, [5, 5, 5])
        keys = keys_of(table)
        assert table.update_priorities(keys[1:], given) == UpdateResult(2, 0)
        assert table.priorities(keys).tolist() == [5, 1, 2]
        assert table.info().total_priority == 8.0


@pytest.mark.parametrize(
    "form", [list, lambda keys: keys.astype(np.int64), torch.from_numpy, lambda keys: keys[::-1][::-1]]
)
def test_keys_are_taken_in_many_forms(form: Any) -> None:
    with fresh_store() as store:
        table = filled(store, [5, 5, 5])
        assert table.update_priorities(form(keys_of(table)), [1, 2, 3]).applied == 3
        assert table.priorities(form(keys_of(table))).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("alpha", "beta", "eps"), [(1, 1, 0), (0.6, 0.4, 0), (0.5, 1, 1e-2), (0, 1, 0), (2, 0, 0.5)])
def test_draws_probabilities_and_weights_agree(alpha: float, beta: float, eps: float) -> None:
    raw = np.array([0.5, 1, 2, 4, 8], np.float32)
    n = 40_000
    with fresh_store() as store:
        batch = filled(store, raw.tolist(), alpha=alpha, beta=beta, eps=eps).sample(n)
        mass = (raw.astype(float) + eps) ** alpha
        chance = mass / mass.sum()
        np.testing.assert_allclose(batch.probabilities, chance[batch["x"]], rtol=1e-12)
        assert all(in_sigma(count, n, p) for count, p in zip(np.bincount(batch["x"], minlength=5), chance, strict=True))
        expected = (chance.min() / chance) ** beta
        np.testing.assert_allclose(batch.weights, expected[batch["x"]], rtol=1e-6)
        assert batch.weights.max() == 1.0


def test_zero_is_never_drawn_without_eps_and_is_with_it() -> None:
    with fresh_store() as store:
        table = filled(store, [0, 1, 0])
        assert (table.sample(1000)["x"] == 1).all()
        table.reconfigure(eps=1.0)
        assert set(table.sample(1000)["x"]) == {0, 1, 2}
        table.verify()


def test_alpha_zero_leaves_zero_out() -> None:
    """0 ** 0 is 1 by the formula; a priority of 0 means: do not draw."""
    with fresh_store() as store:
        table = filled(store, [0, 1, 5], alpha=0.0)
        batch = table.sample(1000)
        assert set(batch["x"]) == {1, 2}
        assert (batch.probabilities == 0.5).all()


def test_the_smallest_and_the_largest_priority() -> None:
    with fresh_store() as store:
        table = filled(store, [1e-60, 3.4e38], alpha=1.0)
        assert table.priorities(keys_of(table)).tolist() == [np.float32(1e-45), np.float32(3.4e38)]
        batch = table.sample(1000)
        assert (batch["x"] == 1).all()
        table.reconfigure(alpha=4.0)
        assert np.isfinite(table.info().total_priority)
        assert (table.sample(1000)["x"] == 1).all()
        table.update_priorities(keys_of(table)[1:], [0.0])
        table.reconfigure(alpha=1.0)
        assert (table.sample(1000)["x"] == 0).all()
        table.verify()


def test_an_update_counts_the_live_the_gone_and_the_last_of_equal_keys() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized())
        table.extend({"x": np.arange(4)})
        gone = keys_of(table)[0]
        table.extend({"x": np.array([4])})
        a, b = keys_of(table)[:2]
        assert table.update_priorities([a, gone, b, a, gone], [1, 2, 3, 4, 5]) == UpdateResult(3, 2)
        assert table.priorities([a, b, gone])[:2].tolist() == [4, 3]
        assert np.isnan(table.priorities([gone])[0])
        info = table.info()
        assert (info.updated, info.stale_updates) == (3, 2)
        table.verify()


def test_an_update_of_nothing() -> None:
    with fresh_store() as store:
        table = filled(store, [1, 2])
        assert table.update_priorities([], []) == UpdateResult(0, 0)
        assert table.priorities([]).shape == (0,)


def test_an_update_reaches_a_row_that_waits_for_its_window() -> None:
    with fresh_store() as store:
        table = episodes(store, 10, n=2, sampler=prioritized())
        with scalar_writer(table) as writer:
            step(writer, 0, priority=1.0)
            step(writer, 1, priority=1.0)
            key = keys_of(table)[1:]
            assert table.update_priorities(key, [7.0]).applied == 1
            assert table.priorities(key)[0] == 7.0
            assert table.info().total_priority == 0.0
            step(writer, 2)
            step(writer, 3)
            assert table.info().total_priority == 8.0
            table.verify()


def test_final_observations_have_no_priority_to_set() -> None:
    with fresh_store() as store:
        table = episodes(store, 10, sampler=prioritized())
        with scalar_writer(table) as writer:
            step(writer, 0, end="terminated")
            writer.end(1)
        total = table.info().total_priority
        table.update_priorities(keys_of(table), [3.0, 1000.0])
        assert (total, table.info().total_priority) == (1.0, 3.0)
        assert (table.sample(64)["obs"] == 0).all()
        assert table.info().max_priority == 3.0
        table.verify()


def test_updates_of_many_rows_at_once() -> None:
    rng = np.random.default_rng(1)
    with fresh_store("64MiB") as store:
        n = 50_000
        table = plain_table(store, n, sampler=prioritized())
        table.extend({"x": np.arange(n)})
        keys, raw = keys_of(table), rng.random(n).astype(np.float32)
        order = rng.permutation(n)
        assert table.update_priorities(keys[order], raw[order]).applied == n
        np.testing.assert_array_equal(table.priorities(keys), raw)
        np.testing.assert_allclose(table.info().total_priority, raw.sum(dtype=float), rtol=1e-12)
        table.verify()


def test_a_change_of_alpha_weighs_all_rows_anew() -> None:
    rng = np.random.default_rng(2)
    raw = rng.random(1000).astype(np.float32)
    with fresh_store() as store:
        table = filled(store, raw.tolist(), alpha=1.0)
        for alpha, eps in ((0.3, 0.0), (0.0, 0.0), (2.5, 0.1), (1.0, 0.0)):
            table.reconfigure(alpha=alpha, eps=eps)
            expected = ((raw.astype(float) + eps) ** alpha).sum()
            np.testing.assert_allclose(table.info().total_priority, expected, rtol=1e-12)
            table.verify()
        assert table.priorities(keys_of(table)).tolist() == raw.tolist()
