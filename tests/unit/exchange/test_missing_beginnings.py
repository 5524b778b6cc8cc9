"""Episodes whose first rows were evicted: what goes out and comes in again has the windows that it had, no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from conduit import Store, Table, samplers, windows
from conduit.rllib.saved import append_saved, saved_rows
from tests.store_support import EPISODIC, episode, fresh_store, keys_of, scalar_writer

WINDOWS = [windows.Sequence(2, burn_in=2), windows.FrameStack(3), windows.NStep(2, gamma=0.5), windows.Episode(12)]
Window = windows.Sequence | windows.FrameStack | windows.NStep | windows.Episode


def a_table(store: Store, window: Window, max_size: int, name: str = "t") -> Table:
    sampler = samplers.WithoutReplacement()
    return store.create_table(name, EPISODIC, max_size, window=window, sampler=sampler, max_writers=1, seed=3)


def fill(table: Table, episodes: int = 7) -> None:
    serial = 0
    with scalar_writer(table) as writer:
        for n in range(episodes):
            steps = range(serial, serial + 7)
            episode(writer, list(steps), [float(s) for s in steps], ("terminated", "truncated")[n % 2], -serial)
            serial += 7


def drawn(table: Table) -> set[str]:
    """All windows, in two epochs at most."""
    batches = [table.sample(1) for _ in range(2 * table.info().ready_rows)]
    return {str([batch[name][0].tolist() for name in batch.names]) for batch in batches}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("max_size", [30, 31, 33])
def test_imported_again_it_has_the_same_windows(window: Window, max_size: int, tmp_path: Path) -> None:
    with fresh_store() as store:
        table = a_table(store, window, max_size)
        fill(table)
        expected = drawn(table)
        assert len(expected) > 2
        table.export(tmp_path / "t.parquet")
        again = a_table(store, window, 100, "again")
        again.import_from(tmp_path / "t.parquet")
        again.verify()
        assert drawn(again) == expected


def test_steps_of_others(tmp_path: Path) -> None:
    """An episode that begins at step 3 is one whose beginning is not there."""
    n = 6
    steps = pa.table(
        {
            "episode": np.repeat([0, 1], n), "step": np.concatenate([np.arange(n), np.arange(3, 3 + n)]),
            "obs": np.arange(2 * n), "action": np.zeros(2 * n, "i8"), "reward": np.zeros(2 * n, "f4"),
            "terminated": np.arange(2 * n) % n == n - 1, "truncated": np.zeros(2 * n, "?"),
            "next_obs": np.arange(1, 2 * n + 1),
        }
    )  # fmt: skip
    with fresh_store() as store:
        table = a_table(store, windows.Sequence(1, burn_in=2, next_obs=False), 100)
        table.import_from(steps)
        batch = table.sample(table.info().ready_rows)
        assert sorted(batch["obs"][:, 2].tolist()) == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("used", [False, True])
def test_rows_of_an_algorithms_checkpoint(window: Window, used: bool) -> None:
    """Into a table that was just made, exactly; into one that held others, as far as rows and windows go."""
    with fresh_store() as store, fresh_store() as other:
        table = a_table(store, window, 30)
        fill(table)
        table.sample(1)
        saved = saved_rows(table)
        keys = keys_of(table).tolist()
        again = a_table(other, window, 30)
        if used:
            fill(again, 1)
            again.clear()
        append_saved(again, saved)
        again.verify()
        assert len(again) == len(table)
        if not used:
            assert keys_of(again).tolist() == keys
            assert again.sample(1)["obs"].tolist() == table.sample(1)["obs"].tolist()
            return
        assert drawn(again) == drawn(table)
