"""C69: sampling hung though rows were there, for the limiter had lost count: by itself, or over a restore."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conduit import SampleTimeout, Store, Table, limiters
from tests.checkpoint_support import restored
from tests.store_support import fresh_store, plain_table
from tests.worker import worker


def seven_of_five(store: Store) -> Table:
    table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(2, min_size=2))
    table.extend({"x": np.arange(5)})
    for _ in range(7):
        table.sample(1, timeout=0)
    return table


def sample_until_refused(name: str) -> tuple[int, float]:
    """How many single samples go through at once, and how long the next one waits."""
    with Store.attach(name) as store:
        for done in range(100):
            began = time.monotonic()
            try:
                store["t"].sample(1, timeout=1.0)
            except SampleTimeout:
                return done, time.monotonic() - began
    raise AssertionError("nobody stopped it")


def _here(function: Callable[[str], tuple[int, float]], name: str) -> tuple[int, float]:
    return function(name)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "another process"])
def test_exactly_three_more_samples_and_one_insert_allows_two(elsewhere: bool) -> None:
    with fresh_store() as store, worker() as other:
        table = seven_of_five(store)
        info = table.info()
        assert (info.rows, info.limiter_inserts, info.limiter_samples, info.limiter_cursor) == (5, 5, 7, 3.0)
        for expected in (3, 0):
            done, waited = (other.call if elsewhere else _here)(sample_until_refused, store.name)
            assert done == expected
            assert 1.0 <= waited < 1.5
        with pytest.raises(SampleTimeout, match=r"5 inserted x 2 - 10 sampled leaves 0, 1 asked; 1 more inserts"):
            table.sample(1, timeout=0)
        table.extend({"x": np.arange(1)})
        assert (table.can_sample(2), table.can_sample(3)) == (True, False)
        assert sample_until_refused(store.name)[0] == 2
        table.verify()


def test_over_a_restore(tmp_path: Path) -> None:
    with fresh_store() as store:
        seven_of_five(store)
        store.checkpoint(tmp_path)
    with fresh_store(), restored(tmp_path) as again:
        table = again["t"]
        info = table.info()
        assert (info.rows, info.limiter_inserts, info.limiter_samples, info.limiter_cursor) == (5, 5, 7, 3.0)
        done, waited = sample_until_refused(again.name)
        assert done == 3
        assert 1.0 <= waited < 1.5
        table.extend({"x": np.arange(1)})
        assert sample_until_refused(again.name)[0] == 2
        table.verify()
