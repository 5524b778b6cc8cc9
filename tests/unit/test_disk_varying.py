"""Rows that vary in length, of which most lie on disk: where they are does not show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import Batch, Disk, DiskError, Store, Table, samplers
from conduit.checkpoints import Changes
from tests.disk_support import largest_file, settled, tier
from tests.store_support import fresh_store
from tests.varying import SCHEMA, columns, faults
from tests.worker import worker

LONG = 1_500  # elements: more than a block holds


def create(store: Store, folder: Path, max_size: int = 2_000, **options: Any) -> Table:
    return store.create_table("t", SCHEMA, max_size, max_writers=1, disk=Disk(folder, "60KB"), **options)


def lengths(first: int, n: int) -> Any:
    """Of rows from `first` on: about the mean, and every 97th longer than a block."""
    serials = np.arange(first, first + n)
    return np.where(serials % 97 == 5, LONG, serials % 41)


def fill(table: Table, n: int, first: int = 0, step: int = 25) -> None:
    for at in range(first, first + n, step):
        table.extend(columns(range(at, at + step), lengths(at, step)))


def check(batch: Batch) -> list[int]:
    """Every row is whole, and as long as its number says; returns the numbers."""
    assert faults(batch) == []
    serials = np.asarray(batch["serial"])
    assert (batch["tokens"].lengths == lengths(0, 20_000)[serials]).all()
    found: list[int] = serials.tolist()
    return found


def content(table: Table) -> list[int]:
    return check(table.rows(np.concatenate([block.keys for block in table.blocks()])))


def test_rows_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 3_000)
        settled(table)
        assert len(table) > 1_000  # those that are longer than a block push others out
        assert tier(table)["blocks_on_disk"] > 2 * tier(table)["frames"]
        table.verify()
        seen: set[int] = set()
        for _ in range(25):
            seen.update(check(table.sample(128)))
        assert len(seen) > 0.8 * len(table)
        assert any(serial % 97 == 5 for serial in seen)
        assert tier(table)["rows_from_disk"] > 1_500
        assert content(table) == sorted(content(table))
        for block in table.blocks():
            view = block.to_arrow()
            view.validate(full=True)
            assert faults({name: view.column(name).to_pylist() for name in ("serial",)} | _lists(view)) == []
        with table.loader(64, prefetch=3) as loader:
            for _ in range(20):
                check(next(loader))


def _lists(view: pa.RecordBatch) -> dict[str, Any]:
    made: dict[str, Any] = {name: view.column(name).to_pylist() for name in ("text", "raw")}
    tokens, frames = view.column("tokens"), view.column("frames")
    made["tokens"] = [np.asarray(tokens[i].values) for i in range(len(view))]
    made["frames"] = [np.array(frames[i].as_py(), np.uint8).reshape(-1, 2, 3) for i in range(len(view))]
    return made


def test_each_slot_of_the_file_is_an_arrow_record_batch(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 3_000)
        settled(table)
        messages = table.spec.messages
        assert messages is not None
        (path,) = tmp_path.iterdir()
        data = path.read_bytes()
        schema = pa.ipc.read_schema(pa.py_buffer(data[8:]))
        assert schema == SCHEMA.to_arrow()
        slot = -(-(len(messages.record) + table.spec.block_layout().block_bytes) // 4096) * 4096
        head = -(-len(messages.head) // 4096) * 4096
        whole, longest = 0, 0
        for block in table.blocks():
            at, want = head + slot * block.index, block.to_arrow().column("serial").to_pylist()
            if data[at : at + 4] != b"\xff\xff\xff\xff":
                continue  # in memory
            batch = pa.ipc.read_record_batch(pa.py_buffer(data[at:]), schema)
            if batch.column("serial").to_pylist()[-len(want) :] != want:
                continue  # in memory, and this is what lay there before
            batch.validate(full=True)
            assert faults({"serial": batch.column("serial").to_pylist()} | _lists(batch)) == []
            whole += len(batch)
            longest = max(longest, *(len(row) for row in batch.column("tokens")))
        assert whole >= 0.7 * len(table)
        assert longest == LONG


def test_a_checkpoint_and_a_restore(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with fresh_store() as store:
        table = create(store, tmp_path / "rows", sampler=samplers.Prioritized(0.5, 0.4))
        fill(table, 4_000)
        settled(table)
        table.sample(64, stream=5)
        store.checkpoint(tmp_path / "saved")
        want, follows = content(table), [table.sample(64, stream=5).keys.tolist() for _ in range(5)]
        with Store.restore(tmp_path / "saved", f"{store.name}-again") as again:
            restored = again.table("t")
            restored.verify()
            assert tier(restored)["blocks_on_disk"] > tier(restored)["frames"]
            assert content(restored) == want
            assert [restored.sample(64, stream=5).keys.tolist() for _ in range(5)] == follows
            fill(restored, 2_000, 4_000)
            settled(restored)
            restored.verify()
            assert max(content(restored)) == 5_999
            again.checkpoint(tmp_path / "saved")
        with Store.restore(tmp_path / "saved", f"{store.name}-third") as third:
            assert max(content(third.table("t"))) == 5_999


@pytest.mark.parametrize("change", ["smaller", "memory", "disk"])
def test_a_restore_into_another_shape(tmp_path: Path, change: str) -> None:
    changes = {
        "smaller": Changes(max_size=1_200),
        "memory": Changes(disk=False),
        "disk": Changes(disk=Disk(tmp_path, "40KB")),
    }
    with fresh_store() as store:
        if change == "disk":
            table = store.create_table("t", SCHEMA, 2_000, max_writers=1)
        else:
            table = create(store, tmp_path)
        fill(table, 4_000)
        store.checkpoint(tmp_path / "saved")
        want = content(table)
        with Store.restore(tmp_path / "saved", f"{store.name}-again", tables={"t": changes[change]}) as again:
            restored = again.table("t")
            restored.verify()
            found = content(restored)
            assert found == want[-len(found) :]
            assert len(found) > 600
            assert restored.spec.tiered == (change != "memory")
            fill(restored, 500, 4_000)
            restored.verify()
            check(restored.sample(256))


def test_processes_share_the_rows(tmp_path: Path) -> None:
    with fresh_store() as store, worker() as other:
        table = create(store, tmp_path)
        fill(table, 2_000)
        other.call(_go_on, store.name)
        settled(table)
        assert max(content(table)) == 3_999
        table.verify()


def _go_on(name: str) -> None:
    with Store.attach(name) as store:
        fill(store.table("t"), 2_000, 2_000)
        check(store.table("t").sample(64))


def test_a_file_that_is_cut_off_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 3_000)
        settled(table)
        (path,) = tmp_path.iterdir()
        length = path.stat().st_size
        os.truncate(path, 8192)
        with pytest.raises(DiskError, match="cannot be reached on disk"):
            table.sample(1_000)
        os.truncate(path, length)
        fill(table, 4_000, 3_000)
        settled(table)
        for _ in range(10):
            check(table.sample(128))
        table.verify()


def test_a_row_larger_than_a_block_that_the_disk_has_no_room_for(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 100)
        with largest_file(4096), pytest.raises(DiskError, match=r"a row.*t'"):
            table.extend(columns([200], [LONG]))
        assert max(content(table)) == 99
        table.verify()
        fill(table, 3_000, 100)
        assert max(content(table)) == 3_099
        table.verify()
