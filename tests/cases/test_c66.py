"""C66: a restored prioritized table could not be loaded, had lost its priorities, or could not be saved again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint_support import append_and_save, drawable, restored
from tests.store_support import fresh_store, plain_table, prioritized
from tests.worker import worker


def test_priorities_slots_and_the_next_slot_survive_twice(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 5, sampler=prioritized(alpha=0.6, beta=0.4))
        table.extend({"x": np.arange(4)}, priorities=np.array([1.0, 2.0, 3.0, 4.0]))
        store.checkpoint(tmp_path)
    with worker() as other:
        told = other.call(append_and_save, str(tmp_path), 1)
    expected = [0.148230, 0.224674, 0.286555, 0.340542]
    np.testing.assert_allclose(told["before"]["probabilities"], expected, atol=5e-7)
    assert told["after"]["raw"] == [1.0, 2.0, 3.0, 4.0, 4.0], "a new row gets the largest priority there is"
    with fresh_store(), restored(tmp_path) as again:
        table = again["t"]
        table.extend({"x": np.array([5, 6])})
        now = drawable(table)
    # Never saved: the same five, then these two.
    with fresh_store() as store:
        table = plain_table(store, 5, sampler=prioritized(alpha=0.6, beta=0.4))
        table.extend({"x": np.arange(4)}, priorities=np.array([1.0, 2.0, 3.0, 4.0]))
        table.extend({"x": np.array([4])})
        table.extend({"x": np.array([5, 6])})
        never = drawable(table)
    assert (now["keys"], now["raw"]) == (never["keys"], never["raw"])
    assert now["raw"] == [3.0, 4.0, 4.0, 4.0, 4.0], "rows 2 to 6 are live"
    np.testing.assert_allclose(now["probabilities"], never["probabilities"])


def test_the_largest_priority_is_that_of_the_live_rows(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 5, sampler=prioritized())
        table.extend({"x": np.arange(3)}, priorities=np.array([1.0, 9.0, 2.0]))
        table.update_priorities(table.blocks()[0].keys[1:2], [0.5])
        store.checkpoint(tmp_path)
    with fresh_store(), restored(tmp_path) as again:
        table = again["t"]
        table.extend({"x": np.array([3])})
        assert table.priorities(table.blocks()[0].keys).tolist() == pytest.approx([1.0, 0.5, 2.0, 2.0])
