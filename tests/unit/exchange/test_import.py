"""Files of others: what is understood, and what is refused, with the row and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conduit
from conduit import Column, Schema, Store, Table, limiters, samplers, windows
from tests.exchange_support import STEPS, steps_table, windows_of_rows
from tests.store_support import EPISODIC, column_of, fresh_store, windows_of

D4RL = {
    "observations": "obs",
    "actions": "action",
    "rewards": "reward",
    "terminals": "terminated",
    "timeouts": "truncated",
    "next_observations": "next_obs",
}


def foreign(n: int = 10, ends: tuple[int, ...] = (3, 9), **others: Any) -> dict[str, Any]:
    """Steps of one environment, with the next observation of each, as D4RL has them."""
    obs = np.arange(n) * 10
    return {
        "obs": obs, "action": np.arange(n), "reward": np.arange(n, dtype="f4"), "next_obs": obs + 1,
        "terminated": np.isin(np.arange(n), ends), "truncated": np.zeros(n, bool), **others,
    }  # fmt: skip


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path / "x.parquet")
    return path / "x.parquet"


def transitions(table: Table) -> dict[int, int]:
    return {obs: row["next_obs"] for obs, row in windows_of(table).items()}


FOLLOWING = {0: 10, 10: 20, 20: 30, 30: 31, 40: 50, 50: 60, 60: 70, 70: 80, 80: 90, 90: 91}


def test_next_obs_at_the_ends(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.import_table("t", parquet(tmp_path, foreign()), schema=EPISODIC, window=windows.Transition())
        assert transitions(table) == FOLLOWING
        table.verify()


def test_names_of_others(tmp_path: Path) -> None:
    mine = {new: old for old, new in D4RL.items()}
    path = parquet(tmp_path, {mine[name]: values for name, values in foreign().items()})
    with fresh_store() as store:
        table = store.import_table("t", path, schema=EPISODIC, rename=D4RL, window=windows.Transition())
        assert transitions(table) == FOLLOWING
        with pytest.raises(conduit.MissingColumn, match=r"no column obs.*it has observations.*rename="):
            store.import_table("u", path, schema=EPISODIC)
        with pytest.raises(conduit.MissingColumn, match="rename names nothing"):
            store.import_table("u", path, rename={"nothing": "obs"})
        with pytest.raises(conduit.SchemaError, match="action more than once"):
            store.import_table("u", path, rename={"rewards": "action", "actions": "action"})
        assert store.tables() == ["t"]


def test_without_being_told_next_obs_is_a_column(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.import_table("t", parquet(tmp_path, foreign()))
        assert table.spec.window == windows.Row()
        assert table.schema.names == ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        assert column_of(table, "next_obs").tolist() == foreign()["next_obs"].tolist()


@pytest.mark.parametrize("missing", [("next_obs",)])
def test_an_end_without_its_observation(tmp_path: Path, missing: tuple[str, ...]) -> None:
    columns = {name: values for name, values in foreign().items() if name not in missing}
    with fresh_store() as store:
        with pytest.raises(conduit.EpisodeError, match=r"row 3 of .*x\.parquet ends an episode.*final_obs.*next_obs"):
            store.import_table("t", parquet(tmp_path, columns))
        assert len(store["t"]) == 0


def test_a_null(tmp_path: Path) -> None:
    action = [*range(7), None, 8, 9]
    with fresh_store() as store:
        path = parquet(tmp_path, foreign(action=pa.array(action, pa.int64())))
        with pytest.raises(conduit.DtypeMismatch, match=r"row 7 of .*x\.parquet: column 'action' is null"):
            store.import_table("t", path, schema=EPISODIC)


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"action": np.arange(10, dtype="f8")}, conduit.DtypeMismatch, "action.*int64.*float64"),
        ({"action": np.arange(10).astype(str)}, conduit.DtypeMismatch, "action"),
        ({"obs": list(np.zeros((10, 2), "i8"))}, conduit.ConduitError, "obs"),
        ({"priority": [1.0] * 4 + [-1.0] * 6}, conduit.PriorityError, "row 4 of .*-1.0.*not negative"),
        ({"priority": [float("nan")] + [1.0] * 9}, conduit.PriorityError, "row 0 of .*nan"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, columns: dict[str, Any], error: type[Exception], says: str) -> None:
    with fresh_store() as store:
        path = parquet(tmp_path, foreign(**columns))
        with pytest.raises(error, match=says):
            store.import_table("t", path, schema=EPISODIC, sampler=samplers.Prioritized())


def test_steps_in_another_order(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = steps_table(store)
        table.export(tmp_path / "x.parquet")
        rows = pq.read_table(tmp_path / "x.parquet")
        order = np.lexsort((rows["step"].to_numpy(), rows["episode"].to_numpy()))
        pq.write_table(rows.take(order), tmp_path / "sorted.parquet")
        again = store.import_table("again", tmp_path / "sorted.parquet", window=windows.NStep(3, 0.9))
        assert windows_of_rows(again, priorities=False) == windows_of_rows(table, priorities=False)
        pq.write_table(rows.take(order[::-1]), tmp_path / "backwards.parquet")
        with pytest.raises(
            conduit.EpisodeError, match=r"step \d+ of episode \d+ comes where .* Sort the rows by episode, step"
        ):
            store.import_table("backwards", tmp_path / "backwards.parquet")


def test_more_open_episodes_than_chains() -> None:
    """Episodes that just stop, one after the other: each keeps its steps, but for the last, which has no successor."""
    n, length = 3_000, 3
    steps = n * length
    columns = {
        "episode": np.repeat(np.arange(n), length), "step": np.tile(np.arange(length), n), "obs": np.arange(steps),
        "action": np.arange(steps), "reward": np.zeros(steps, "f4"), "terminated": np.zeros(steps, bool),
        "truncated": np.zeros(steps, bool),
    }  # fmt: skip
    with fresh_store() as store:
        table = store.import_table("t", columns, window=windows.Transition())
        table.verify()
        assert len(table) == steps
        assert table.info().ready_rows == n * (length - 1)
        batch = table.sample(1_000)
        assert (batch["next_obs"] == batch["obs"] + 1).all()


def test_episodes_side_by_side_beyond_the_chains() -> None:
    """The one that rested longest is cut, and goes on as another one: no link is ever wrong."""
    n, length = 1_500, 3
    episode = np.tile(np.arange(n), length)
    step = np.repeat(np.arange(length), n)
    columns = {
        "episode": episode, "step": step, "obs": episode * 10 + step, "action": step,
        "reward": np.zeros(n * length, "f4"), "terminated": np.zeros(n * length, bool),
        "truncated": np.zeros(n * length, bool),
    }  # fmt: skip
    with fresh_store() as store:
        table = store.import_table("t", columns, window=windows.Transition())
        table.verify()
        assert len(table) == n * length
        if table.info().ready_rows:
            batch = table.sample(1_000)
            assert (batch["next_obs"] == batch["obs"] + 1).all()


def test_into_a_table_that_is_there(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = steps_table(store)
        before = len(table)
        table.export(tmp_path / "x.arrow")
        assert table.import_from(tmp_path / "x.arrow") == before
        assert len(table) == 2 * before
        table.verify()
        other = store.create_table("u", Schema((Column("action", np.dtype("i8")),)), 5_000)
        assert other.import_from(tmp_path / "x.arrow") == before  # the columns that it has
        assert column_of(other, "action").tolist() == table.to_numpy()["action"][:before].tolist()


def test_a_smaller_table_keeps_the_newest() -> None:
    with fresh_store() as store:
        table = store.import_table("t", {"x": np.arange(1_000)}, 100)
        assert sorted(column_of(table).tolist()) == list(range(900, 1_000))


def test_mappings() -> None:
    with fresh_store() as store:
        table = steps_table(store)
        again = store.import_table(
            "again", table.to_numpy(), window=windows.NStep(3, 0.9), sampler=samplers.Prioritized(1.0)
        )
        assert windows_of_rows(again) == windows_of_rows(table)
        nested = store.import_table("nested", {"a": {"b": np.zeros((3, 2)), "c": np.arange(3)}})
        assert nested.schema.names == ("a/b", "a/c")
        with pytest.raises(conduit.ShapeMismatch, match="different lengths"):
            store.import_table("x", {"a": np.zeros(3), "b": np.zeros(4)})
        with pytest.raises(conduit.ExchangeError, match="final_row"):
            store.import_table(
                "x", {**table.to_numpy(), "final_row": np.full(len(table.to_numpy()["final_row"]), 10**6)}
            )
        with pytest.raises(conduit.SchemaError, match="cannot import a int"):
            store.import_table("x", 7)


def test_arrow_in_memory() -> None:
    with fresh_store() as store:
        table = steps_table(store)
        settings: dict[str, Any] = {"window": windows.NStep(3, 0.9), "sampler": samplers.Prioritized(1.0)}
        again = store.import_table("again", table.to_arrow(), **settings)
        assert windows_of_rows(again) == windows_of_rows(table)
        again = store.import_table("bounded", table.to_arrow(), 4_000, mean_episode_length=3, **settings)
        assert windows_of_rows(again) == windows_of_rows(table)


def test_paths(tmp_path: Path) -> None:
    with fresh_store() as store:
        with pytest.raises(conduit.SourceNotFound, match="nothing was imported"):
            store.import_table("t", tmp_path / "not there.parquet")
        (tmp_path / "x.csv").write_text("a\n1\n")
        with pytest.raises(conduit.ConfigError, match=r"does not tell its format.*\.parquet"):
            store.import_table("t", tmp_path / "x.csv")
        with pytest.raises(conduit.ConfigError, match="'csv' is none of parquet, arrow"):
            store.import_table("t", tmp_path / "x.csv", format="csv")
        with pytest.raises(conduit.ConfigError, match="in memory"):
            store.import_table("t", {"x": np.arange(3)}, format="numpy")
        (tmp_path / "empty").mkdir()
        with pytest.raises(conduit.ExchangeError, match=r"no \.parquet file"):
            store.import_table("t", tmp_path / "empty", format="parquet")


def test_files_of_a_folder_must_agree(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "b.parquet")
    with (
        fresh_store() as store,
        pytest.raises(conduit.ExchangeError, match=r"b\.parquet has other columns than .*a\.parquet"),
    ):
        store.import_table("t", tmp_path)


def test_a_limiter_holds_up_an_import(tmp_path: Path) -> None:
    with fresh_store() as store:
        path = parquet(tmp_path, {"x": np.arange(100)})
        with pytest.raises(conduit.AppendTimeout, match="SampleToInsertRatio"):
            store.import_table("t", path, limiter=limiters.SampleToInsertRatio(1, 10, error_buffer=20), timeout=0.1)


def test_queues_and_readers(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"x": np.arange(100)})
    with fresh_store() as store:
        table = store.import_table("t", path)
        store.create_queue("q", table.schema, 10)
        with Store.attach(store.name, read_only=True) as reader:
            assert reader["t"].export(tmp_path / "y.parquet") == 100
            with pytest.raises(conduit.ReadOnlyStore):
                reader["t"].import_from(path)
            with pytest.raises(conduit.ReadOnlyStore):
                reader.import_table("u", path)


def test_steps_are_no_rows_of_another_kind(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEPS, 10)
        with pytest.raises(conduit.MissingColumn, match="no column obs"):
            table.import_from(parquet(tmp_path, {"x": np.arange(3)}))
