"""Offline data sets: every row once an epoch, windows as a table has them, a shuffle of known quality, clean ends."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conduit
import conduit.offline
from conduit import Column, Schema, windows
from conduit.exchange import parquet, pieces
from conduit.offline import files, shuffle
from tests.exchange_support import NESTED, STEPS, steps_table
from tests.store_support import fresh_store, keys_of

X = Schema((Column("x", np.dtype("i8")), Column("group", np.dtype("i8"))))


def numbered(folder: Path, rows: int, group: int, parts: int = 2, arrow: bool = False) -> Path:
    """x counts the rows, `group` their row groups."""
    folder.mkdir()
    for number, x in enumerate(np.array_split(np.arange(rows), parts)):
        if arrow:
            table = pa.table({"x": x, "group": x // group})
            with pa.ipc.new_file(str(folder / f"{number}.arrow"), table.schema) as writer:
                writer.write_table(table, group)
            continue
        pq.write_table(pa.table({"x": x, "group": x // group}), folder / f"{number}.parquet", row_group_size=group)
    return folder


def drawn(data: conduit.offline.Dataset, size: int, **options: Any) -> list[list[int]]:
    with data.loader(size, **options) as loader:
        return [batch["x"].tolist() for batch in loader]


@pytest.mark.parametrize("arrow", [False, True])
def test_every_row_once_an_epoch(tmp_path: Path, arrow: bool) -> None:
    data = conduit.offline.open(numbered(tmp_path / "a", 1_000, 90, arrow=arrow), buffer=64 * 16)
    assert (len(data), data.buffer_rows) == (1_000, 64)
    batches = drawn(data, 32, epochs=3)
    assert [len(batch) for batch in batches] == ([32] * 31 + [8]) * 3
    epochs = [list(itertools.chain(*batches[i : i + 32])) for i in (0, 32, 64)]
    assert all(sorted(epoch) == list(range(1_000)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [len(batch) for batch in drawn(data, 32, drop_last=True)] == [32] * 31


def test_batches_depend_on_the_seed_alone(tmp_path: Path) -> None:
    folder = numbered(tmp_path / "a", 1_000, 50)
    batches = drawn(conduit.offline.open(folder, buffer=160 * 16, seed=3), 32, epochs=2)
    assert drawn(conduit.offline.open(folder, buffer=160 * 16, seed=3, threads=7), 32, epochs=2, prefetch=1) == batches
    assert drawn(conduit.offline.open(folder, buffer=160 * 16, seed=3), 32, first_epoch=1) == batches[32:]
    assert drawn(conduit.offline.open(folder, buffer=160 * 16, seed=4), 32, epochs=2) != batches
    again = pickle.loads(pickle.dumps(conduit.offline.open(folder, buffer=160 * 16, seed=3)))
    assert drawn(again, 32, epochs=2) == batches


def test_the_quality_of_the_shuffle(tmp_path: Path) -> None:
    """What conduit.offline.shuffle promises: random order, spread over the buffer, mixed G / 2B in a batch."""
    rows, group, buffer, size = 200_000, 1_000, 20_000, 100
    data = conduit.offline.open(numbered(tmp_path / "a", rows, group), buffer=buffer * 16)
    with data.loader(size) as loader:
        batches = [batch["group"].copy() for batch in loader]
    groups = np.concatenate(batches)
    place = np.arange(rows)
    # While the buffer is full, a row waits for a geometric time of mean B.
    starts = np.array([place[groups == g].mean() for g in range(rows // group)])
    spread = np.array([place[groups == g].std() for g in range(rows // group)])
    early = starts < rows - 4 * buffer
    assert 0.85 * buffer < spread[early].mean() < 1.1 * buffer
    # The order of the groups is random: no trend over the epoch, five sigmas of a permutation's rank correlation.
    assert abs(np.corrcoef(starts, np.arange(len(starts)))[0, 1]) < 5 / np.sqrt(len(starts))
    # Two rows of a batch are of one group with probability about G / 2B; in a full shuffle it were G / rows.
    middle = batches[len(batches) // 4 : len(batches) // 2]
    same = np.mean([(np.bincount(batch) * (np.bincount(batch) - 1)).sum() / (size * (size - 1)) for batch in middle])
    assert 0.75 < same / (group / (2 * buffer)) < 1.3


def test_a_buffer_of_everything_is_a_permutation(tmp_path: Path) -> None:
    """Chi-square of the place of each row over many epochs, at seven sigmas."""
    rows, epochs = 20, 1_500
    data = conduit.offline.open(numbered(tmp_path / "a", rows, 7))
    assert data.buffer_rows == rows
    counts = np.zeros((rows, rows))
    with data.loader(7, epochs=epochs) as loader:
        x = np.concatenate([batch["x"] for batch in loader]).reshape(epochs, rows)
    for place in range(rows):
        counts[place] = np.bincount(x[:, place], minlength=rows)
    chi = ((counts - epochs / rows) ** 2 / (epochs / rows)).sum()
    free = (rows - 1) ** 2
    assert abs(chi - free) < 7 * np.sqrt(2 * free)


def test_the_pool_takes_each_row_once() -> None:
    pool = shuffle.Pool(X, 50)
    random = np.random.default_rng(0)
    seen: list[int] = []
    added = 0
    for _ in range(300):
        n = int(random.integers(0, 30))
        x = np.arange(added, added + n)
        added += pool.put({"x": x, "group": x}, 0) if n else 0
        taken = pool.take(int(random.integers(0, pool.size + 1)), random)
        assert (taken["x"] == taken["group"]).all()
        seen += taken["x"].tolist()
    seen += pool.take(pool.size, random)["x"].tolist()
    assert sorted(seen) == list(range(added))


def rows_by_bytes(columns: dict[str, Any], names: tuple[str, ...]) -> list[tuple[bytes, ...]]:
    n = len(next(iter(columns.values())))
    return sorted(tuple(columns[name][i].tobytes() for name in names) for i in range(n))


@pytest.mark.parametrize("window", [windows.Transition(0.9), windows.NStep(1, 0.9), windows.NStep(3, 0.9)], ids=str)
@pytest.mark.parametrize(("schema", "suffix"), [(STEPS, ".parquet"), (NESTED, ".parquet"), (STEPS, ".arrow")])
def test_windows_are_those_of_a_table(tmp_path: Path, window: Any, schema: Schema, suffix: str) -> None:
    with fresh_store() as store:
        table = steps_table(store, schema=schema, window=window)
        table.export(tmp_path / f"x{suffix}")
        data = conduit.offline.open(tmp_path / f"x{suffix}", window=window)
        assert data.batch_schema == table.batch_schema
        ready = []
        for key in keys_of(table):
            try:
                ready.append(table.rows(np.array([key])))
            except conduit.StaleKey:
                continue
        expected = {name: np.concatenate([batch[name] for batch in ready]) for name in table.batch_schema.names}
        with data.loader(64) as loader:
            batches = list(loader)
        found = {name: np.concatenate([batch[name] for batch in batches]) for name in data.batch_schema.names}
        assert all(batches[0][column.name].dtype == column.dtype for column in data.batch_schema)
        assert rows_by_bytes(found, data.batch_schema.names) == rows_by_bytes(expected, data.batch_schema.names)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "parts"])
def test_no_step_is_lost_between_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The successor of a group's last step is found in the next group, also in the next file of the same export."""
    monkeypatch.setattr(pieces, "_ROWS", 16)
    monkeypatch.setattr(parquet, "_FILE_BYTES", 40 * STEPS.row_bytes)
    with fresh_store() as store:
        table = steps_table(store, window=windows.Transition())
        path = tmp_path / name
        table.export(path, "parquet" if name == "parts" else None)
        assert len(list(path.iterdir()) if name == "parts" else [path]) == (3 if name == "parts" else 1)
        data = conduit.offline.open(path)
        with data.loader(1_000) as loader:
            batch = next(loader)
        assert len(batch) == table.info().ready_rows
        drawn = table.rows(np.array([key for key in keys_of(table) if _ready(table, key)]))
        names = ("obs", "next_obs", "action", "discount")
        assert rows_by_bytes(dict(batch.items()), names) == rows_by_bytes(dict(drawn.items()), names)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_what_is_kept_between_pieces_changes_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rows that the piece before needs are kept as far as there is room; whether and when says nothing."""
    monkeypatch.setattr(pieces, "_ROWS", 16)
    with fresh_store() as store:
        steps_table(store, window=windows.Transition()).export(tmp_path / name)
    found = []
    for room, threads in ((1 << 20, 1), (1 << 20, 4), (100, 4), (0, 1)):
        monkeypatch.setattr(files, "_KEPT", room)
        data = conduit.offline.open(tmp_path / name, buffer="4KiB", threads=threads)
        with data.loader(8, epochs=3) as loader:
            found.append([[array.tobytes() for _, array in batch.items()] for batch in loader])
    assert found[1:] == found[:1] * 3


def _ready(table: conduit.Table, key: Any) -> bool:
    try:
        table.rows(np.array([key]))
    except conduit.StaleKey:
        return False
    return True


def test_files_of_different_exports_are_not_joined(tmp_path: Path) -> None:
    """Both number their episodes from 0, and the first stops where the second could seem to go on."""
    with fresh_store() as store:
        for number in range(2):
            table = store.create_table(f"t{number}", STEPS, 100)
            rest = {"reward": 0.0, "terminated": False, "truncated": False, "mask": np.zeros((2, 2), bool)}
            with table.writer() as writer:
                for i in range(3 + 2 * number):
                    writer.append(obs=np.full(3, 100 * number + i, "f4"), action=i, **rest)
            table.export(tmp_path / f"{number}.parquet")
        with conduit.offline.open(tmp_path).loader(100) as loader:
            batch = next(loader)
        assert sorted(zip(batch["obs"][:, 0].tolist(), batch["next_obs"][:, 0].tolist(), strict=True)) == [
            (0, 1), (1, 2), (100, 101), (101, 102), (102, 103), (103, 104),
        ]  # fmt: skip
        joined = store.import_table("joined", tmp_path)
        assert joined.info().ready_rows == 6
        joined.verify()


def test_rows_of_others(tmp_path: Path) -> None:
    """One environment without episode numbers, the next observation in every row."""
    n = 50
    ended = np.arange(n) % 7 == 6
    columns = {
        "observations": list(np.arange(2.0 * n).reshape(n, 2)), "actions": np.arange(n), "rewards": np.ones(n),
        "terminals": ended, "timeouts": np.zeros(n, bool), "next_observations": list(-np.arange(2.0 * n).reshape(n, 2)),
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=10)
    rename = {
        "observations": "obs", "actions": "action", "rewards": "reward", "terminals": "terminated",
        "timeouts": "truncated", "next_observations": "next_obs",
    }  # fmt: skip
    schema = Schema((
        Column("obs", np.dtype("f8"), (2,)), Column("action", np.dtype("i8")), Column("reward", np.dtype("f8")),
        Column("terminated", np.dtype("?")), Column("truncated", np.dtype("?")),
    ))  # fmt: skip
    data = conduit.offline.open(tmp_path, schema=schema, rename=rename)
    with data.loader(100) as loader:
        batch = next(loader)
    assert len(batch) == n
    assert np.array_equal(batch["next_obs"], -batch["obs"])
    assert np.array_equal(batch["discount"] == 0, ended[batch["action"]])


def test_what_is_refused(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a", 100, 10)
    with pytest.raises(conduit.SourceNotFound):
        conduit.offline.open(tmp_path / "b")
    with pytest.raises(conduit.ConfigError, match="follows episodes"):
        conduit.offline.open(path, window=windows.Transition())
    with pytest.raises(conduit.ConfigError, match="Row, Transition or NStep"):
        conduit.offline.open(path, window=windows.Sequence(3))  # type: ignore[arg-type]
    with pytest.raises(conduit.CapacityError, match="nothing would be shuffled"):
        conduit.offline.open(path, buffer=16)
    with pytest.raises(conduit.MissingColumn, match="no column z"):
        conduit.offline.open(path, schema=Schema((Column("z", np.dtype("i8")),)))
    refused: list[dict[str, Any]] = [{"epochs": 0}, {"prefetch": 0}, {"first_epoch": -1}]
    for options in refused:
        with pytest.raises(conduit.ConfigError):
            conduit.offline.open(path).loader(10, **options)
    with pytest.raises(conduit.ConfigError):
        conduit.offline.open(path).loader(0)


def test_errors_of_the_thread_come_to_the_caller(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a", 100, 10, parts=1)
    data = conduit.offline.open(path)
    file = path / "0.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:4] + bytes(byte ^ 255 for byte in whole[4:600]) + whole[600:])
    with data.loader(10) as loader, pytest.raises(conduit.ExchangeError, match=r"0\.parquet"):
        list(loader)
    file.write_bytes(whole)

    def fail(batch: conduit.offline.OfflineBatch) -> None:
        raise RuntimeError(f"at {len(batch)}")

    with data.loader(10, transform=fail) as loader:
        with pytest.raises(RuntimeError, match="at 10"):
            next(loader)
        assert list(loader) == []
    with data.loader(10, transform=len) as loader:
        assert list(loader) == [10] * 10


def test_nulls_are_found_where_they_are(tmp_path: Path) -> None:
    x: list[int | None] = list(range(20))
    x[13] = None
    pq.write_table(pa.table({"x": pa.array(x)}), tmp_path / "x.parquet", row_group_size=10)
    loader = conduit.offline.open(tmp_path).loader(5)
    with pytest.raises(conduit.DtypeMismatch, match="row 3 of row group 1"):
        list(loader)


def test_loaders_end(tmp_path: Path) -> None:
    data = conduit.offline.open(numbered(tmp_path / "a", 1_000, 10), buffer=64 * 16)
    endless = data.loader(10, epochs=None)
    assert len({tuple(batch["x"]) for batch in itertools.islice(endless, 300)}) == 300
    endless.close()
    assert endless.closed
    with pytest.raises(conduit.StoreClosed, match="loader is closed"):
        next(endless)
    forgotten = data.loader(10, epochs=None)
    next(forgotten)
    del forgotten
    deadline = time.monotonic() + 30
    while any(thread.name.startswith("conduit-offline") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    whole = data.loader(10)
    assert sum(map(len, whole)) == 1_000
    assert whole.closed
    assert list(whole) == []


def test_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "x.parquet")
    data = conduit.offline.open(tmp_path)
    assert len(data) == 0
    assert list(data.loader(10, epochs=None)) == []


def test_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with conduit.offline.open(numbered(tmp_path / "a", 100, 10)).loader(10) as loader:
        batch = next(loader)
    tensors = batch.torch()
    assert set(tensors) == set(batch.names) == {"x", "group"}
    tensors["x"][0] = -1
    assert batch["x"][0] == -1
    assert isinstance(tensors["x"], torch.Tensor)
    with pytest.raises(conduit.UnknownColumn, match="no column 'y'"):
        batch["y"]
