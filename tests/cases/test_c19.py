"""C19: capacity was counted in fragments, so that memory grew with the length of episodes."""

from __future__ import annotations

from tests.store_support import episode, episodes, fresh_store, scalar_writer, windows_of


def test_capacity_is_in_steps() -> None:
    with fresh_store() as store:
        table = episodes(store, 100)
        reserved = table.info().data_bytes
        with scalar_writer(table) as writer:
            for number in range(20):
                length = 10 if number < 10 else 50
                episode(writer, range(1000 * number, 1000 * number + length), [1.0] * length, "terminated", -1)
                assert len(table) <= 100
                assert len(table) == min(100, 10 * (number + 1) if number < 10 else 100)
        assert sorted(windows_of(table)) == [*range(18_000, 18_050), *range(19_000, 19_050)]
        info = table.info()
        assert (info.rows, info.ready_rows, info.evicted_early, info.data_bytes) == (100, 100, 0, reserved)
