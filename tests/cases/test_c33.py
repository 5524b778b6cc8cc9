"""C33: filling in n-step columns overwrote observations, because obs and next_obs shared memory."""

from __future__ import annotations

from tests.store_support import contents, episode, episodes, fresh_store, scalar_writer, windows_of


def test_sampling_and_writing_into_batches_leaves_the_table_alone() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=3)
        with scalar_writer(table) as writer:
            episode(writer, range(5), [1] * 5, "terminated", 5)
        before = contents(table)
        found = windows_of(table)
        assert {obs: window["next_obs"] for obs, window in found.items()} == {0: 3, 1: 4, 2: 5, 3: 5, 4: 5}
        batch = table.sample(64)
        for name in batch.names:
            batch[name][...] = 1
        assert contents(table) == before
        assert windows_of(table) == found
