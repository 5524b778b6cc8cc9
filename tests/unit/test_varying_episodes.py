"""Steps of episodes whose observations and other columns vary in length, sampled as transitions and n-step windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conduit
import conduit.offline
from conduit import Column, Ragged, Schema, Store, Table, windows
from tests.checkpoint_support import restored
from tests.store_support import fresh_store, scalar_writer, vector_writer

SCHEMA = Schema(
    (
        Column("obs/tokens", "int32", (None,), mean_length=6),
        Column("obs/at", "int64"),
        Column("thought", "string", mean_length=4),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("truncated", "bool"),
    )
)
WINDOWS: dict[str, Any] = {"one": windows.Transition(), "three": windows.NStep(3, 0.5)}


def tokens(at: int) -> np.ndarray[Any, Any]:
    """An observation by its number: now and then of no tokens, or of more than a block holds."""
    length = 700 if at % 61 == 7 else at * 7919 % 13
    return np.arange(at, at + length, dtype=np.int32)


def obs(at: int) -> dict[str, Any]:
    return {"tokens": tokens(at), "at": at}


def step(at: int, end: str = "") -> dict[str, Any]:
    """Step `at` of an environment: what follows is observation at + 1."""
    return {
        "obs": obs(at), "thought": "é" * (at % 4), "reward": float(at % 5), "terminated": end == "terminated",
        "truncated": end == "truncated",
    }  # fmt: skip


def faults(batch: Any) -> list[str]:
    wrong: list[str] = []
    for i, at in enumerate(batch["obs/at"].tolist()):
        steps = int(batch["n_step"][i])
        if not np.array_equal(batch["obs/tokens"][i], tokens(at)) or batch["thought"][i] != "é" * (at % 4):
            wrong.append(f"step {at}: {batch['obs/tokens'][i]}, {batch['thought'][i]!r}")
        after = int(batch["next_obs/at"][i])
        if after != at + steps or not np.array_equal(batch["next_obs/tokens"][i], tokens(after)):
            wrong.append(f"step {at}: {steps} steps on {batch['next_obs/tokens'][i]} of {after}")
    return wrong


def table_in(store: Store, max_size: int = 300, name: str = "t", **options: Any) -> Table:
    return store.create_table(name, SCHEMA, max_size, **{"window": WINDOWS, "max_writers": 2, **options})


def write(table: Table, first: int, n: int, every: int = 10) -> None:
    """Append steps from `first` on, in episodes of `every`; the last is left as it is."""
    with scalar_writer(table) as writer:
        for at in range(first, first + n):
            over = at % every == every - 1
            writer.append(**step(at, "terminated" if over else ""))
            if over:
                writer.end(obs(at + 1))


def test_successors_come_with_their_lists() -> None:
    with fresh_store() as store:
        table = table_in(store)
        write(table, 0, 95)
        for name in WINDOWS:
            batch = table.sample(200, window=name)
            assert faults(batch) == []
            assert isinstance(batch["next_obs/tokens"], Ragged)
            assert set(batch["obs/at"].tolist()) >= {7, 9, 89}
            assert batch["n_step"].max() == (1 if name == "one" else 3)
            assert {"next_obs/tokens", "next_obs/tokens.offsets"} <= set(batch.torch())
            batch.to_arrow().validate(full=True)
        batch = table.sample(100, window="three")
        rewards = [
            sum((at + k) % 5 * 0.5**k for k in range(n))
            for at, n in zip(batch["obs/at"].tolist(), batch["n_step"].tolist(), strict=True)
        ]
        assert np.allclose(batch["reward"], rewards)
        assert faults(next(iter(table.loader(64, window="three")))) == []
        table.verify()


def test_old_steps_leave_and_windows_stay_whole() -> None:
    with fresh_store() as store:
        table = table_in(store, 60)
        for first in range(0, 1_000, 100):
            write(table, first, 100)
            for name in WINDOWS:
                batch = table.sample(64, window=name)
                assert faults(batch) == []
                assert batch["obs/at"].min() >= first + 100 - 60 - 10
            table.verify()
        assert len(table) <= 60


def test_whole_arrays_with_their_ends() -> None:
    with fresh_store() as store:
        table = table_in(store)
        for first in range(0, 120, 40):  # an episode goes on from one call to the next
            ats = range(first, first + 40)
            after = {"next_obs/tokens": [tokens(at + 1) for at in ats], "next_obs/at": [at + 1 for at in ats]}
            steps = [step(at, "truncated" if at % 16 == 15 else "") for at in ats]
            given = {"obs/tokens": [tokens(at) for at in ats], "obs/at": list(ats)}
            if first == 40:
                given["obs/tokens"] = Ragged.from_rows(given["obs/tokens"])  # type: ignore[assignment]
                after["next_obs/tokens"] = Ragged.from_rows(after["next_obs/tokens"])  # type: ignore[assignment]
            others = {name: [one[name] for one in steps] for name in ("thought", "reward", "terminated", "truncated")}
            assert table.extend({**given, **after, **others}) == 40
        batch = table.sample(4_000, window="three")
        assert faults(batch) == []
        assert set(batch["obs/at"].tolist()) == set(range(117))  # three more are to come of the last
        table.verify()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_steps_of_several_environments(mode: str) -> None:
    n, every = 5, 7
    with fresh_store() as store:
        table = table_in(store, 400)
        with vector_writer(table, n, autoreset=mode) as writer:
            ats = np.arange(n) * 1_000
            ended = np.zeros(n, bool)
            for _ in range(60):
                steps = [step(int(at)) for at in ats]
                over = (ats % every == every - 1) & ~ended
                given = {
                    "obs": {"tokens": [one["obs"]["tokens"] for one in steps], "at": ats},
                    "thought": [one["thought"] for one in steps], "reward": [one["reward"] for one in steps],
                    "terminated": over, "truncated": np.zeros(n, bool),
                }  # fmt: skip
                final = {"tokens": [tokens(int(at) + 1) for at in ats], "at": ats + 1}
                if mode == "same_step" and over.any():
                    writer.append(**given, final_obs=final)
                else:
                    writer.append(**given)
                    if mode == "disabled" and over.any():
                        writer.end(final, over)
                ats = ats + 1
                if mode != "next_step":
                    ats[over] += 3  # another episode begins elsewhere
                else:
                    ats[ended] += 3
                    ended = over
        assert faults(table.sample(300, window="three")) == []
        batch = table.sample(300)
        assert faults(batch) == []
        assert len(set((batch["obs/at"] // 1_000).tolist())) == n
        table.verify()


def test_a_step_of_several_environments_goes_in_as_a_whole_or_not_at_all() -> None:
    """Blocks are held by views: where a step finds no room for all of its rows, none of them is there."""
    with fresh_store() as store:
        table = table_in(store, 64, max_writers=1)
        with vector_writer(table, 6, autoreset="disabled", timeout=0.05) as writer:
            held: list[Any] = []
            counts: list[int] = []
            for at in range(400):
                ats = np.arange(6) * 1_000 + at
                given = {
                    "obs": {"tokens": [tokens(5) for _ in ats], "at": ats}, "thought": ["x"] * 6,
                    "reward": np.zeros(6, "f4"), "terminated": np.zeros(6, bool), "truncated": np.zeros(6, bool),
                }  # fmt: skip
                try:
                    writer.append(**given)
                except conduit.AppendTimeout:
                    break
                counts.append(table.info().appended)
                held += table.blocks()
            else:
                raise AssertionError("blocks that are held were used again")
            appended = table.info().appended
            assert appended == counts[-1] == 6 * len(counts)
            held.clear()
            writer.append(**given)
            assert table.info().appended == appended + 6
        table.verify()


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_files_and_back(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        table = table_in(store)
        write(table, 0, 95)
        table.export(tmp_path / "x", format)
        again = store.import_table("again", tmp_path / "x", format=format, window=WINDOWS)
        assert again.schema == SCHEMA
        batch = again.sample(300, window="three")
        assert faults(batch) == []
        rows = table.to_arrow().read_all()
        assert again.to_arrow().read_all().drop_columns("episode").equals(rows.drop_columns("episode"))


def test_checkpoints_keep_links(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = table_in(store)
        write(table, 0, 95)
        store.checkpoint(tmp_path)
        expected = [table.sample(16, window="three", stream=3)["obs/at"].tolist() for _ in range(3)]
    with restored(tmp_path) as again:
        table = again["t"]
        assert [table.sample(16, window="three", stream=3)["obs/at"].tolist() for _ in range(3)] == expected
        write(table, 100, 95)
        assert faults(table.sample(300, window="three")) == []


def test_offline_windows_have_lists(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = table_in(store)
        write(table, 0, 95)
        table.export(tmp_path / "x.parquet")
    for window in WINDOWS.values():
        for batch in conduit.offline.open(tmp_path / "x.parquet", window=window, buffer="1MiB").loader(16):
            assert faults(batch) == []
