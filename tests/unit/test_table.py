"""Table: what it says of itself, extend in its many forms, rows by key, clear, settings that change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from conduit import (
    ConfigError,
    EpisodeError,
    MissingColumn,
    SampleTimeout,
    StaleKey,
    UnknownColumn,
    limiters,
    windows,
)
from tests.entries import STEP, steps
from tests.store_support import (
    EPISODIC,
    column_of,
    episode,
    episodes,
    fresh_store,
    keys_of,
    plain_table,
    prioritized,
    scalar_writer,
    schema,
    unchanged,
    windows_of,
)

NESTED = schema(obs__camera=("u1", (2, 2)), obs__speed="f4", x="i8")


def test_what_a_table_says_of_itself() -> None:
    with fresh_store() as store:
        table = plain_table(store, 1_000, sampler=prioritized(0.5))
        assert (table.name, table.max_size, len(table)) == ("t", 1000, 0)
        assert table.batch_schema == table.schema == schema(x="i8")
        table.extend({"x": np.arange(620)})
        view = table.blocks()[0]
        assert repr(table) == "<Table 't' 62% of 1,000 rows, 1 blocks pinned>"
        assert table.describe().startswith("table 't': 1,000 rows of 8 bytes in ")
        del view


def test_columns_of_episodic_batches() -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(obs__a="f4", obs__b=("i2", (3,)), action="i8", reward="f8",
                                               terminated="?", truncated="?", x="u1"), 10)  # fmt: skip
        names = ["obs/a", "obs/b", "action", "reward", "terminated", "truncated", "x", "next_obs/a", "next_obs/b",
                 "discount", "n_step"]  # fmt: skip
        assert list(table.batch_schema.names) == names
        column = type(table.schema.columns[1])("next_obs/b", np.dtype("i2"), (3,))
        assert table.batch_schema.column("next_obs/b") == column
        assert str(table.batch_schema.column("discount").dtype) == "float32"
        assert str(table.batch_schema.column("n_step").dtype) == "int32"


# ---- extend


def nested(n: int = 3) -> dict[str, Any]:
    camera = np.arange(4 * n, dtype=np.uint8).reshape(n, 2, 2)
    return {"obs": {"camera": camera, "speed": np.arange(n, dtype=np.float32)}, "x": np.arange(n)}


@pytest.mark.parametrize("form", ["nested", "flat", "torch", "lists", "arrow table", "record batch"])
def test_extend_takes_columns_in_many_forms(form: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", NESTED, 8)
        given: Any = nested()
        flat = {"obs/camera": given["obs"]["camera"], "obs/speed": given["obs"]["speed"], "x": given["x"]}
        if form == "flat":
            given = flat
        elif form == "torch":
            given = {name: torch.from_numpy(value) for name, value in flat.items()}
        elif form == "lists":
            given = {name: value if name == "obs/camera" else value.tolist() for name, value in flat.items()}
        elif form in ("arrow table", "record batch"):
            columns = [pa.FixedShapeTensorArray.from_numpy_ndarray(flat["obs/camera"]), flat["obs/speed"], flat["x"]]
            kind = pa.table if form == "arrow table" else pa.record_batch
            given = kind(columns, names=list(flat))
        assert table.extend(given) == 3
        assert table.extend(given) == 3
        for name, value in flat.items():
            np.testing.assert_array_equal(column_of(table, name), np.concatenate([value, value]))


def test_extend_with_nothing() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        with unchanged(table):
            assert table.extend({"x": np.empty(0, np.int64)}) == 0


def test_extend_of_arrow_refuses_names_as_others_do() -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(x="i8", y="i8"), 8)
        with unchanged(table), pytest.raises(MissingColumn, match=r"column '?y"):
            table.extend(pa.table({"x": [1]}))
        with unchanged(table), pytest.raises(UnknownColumn, match=r"column '?z"):
            table.extend(pa.table({"x": [1], "y": [1], "z": [1]}))


def test_extend_goes_on_with_the_episode_of_the_call_before() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=2, gamma=1.0)
        obs = np.arange(4)
        columns = {
            "obs": obs, "action": obs, "reward": np.ones(4, np.float32),
            "terminated": np.zeros(4, bool), "truncated": np.zeros(4, bool),
        }  # fmt: skip
        table.extend(columns)
        assert set(windows_of(table)) == {0, 1}
        table.extend({**columns, "obs": obs + 4, "terminated": obs == 3, "next_obs": obs + 5})
        found = windows_of(table)
        assert set(found) == set(range(8))
        assert found[3]["next_obs"] == 5
        assert (found[7]["next_obs"], found[7]["n_step"], found[7]["terminated"]) == (8, 1, True)


def test_extend_needs_next_obs_only_where_an_episode_ends() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        with unchanged(table), pytest.raises(EpisodeError, match="row 2 of 3 ends an episode and next_obs is missing"):
            table.extend(steps((3,), truncated=np.arange(3) == 2))
        assert table.extend(steps((3,))) == 3
        assert table.extend(steps((3,), next_obs=np.zeros((3, 2), np.float32), truncated=np.arange(3) == 2)) == 3


def test_priorities_of_extended_steps_belong_to_the_steps() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, sampler=prioritized())
        obs = np.arange(4)
        table.extend(
            {"obs": obs, "action": obs, "reward": np.ones(4, np.float32), "terminated": obs % 2 == 1,
             "truncated": np.zeros(4, bool), "next_obs": obs + 10},
            priorities=[1, 2, 3, 4],
        )  # fmt: skip
        batch = table.sample(64)
        assert (table.priorities(batch.keys) == batch["obs"] + 1).all()
        assert table.info().total_priority == 10.0


# ---- rows, clear, settings


def test_rows_come_in_the_order_of_their_keys() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, sampler=prioritized())
        table.extend({"x": np.arange(50)})
        keys = keys_of(table)[[7, 3, 7, 49, 0]]
        batch = table.rows(keys)
        assert batch["x"].tolist() == [7, 3, 7, 49, 0]
        np.testing.assert_array_equal(batch.keys, keys)
        assert np.isnan(batch.probabilities).all()
        assert (batch.weights == 1).all()
        assert table.rows(keys.tolist())["x"].tolist() == [7, 3, 7, 49, 0]
        assert len(table.rows([])) == 0


def test_rows_names_the_first_key_that_is_gone() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10)
        table.extend({"x": np.arange(10)})
        keys = keys_of(table)
        table.extend({"x": np.arange(2)})
        with pytest.raises(StaleKey, match=f"key {keys[1]} at position 2 of 4"):
            table.rows(keys[[5, 6, 1, 0]])
        assert table.rows(keys[2:])["x"].tolist() == list(range(2, 10))


def test_clear_drops_rows_and_cuts_open_episodes() -> None:
    with fresh_store() as store:
        table = episodes(store, 100, n=2)
        with scalar_writer(table) as writer:
            episode(writer, range(5), [1] * 5, "terminated", 5)
            writer.append(obs=10, action=0, reward=0.0, terminated=False, truncated=False)
            old = keys_of(table)
            table.clear()
            assert (len(table), table.info().ready_rows, table.blocks()) == (0, 0, [])
            for i in range(20, 24):
                writer.append(obs=i, action=0, reward=0.0, terminated=False, truncated=False)
            assert set(windows_of(table)) == {20, 21}
            with pytest.raises(StaleKey):
                table.rows(old[:1])
        table.verify()


def test_configure_changes_only_what_is_named_and_for_everybody() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized(1.0, 1.0))
        table.extend({"x": np.arange(2)}, priorities=[1, 4])
        table.reconfigure(alpha=0.5)
        assert table.info().total_priority == 3.0
        weights = {int(x): float(w) for x, w in zip(*(lambda b: (b["x"], b.weights))(table.sample(64)), strict=True)}
        assert weights == pytest.approx({0: 1.0, 1: 0.5})
        table.reconfigure(beta=0.0)
        assert (table.sample(64).weights == 1).all()
        table.reconfigure(eps=5.0)
        assert table.info().total_priority == pytest.approx(6**0.5 + 3)
        table.reconfigure(min_size=3)
        with pytest.raises(SampleTimeout, match=r"MinSize\(3\) lacks 1"):
            table.sample(1, timeout=0)
        table.verify()


@pytest.mark.parametrize(
    "change",
    [{"alpha": -1}, {"alpha": np.nan}, {"alpha": 5}, {"beta": 1.5}, {"beta": "x"}, {"eps": -1}, {"eps": np.inf},
     {"min_size": 0}, {"min_size": 11}, {"min_size": 1.5}],
)  # fmt: skip
def test_settings_that_are_refused_later(change: dict[str, Any]) -> None:
    with fresh_store() as store:
        table = plain_table(store, 10, sampler=prioritized())
        table.extend({"x": np.arange(2)}, priorities=[1, 4])
        with unchanged(table), pytest.raises(ConfigError, match=next(iter(change))):
            table.reconfigure(**change)
        assert (table.sample(4, timeout=0).weights > 0).all()


def test_min_size_counts_steps_and_lets_go_when_there_are_enough() -> None:
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 10, window=windows.Transition(), limiter=limiters.MinSize(4))
        with scalar_writer(table) as writer:
            episode(writer, range(3), [1] * 3, "terminated", 3)
            with pytest.raises(SampleTimeout, match=r"MinSize\(4\) lacks 1 rows, 3 are there"):
                table.sample(1, timeout=0)
            writer.append(obs=9, action=0, reward=0.0, terminated=False, truncated=False)
            assert set(table.sample(32)["obs"]) <= {0, 1, 2}
