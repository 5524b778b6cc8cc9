"""C14: a late priority update landed on a newer row in the same slot."""

from __future__ import annotations

import numpy as np

from tests.store_support import fresh_store, keys_of, plain_table, prioritized


def test_an_update_for_an_evicted_row_changes_nothing_and_is_counted() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized())
        table.extend({"x": np.arange(4)}, priorities=np.ones(4))
        keys = keys_of(table)
        table.extend({"x": np.array([4])}, priorities=[1])
        result = table.update_priorities(keys[:1], [100])
        assert (result.applied, result.stale) == (0, 1)
        assert table.priorities(keys_of(table)).tolist() == [1, 1, 1, 1]
        assert table.info().total_priority == 4.0
        assert (table.sample(16).probabilities == 0.25).all()


def test_a_row_without_a_priority_does_not_inherit_a_late_one() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized())
        table.extend({"x": np.arange(4)}, priorities=np.ones(4))
        keys = keys_of(table)
        table.extend({"x": np.array([4])})
        table.update_priorities(keys[:1], [100])
        assert table.priorities(keys_of(table)).tolist() == [1, 1, 1, 1]


def test_keys_stay_stale_when_their_slots_are_used_again_and_after_clear() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4, sampler=prioritized(), max_writers=1)
        table.extend({"x": np.arange(4)})
        old = keys_of(table)
        seen = set(old.tolist())
        for i in range(4, 200):
            table.extend({"x": np.array([i])})
            seen.update(keys_of(table).tolist())
        assert len(seen) == 200  # slots came round many times, keys never
        assert table.update_priorities(old, np.full(4, 100)).stale == 4
        before_clear = keys_of(table)
        table.clear()
        table.extend({"x": np.arange(4)})
        assert table.update_priorities(before_clear, np.full(4, 100)).stale == 4
        assert table.info().total_priority == 4.0
        assert np.isnan(table.priorities(before_clear)).all()
