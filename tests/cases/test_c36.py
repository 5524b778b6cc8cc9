"""C36: frame stacks reached into a truncated episode; one end was stored as several."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import windows
from tests.store_support import EPISODIC, episode, fresh_store, keys_of, scalar_writer, step


@pytest.mark.parametrize(("pad", "filler"), [("repeat", 2), ("zeros", 0)])
def test_a_stack_begins_with_its_episode(pad: str, filler: int) -> None:
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 100, window=windows.FrameStack(2, pad=pad))
        with scalar_writer(table) as writer:
            episode(writer, [1], [0.0], "truncated", 7)
            step(writer, 2)
            step(writer, 3)
            keys = keys_of(table)
            batch = table.rows(keys[[0, 2]])
            assert batch["obs"].tolist() == [[1 if filler else 0, 1], [filler, 2]]
            assert batch["next_obs"].tolist() == [[1, 7], [2, 3]]
            assert not any(pair == [1, 2] for pair in table.sample(500)["obs"].tolist())
            table.verify()


@pytest.mark.parametrize(("n", "ends"), [(1, [7]), (3, [5, 6, 7])])
def test_an_episode_ends_once(n: int, ends: list[int]) -> None:
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 100, window=windows.FrameStack(2, n=n))
        with scalar_writer(table) as writer:
            episode(writer, list(range(8)), [1.0] * 8, "terminated", 8)
        batch = table.rows(keys_of(table)[:8])
        assert np.flatnonzero(batch["discount"] == 0).tolist() == ends
        assert batch["obs"].tolist() == [[max(i - 1, 0), i] for i in range(8)]
        assert batch["next_obs"].tolist() == [[min(i + n, 8) - 1, min(i + n, 8)] for i in range(8)]
