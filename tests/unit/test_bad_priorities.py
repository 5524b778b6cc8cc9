"""Priorities, keys and batch sizes that are not as they must be: a typed error, and a table as before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conduit import ConduitError, DtypeMismatch, PriorityError, SampleTimeout, ShapeMismatch, StaleKey
from tests.entries import STEP, WAYS, Entry, entry_of, steps
from tests.store_support import fresh_store, keys_of, prioritized, unchanged

BAD = [np.nan, np.inf, -np.inf, -1.0, -1e-50, 1e39]


@pytest.fixture(params=WAYS)
def entry(request: pytest.FixtureRequest) -> Iterator[Entry]:
    with entry_of(request.param) as made:
        yield made


@pytest.mark.parametrize("bad", BAD)
def test_a_priority_that_is_none(entry: Entry, bad: float) -> None:
    given: Any = [1.0, bad, 1.0] if entry.lead else bad
    where = "position 1 of 3" if entry.lead else "position 0 of 1"
    with entry.refused(PriorityError, where, str(bad), "finite numbers from 0"):
        entry.push(priorities=given)


@pytest.mark.parametrize(("bad", "worse"), [*itertools.pairwise(BAD), *itertools.pairwise(BAD[::-1]), (-1e-50, np.nan)])
def test_the_first_of_several_bad_priorities_is_named(bad: float, worse: float) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        table.extend(steps((10,)))
        with unchanged(table), pytest.raises(PriorityError) as caught:
            table.update_priorities(keys_of(table)[:5], np.array([1, bad, 1, worse, 1]))
        assert f"priority {bad} at position 1 of 5" in str(caught.value)


@pytest.mark.parametrize("entry", ["vector", "extend"], indirect=True)
@pytest.mark.parametrize("given", [np.ones(2), np.ones((3, 1)), np.ones(4), 1.0])
def test_priorities_of_another_shape(entry: Entry, given: Any) -> None:
    with entry.refused(ShapeMismatch, "priorities have shape", str(np.shape(given)), "(3,)"):
        entry.push(priorities=given)


@pytest.mark.parametrize(
    "given", [[True] * 3, ["a"] * 3, [None] * 3, [1j] * 3], ids=["bool", "text", "none", "complex"]
)
def test_priorities_that_are_no_numbers(given: Any) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        table.extend(steps((3,)))
        with unchanged(table), pytest.raises(PriorityError, match="give floats"):
            table.update_priorities(keys_of(table), given)


@pytest.mark.parametrize(
    ("keys", "kind", "said"),
    [
        (np.ones((2, 2), np.uint64), ShapeMismatch, "shape (2, 2)"),
        (np.array([1.0, 2.0]), DtypeMismatch, "float64"),
        (np.array([-1, 2]), DtypeMismatch, "int64"),
        (["a", "b"], DtypeMismatch, "uint64 keys of a batch"),
        ([[1], [2, 3]], ShapeMismatch, "keys are no array"),
    ],
)
def test_keys_that_are_none(keys: Any, kind: type[ConduitError], said: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        table.extend(steps((10,)))
        for call in (
            lambda: table.update_priorities(keys, [1.0, 1.0]),
            lambda: table.priorities(keys),
            lambda: table.rows(keys),
        ):
            with unchanged(table), pytest.raises(kind) as caught:
                call()
            assert said in str(caught.value)


@pytest.mark.parametrize("key", [0, 2**64 - 1, (1 << 28) | 5_000, 1 << 28])
def test_keys_that_never_were(key: int) -> None:
    """Slots and generations that the table does not have; the block's first generation is 1."""
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        table.extend(steps((10,)))
        made_up = np.array([key if key != 1 << 28 else key * 7], np.uint64)
        with unchanged(table), pytest.raises(StaleKey, match=f"key {made_up[0]} at position 0 of 1"):
            table.rows(made_up)
        assert np.isnan(table.priorities(made_up)).all()
        assert table.update_priorities(made_up, [5.0]).stale == 1


# ---- reading


def test_sample_from_an_empty_table() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        with unchanged(table), pytest.raises(SampleTimeout, match=r"after 0\.01 s: MinSize\(1\) lacks 1 rows, 0 are"):
            table.sample(1, timeout=0.01)
        table.extend(steps((5,)))
        table.clear()
        with unchanged(table), pytest.raises(SampleTimeout, match=r"0 are there.*Check that writers run"):
            table.sample(1, timeout=0)


@pytest.mark.parametrize("n", [0, -1, 2**31])
def test_a_batch_of_no_size(n: int) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        table.extend(steps((5,)))
        with unchanged(table), pytest.raises(ValueError, match=rf"sample\({n}\): give a number of rows from 1"):
            table.sample(n)
