"""Training from files and checkpoints whose rows vary in length: the rows and windows that are in the table."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import conduit.offline
from conduit import CheckpointDamaged, Column, Schema, windows
from tests import varying
from tests.checkpoint_support import restored
from tests.store_support import fresh_store
from tests.unit.exchange.test_varying_episodes import EVERY, WINDOW, filled, of_row, windows_in


def windows_of(path: Path, window: Any = WINDOW, **options: Any) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    with conduit.offline.open(path, window=window, **options).loader(7) as loader:
        for batch in loader:
            for row in range(len(batch)):
                place = int(batch["obs/place"][row])
                assert place not in found
                found[place] = of_row(batch, row)
    return found


@pytest.mark.parametrize("window", [windows.Transition(gamma=0.9), WINDOW, windows.NStep(40)])
def test_windows_of_a_checkpoint(tmp_path: Path, window: Any) -> None:
    """To the bit, across blocks too; but for the last rows of writers that had not ended their episodes."""
    with fresh_store("64MiB") as store:
        filled(store, EVERY)
        store.checkpoint(tmp_path)
    with restored(tmp_path) as again:
        expected = windows_in(again["t"])
    if window is not WINDOW:
        with fresh_store("64MiB") as store:
            table = filled(store, EVERY)
            table.export(tmp_path / "x.arrow")
            expected = windows_in(store.import_table("u", tmp_path / "x.arrow", schema=EVERY, window=window))
    assert windows_of(tmp_path, window) == expected
    assert len(expected) > 140


def test_windows_of_files(tmp_path: Path) -> None:
    """Nobody has to say how long rows are: where files do not, it is measured."""
    with fresh_store("64MiB") as store:
        table = filled(store, EVERY)
        table.export(tmp_path / "x.parquet")
        expected = windows_in(table)
    assert windows_of(tmp_path / "x.parquet") == expected
    bare = pq.read_table(tmp_path / "x.parquet").replace_schema_metadata(None)
    for number in range(3):  # a folder of them
        (tmp_path / "bare").mkdir(exist_ok=True)
        pq.write_table(bare, tmp_path / "bare" / f"{number}.parquet", row_group_size=len(bare))
    data = conduit.offline.open(tmp_path / "bare", window=WINDOW)
    assert len(data) == 3 * len(bare)
    lengths = [len(row) for row in bare["obs/tokens"].to_pylist()]
    assert data.schema.column("obs/tokens").mean_length == pytest.approx(max(1.0, float(np.mean(lengths))))


def rows_of(path: Path, **options: Any) -> list[int]:
    found: list[int] = []
    with conduit.offline.open(path, **options).loader(16) as loader:
        for batch in loader:
            assert varying.faults(batch) == []
            found += batch["serial"].tolist()
    return sorted(found)


def test_rows_of_a_table_that_has_wrapped(tmp_path: Path) -> None:
    """Also of one that had room for fewer rows than have been written, and rows longer than a block."""
    rng = np.random.default_rng(2)
    with fresh_store("64MiB") as store:
        table = store.create_table("t", varying.SCHEMA, 200, max_writers=1)
        for start in range(0, 600, 50):
            lengths = rng.integers(0, 40, 50)
            lengths[rng.random(50) < 0.02] = 3_000
            table.extend(varying.columns(range(start, start + 50), lengths))
        store.checkpoint(tmp_path)
    with restored(tmp_path) as again:
        left = sorted(itertools.chain(*(block.to_arrow()["serial"].to_pylist() for block in again["t"].blocks())))
    assert rows_of(tmp_path) == left
    assert 100 < len(left) < 600


def test_damaged_offsets_are_named(tmp_path: Path) -> None:
    only = Schema((Column("x", "i8", (None,), mean_length=2),))
    with fresh_store() as store:
        store.create_table("t", only, 5_000, max_writers=1).extend({"x": [np.arange(n % 5) for n in range(50)]})
        store.checkpoint(tmp_path)
    data = conduit.offline.open(tmp_path)
    (part,) = tmp_path.glob("t-*-0000.arrow")
    content = part.read_bytes()
    offsets = np.cumsum([0, *(n % 5 for n in range(50))])
    at = content.index(offsets.tobytes())
    for row, bad in ((7, -1), (50, 1 << 40), (9, 2)):
        wrong = offsets.copy()
        wrong[row] = bad
        part.write_bytes(content[:at] + wrong.tobytes() + content[at + wrong.nbytes :])
        with data.loader(10) as loader, pytest.raises(CheckpointDamaged, match=r"column 'x'"):
            next(loader)


def test_an_empty_table(tmp_path: Path) -> None:
    with fresh_store() as store:
        store.create_table("t", varying.SCHEMA, 10)
        store.checkpoint(tmp_path)
    assert rows_of(tmp_path) == []
