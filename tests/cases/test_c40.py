"""C40: the one-step and the n-step view of one row began with different observations."""

from __future__ import annotations

from conduit import windows
from tests.store_support import EPISODIC, episode, fresh_store, keys_of, scalar_writer


def test_views_of_one_row_begin_alike() -> None:
    with fresh_store() as store:
        views = {"one": windows.Transition(0.9), "three": windows.NStep(3, 0.9), "sequence": windows.Sequence(2, 2)}
        table = store.create_table("t", EPISODIC, 100, window=views)
        with scalar_writer(table) as writer:
            episode(writer, [10, 11, 12, 13, 14, 15], [1.0] * 6, "terminated", 16)
        keys = keys_of(table)[:6]
        one, three, sequence = (table.rows(keys, window=name) for name in views)
        for name in ("obs", "action"):
            assert one[name].tolist() == three[name].tolist() == [10, 11, 12, 13, 14, 15]
            assert sequence[name][:, 2].tolist() == [10, 11, 12, 13, 14, 15]
        assert one["n_step"].tolist() == [1] * 6
        assert three["n_step"].tolist() == [3, 3, 3, 3, 2, 1]
