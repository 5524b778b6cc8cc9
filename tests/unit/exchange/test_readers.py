"""What is exported is for others: DuckDB, Polars and pandas read it without knowing of Conduit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conduit import Table
from tests.exchange_support import SETTINGS, file_of, steps_table, windows_of_rows
from tests.store_support import fresh_store

duckdb: Any = pytest.importorskip("duckdb")
polars: Any = pytest.importorskip("polars")
pandas: Any = pytest.importorskip("pandas")


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Polars opens a descriptor at its first read, for good."""
    path = tmp_path_factory.mktemp("polars") / "x.parquet"
    polars.DataFrame({"x": [1]}).write_parquet(path)
    polars.read_parquet(path)


def exported(table: Table, path: Path, format: str) -> Path:
    target = path / file_of(format)
    table.export(target, "parquet" if " " in format else format)
    return target


def rows_of(arrays: dict[str, Any]) -> list[tuple[Any, ...]]:
    return sorted(zip(arrays["episode"].tolist(), arrays["step"].tolist(), arrays["reward"].tolist(), strict=True))


@pytest.mark.parametrize("format", ["parquet", "parquet folder"])
def test_duckdb(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        table = steps_table(store)
        arrays = table.to_numpy()
        path = exported(table, tmp_path, format)
        source = f"'{path}{'/*.parquet' if path.is_dir() else ''}'"
        kinds = dict(duckdb.sql(f"select column_name, column_type from (describe select * from {source})").fetchall())
        assert (kinds["terminated"], kinds["action"], kinds["reward"]) == ("BOOLEAN", "BIGINT", "FLOAT")
        assert (kinds["obs"], kinds["mask"]) == ("FLOAT[]", "BOOLEAN[]")
        found = duckdb.sql(f"select episode, step, reward from {source} order by all").fetchall()
        assert found == rows_of(arrays)
        observed = duckdb.sql(f"select obs from {source} order by episode, step").fetchnumpy()["obs"]
        order = np.lexsort((arrays["step"], arrays["episode"]))
        assert np.array_equal(np.stack([np.asarray(row) for row in observed]), arrays["obs"][order])
        ends = duckdb.sql(f"select count(*) from {source} where final_obs is not null").fetchall()
        assert ends == [(len(arrays["final_row"]),)]


def test_duckdb_asks_a_live_table() -> None:
    with fresh_store() as store:
        table = steps_table(store)
        rows = table.to_arrow()
        found = duckdb.sql("select count(*), sum(reward) from rows").fetchall()
        assert found == [(len(table), table.to_numpy()["reward"].sum())]
        del rows


@pytest.mark.parametrize("format", ["parquet", "parquet folder", "arrow", "arrow-stream"])
def test_polars(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        table = steps_table(store)
        path = exported(table, tmp_path, format)
        read = {"arrow": polars.read_ipc, "arrow-stream": polars.read_ipc_stream}.get(format, polars.read_parquet)
        frame = read(path)
        assert frame["terminated"].dtype == polars.Boolean
        assert rows_of({name: frame[name].to_numpy() for name in ("episode", "step", "reward")}) == rows_of(
            table.to_numpy()
        )
        assert frame["final_obs"].null_count() == len(table) - len(table.to_numpy()["final_row"])


@pytest.mark.parametrize("format", ["parquet", "parquet folder", "arrow"])
def test_pandas(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        table = steps_table(store)
        path = exported(table, tmp_path, format)
        frame = (pandas.read_feather if format == "arrow" else pandas.read_parquet)(path)
        kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
        assert {name: kind for name, kind in kinds.items() if name != "priority" and kind != "object"} == {
            "episode": "int64", "step": "int64", "action": "int64", "reward": "float32",
            "terminated": "bool", "truncated": "bool",
        }  # fmt: skip
        assert rows_of(frame) == rows_of(table.to_numpy())
        assert np.array_equal(np.stack(list(frame["obs"])), table.to_numpy()["obs"])


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_frames_come_in(tmp_path: Path, library: str) -> None:
    """What those libraries made of a table is imported from memory, as it is."""
    with fresh_store() as store:
        table = steps_table(store)
        path = exported(table, tmp_path, "parquet")
        query = f"select episode, step, action, reward from '{path}'"
        read: dict[str, Any] = {
            "pandas": lambda: duckdb.sql(query).df(),
            "polars": lambda: duckdb.sql(query).pl(),
            "duckdb": lambda: duckdb.sql(query),
        }
        again = store.import_table("again", read[library]())
        assert again.schema.names == ("episode", "step", "action", "reward")
        assert np.array_equal(again.to_numpy()["action"], table.to_numpy()["action"])


@pytest.mark.parametrize("library", ["polars", "duckdb"])
def test_what_they_wrote_anew_comes_back(tmp_path: Path, library: str) -> None:
    """A query's result, written by them as Parquet: their lists are rows of the schema that is given."""
    with fresh_store() as store:
        table = steps_table(store)
        path = exported(table, tmp_path, "parquet")
        if library == "polars":
            polars.read_parquet(path).sort("episode", "step").write_parquet(tmp_path / "y.parquet")
        else:
            duckdb.sql(f"copy (from '{path}' order by episode, step) to '{tmp_path / 'y.parquet'}'")
        again = store.import_table("again", tmp_path / "y.parquet", schema=table.schema, **SETTINGS)
        assert windows_of_rows(again) == windows_of_rows(table)
