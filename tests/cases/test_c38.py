"""C38: turn-based agents lost or doubled actions where an episode was cut; agents without rows crashed sampling."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import SampleTimeout, agents, windows
from tests.store_support import EPISODIC, fresh_store, windows_of


def test_turns_survive_a_cut_and_an_agent_that_never_acts() -> None:
    with fresh_store("32MiB") as store:
        tables = agents.create(store, "game", dict.fromkeys("xyz", EPISODIC), 100, window=windows.NStep(1, 0.9))
        with tables.writer() as writer:
            writer.reset({"x": 0})
            for t in range(5):
                actor, following = ("x", "y") if t % 2 == 0 else ("y", "x")
                end = {"__all__": True} if t == 4 else {}
                writer.step({actor: t}, {following: t + 1}, {actor: float(t)}, terminated=end)
                if t == 2:  # the fragment ends here: whose step is not known yet is in neither part, and then once
                    assert len(tables["x"]) == 1
                    assert len(tables["y"]) == 0
        found = {agent: windows_of(table) for agent, table in tables.items()}
        assert {agent: (len(rows), sum(row["reward"] for row in rows.values())) for agent, rows in found.items()} == {
            "x": (3, 6.0), "y": (2, 4.0), "z": (0, 0),
        }  # fmt: skip
        assert [row["next_obs"] for row in found["x"].values()] == [2, 4, 4]
        assert [row["discount"] for row in found["x"].values()] == [np.float32(0.9), np.float32(0.9), 0.0]
        assert [row["action"] for row in found["y"].values()] == [1, 3]
        assert len(tables["x"].sample(4)) == len(tables["y"].sample(4)) == 4
        with pytest.raises(SampleTimeout, match=r"game\.z"):
            tables.sample(4, timeout=0.05)
