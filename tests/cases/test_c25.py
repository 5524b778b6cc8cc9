"""C25: slices broke where an episode lies across the end of the ring."""

from __future__ import annotations

import numpy as np

from conduit import windows
from tests.store_support import EPISODIC, episode, fresh_store, in_sigma, scalar_writer

DRAWS = 60_000


def test_every_whole_slice_is_drawn_alike_and_no_other() -> None:
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 10, window=windows.Sequence(4, strict=True))
        with scalar_writer(table) as writer:
            episode(writer, list(range(9)), [0.0] * 9, "terminated", 9)  # A
            episode(writer, list(range(100, 109)), [0.0] * 9, "terminated", 109)  # B
        assert len(table) == 10
        table.verify()
        starts: list[int] = []
        for _ in range(6):
            batch = table.sample(DRAWS // 6)
            assert (batch["obs"] == batch["obs"][:, :1] + np.arange(4)).all()
            assert batch["mask"].all()
            assert (batch["length"] == 4).all()
            assert (batch["next_obs"] == batch["obs"][:, 0] + 4).all()
            starts += batch["obs"][:, 0].tolist()
        found = dict(zip(*np.unique(starts, return_counts=True), strict=True))
        assert set(found) == set(range(100, 106))
        assert all(in_sigma(count, DRAWS, 1 / 6) for count in found.values())
