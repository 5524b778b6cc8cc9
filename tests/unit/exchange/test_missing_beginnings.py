"""Episodes whose first rows were evicted: what goes out and comes in again has the windows that it had, no more."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from conduit import EpisodeError, ExchangeError, SampleTimeout, StaleKey, Store, Table, limiters, samplers, windows
from conduit.rllib.saved import append_saved, saved_rows
from tests.store_support import EPISODIC, episode, fresh_store, keys_of, scalar_writer

WINDOWS = [
    windows.Sequence(2, burn_in=2), windows.FrameStack(3), windows.NStep(2, gamma=0.5), windows.Episode(12),
    windows.Sequence(2, period=3), windows.Sequence(1, burn_in=1, period=4), windows.Episode(4),
]  # fmt: skip
PERIOD = windows.Sequence(2, period=3)
PACKAGES = {"rllib": "ray.rllib", "tensordict": "tensordict", "minari": "minari"}
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


@pytest.mark.parametrize("format", ["parquet", "arrow", "arrow-stream", "numpy", *PACKAGES])
def test_every_format_says_where_an_episode_begins(format: str, tmp_path: Path) -> None:
    if format in PACKAGES:
        pytest.importorskip(PACKAGES[format])
    with fresh_store() as store:
        table = a_table(store, PERIOD, 31)
        fill(table)
        table.export(tmp_path / "x", format)
        again = a_table(store, PERIOD, 100, "again")
        again.import_from(tmp_path / "x", format)
        assert drawn(again) == drawn(table)


def test_arrays_and_tensors_in_memory_too() -> None:
    with fresh_store() as store:
        table = a_table(store, PERIOD, 31)
        fill(table)
        again = a_table(store, PERIOD, 100, "again")
        again.import_from(table.to_numpy())
        assert drawn(again) == drawn(table)
        pytest.importorskip("tensordict")
        again.clear()
        again.import_from(table.to_tensordict())
        assert drawn(again) == drawn(table)


def test_rllib_itself_finds_and_writes_where_an_episode_begins(tmp_path: Path) -> None:
    pytest.importorskip("ray.rllib")
    import msgpack
    import msgpack_numpy
    import pyarrow.parquet as pq
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    with fresh_store() as store:
        table = a_table(store, PERIOD, 31)
        fill(table)
        table.export(tmp_path / "ours", "rllib")
        (file,) = (tmp_path / "ours").iterdir()
        items = pq.read_table(file).column("item").to_pylist()
        states = [msgpack.unpackb(item, object_hook=msgpack_numpy.decode) for item in items]
        first = SingleAgentEpisode.from_state(states[0])
        assert first.t_started == first.get_observations(0) % 7 > 0

        whole = SingleAgentEpisode(observations=[0], len_lookback_buffer=0)
        for t in range(5):
            whole.add_env_step(t + 1, 0, 0.0)
        rest = whole.cut(len_lookback_buffer=2)
        for t in range(5, 12):
            rest.add_env_step(t + 1, 0, 0.0, terminated=t == 11)
        (tmp_path / "theirs").mkdir()
        items = [msgpack.packb(part.get_state(), default=msgpack_numpy.encode) for part in (whole, rest)]
        pq.write_table(pa.table({"item": items}), tmp_path / "theirs" / "0.parquet")
        theirs = store.import_table("theirs", tmp_path / "theirs", format="rllib", window=PERIOD)
        batch = theirs.sample(256)
        assert {*batch["obs"][:, 0].tolist()} == {0, 3, 6, 9}
        states[0]["t_started"] = -1
        pq.write_table(pa.table({"item": [msgpack.packb(states[0], default=msgpack_numpy.encode)]}), file)
        with pytest.raises(ExchangeError, match="its first step is -1"):
            store.import_table("damaged", tmp_path / "ours", format="rllib")


def steps_of_others(first: int, n: int = 6) -> pa.Table:
    """An episode from step 0 on, and one from step `first` on."""
    return pa.table(
        {
            "episode": np.repeat([0, 1], n), "step": np.concatenate([np.arange(n), np.arange(first, first + n)]),
            "obs": np.arange(2 * n), "action": np.zeros(2 * n, "i8"), "reward": np.zeros(2 * n, "f4"),
            "terminated": np.arange(2 * n) % n == n - 1, "truncated": np.zeros(2 * n, "?"),
            "next_obs": np.arange(1, 2 * n + 1),
        }
    )  # fmt: skip


def test_steps_of_others() -> None:
    """An episode that begins at step 3 is one whose beginning is not there."""
    with fresh_store() as store:
        table = a_table(store, windows.Sequence(1, burn_in=2, next_obs=False), 100)
        table.import_from(steps_of_others(3))
        batch = table.sample(table.info().ready_rows)
        assert sorted(batch["obs"][:, 2].tolist()) == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]


@pytest.mark.parametrize("first", [0, 1, 2, 3, 1_000, 2**32 - 6])
def test_windows_with_a_period_lie_at_the_steps_of_others(first: int) -> None:
    with fresh_store() as store:
        table = a_table(store, PERIOD, 100)
        table.import_from(steps_of_others(first))
        begins = table.sample(table.info().ready_rows)["obs"][:, 0].tolist()
        assert sorted(begins) == [0, 3] + [6 + i for i in range(6) if (first + i) % 3 == 0]


@pytest.mark.parametrize("first", [-1, 2**32 - 5, 2**40])
def test_what_is_no_number_of_a_step(first: int) -> None:
    with fresh_store() as store, pytest.raises(EpisodeError, match="steps of an episode are numbered from 0, up to"):
        a_table(store, PERIOD, 100).import_from(steps_of_others(first))


def test_rows_that_a_limiter_lets_in_a_few_at_a_time() -> None:
    """Where the limiter stops within the first rows of an episode, the next ones are numbered on."""
    limiter = limiters.SampleToInsertRatio(1.0, min_size=3, error_buffer=2.0)
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 100, window=PERIOD, limiter=limiter, max_writers=1)
        done = threading.Event()

        def samples() -> None:
            while not done.is_set():
                with contextlib.suppress(SampleTimeout):
                    table.sample(1, timeout=0.001)

        reader = threading.Thread(target=samples)
        reader.start()
        try:
            table.import_from(steps_of_others(4, 20))
        finally:
            done.set()
            reader.join()
        begins = set()
        for key in keys_of(table):
            with contextlib.suppress(StaleKey):
                begins.add(int(table.rows(np.array([key]))["obs"][0, 0]))
        assert begins == {*range(0, 20, 3)} | {20 + i for i in range(20) if (4 + i) % 3 == 0}


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
