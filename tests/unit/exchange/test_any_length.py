"""Export and import of rows that vary in length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conduit import Column, ConfigError, DtypeMismatch, Schema, Table, samplers
from tests.store_support import fresh_store
from tests.varying import SCHEMA, columns, faults

MORE = Schema((*SCHEMA.columns, Column("flags", "bool", (None, 2), mean_length=2)))


def rows(n: int) -> dict[str, Any]:
    lengths = [0 if i % 7 == 0 else 200 if i % 11 == 5 else i % 30 for i in range(n)]
    flags = [np.arange(2 * (i % 3)).reshape(-1, 2) % 2 == 1 for i in range(n)]
    return {**columns(range(n), lengths), "flags": flags}


def contents(table: Table) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for view in table.blocks():
        batch = table.rows(view.keys)
        assert faults(batch) == []
        for serial, flags in zip(batch["serial"], batch["flags"], strict=True):
            assert flags.tolist() == (np.arange(2 * (serial % 3)).reshape(-1, 2) % 2 == 1).tolist()
        found += zip(batch["serial"].tolist(), batch["tokens"].lengths.tolist(), strict=True)
    return found


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_there_and_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    with fresh_store() as store:
        table = store.create_table("t", MORE, 200, sampler=samplers.Prioritized())
        table.extend(rows(150), priorities=np.arange(150.0))
        before = contents(table)
        assert table.export(path) == len(before)
        again = store.import_table("again", path, 200)
        assert again.schema == MORE
        assert again.schema.column("tokens").mean_length == 20
        assert contents(again) == before
        third = store.create_table("third", MORE, 200)
        assert third.import_from(path) == len(before)
        assert contents(third) == before
        if suffix == ".parquet":
            assert pq.read_table(path).column("text").type == pa.large_string()


def test_arrow_data_of_others(tmp_path: Path) -> None:
    given = pa.table({"tokens": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())), "text": ["a", "", "ccc"]})
    path = tmp_path / "others.parquet"
    pq.write_table(given, path)
    of = Schema((Column("tokens", "int32", (None,), mean_length=2), Column("text", "string", mean_length=2)))
    with fresh_store() as store:
        for number, source in enumerate((given, path)):
            with pytest.raises(ConfigError, match="mean_length"):
                store.import_table(f"bare{number}", source, 10)
            table = store.import_table(f"t{number}", source, 10, schema=of)
            batch = table.rows(table.blocks()[0].keys)
            assert [row.tolist() for row in batch["tokens"]] == [[1, 2], [], [3]]
            assert list(batch["text"]) == ["a", "", "ccc"]
        lists = pa.array([[1], None], pa.list_(pa.int32()))
        with pytest.raises(DtypeMismatch, match="row 1 "):
            store["t0"].import_from(pa.table({"tokens": lists, "text": ["a", "b"]}))


def test_what_holds_no_such_rows_says_so(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 10)
        for refused in (lambda: table.export(tmp_path / "x.npz"), table.to_numpy, table.to_tensordict):
            with pytest.raises(ConfigError, match="vary in length"):
                refused()
        assert len(table.to_arrow().read_all()) == 0
