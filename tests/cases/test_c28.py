"""C28: padding leaked the next episode, and the last step's end was spread over all steps."""

from __future__ import annotations

import numpy as np

from conduit import windows
from tests.store_support import EPISODIC, episode, fresh_store, keys_of, scalar_writer

LENGTHS = (20, 30, 50)


def test_masks_and_flags_are_those_of_each_step() -> None:
    with fresh_store() as store:
        views = {"episode": windows.Episode(100), "three": windows.Sequence(3)}
        table = store.create_table("t", EPISODIC, 200, window=views)
        with scalar_writer(table) as writer:
            at = 1
            for length in LENGTHS:  # values are above 0, the pad value
                episode(writer, list(range(at, at + length)), [1.0] * length, "terminated", at + length)
                at += length + 1
        batch = table.sample(200, window="episode")
        sums = batch["mask"].sum(1)
        assert set(sums.tolist()) == set(LENGTHS)
        assert (batch["length"] == sums).all()
        assert (batch["mask"] == (np.arange(100) < sums[:, None])).all()
        assert (batch["obs"] == np.where(batch["mask"], batch["obs"][:, :1] + np.arange(100), 0)).all()
        assert (batch["reward"] == batch["mask"]).all()
        assert (batch["terminated"] == (np.arange(100) == sums[:, None] - 1)).all()
        assert (batch["next_obs"] == batch["obs"][:, 0] + sums).all()
        ends = table.rows(keys_of(table)[17:18], window="three")  # the last three steps of the first episode
        assert ends["obs"].tolist() == [[18, 19, 20]]
        assert ends["terminated"].tolist() == [[False, False, True]]
        assert not ends["truncated"].any()
        table.verify()
