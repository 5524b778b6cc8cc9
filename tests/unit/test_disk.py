"""Rows beyond what memory holds: where they are does not show, whatever the disk does."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import Column, ConfigError, Disk, DiskError, Schema, Store, Table, inspection, removers, samplers, windows
from conduit.checkpoints import Changes
from conduit_store import disk as files
from tests import disk_support as support
from tests.disk_support import EPISODIC, SCHEMA, check, columns, create, fill, settled, tier
from tests.store_support import fresh_store
from tests.worker import worker


def test_rows_are_the_same_wherever_they_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 10_000)
        settled(table)
        assert len(table) == 4_000
        assert tier(table)["blocks_on_disk"] > tier(table)["frames"]
        table.verify()
        batch = table.sample(256)
        seen: set[int] = set()
        for _ in range(60):
            batch = table.sample(256)
            check(batch)
            seen |= set(batch["x"].tolist())
        assert min(seen) >= 6_000
        assert len(seen) > 3_800
        assert tier(table)["rows_from_disk"] > 5_000
        again = table.rows(batch.keys)
        assert (again["x"] == batch["x"]).all()
        check(again)
        told = store.metrics().tables["t"]
        assert told.rows == 4_000
        assert told.disk is not None
        assert told.disk.blocks_on_disk == tier(table)["blocks_on_disk"]
        assert told.disk.error == ""
        inspection.print_store(store.name)
        assert re.search(r"disk\s+\d+ blocks", capsys.readouterr().out)
        inspection.print_table(store.name, "t")
        assert "disk: frames" in capsys.readouterr().out


def test_memory_is_what_was_said(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        assert table.info().data_bytes <= 204_800  # whole pages
        fill(table, 4_000)
        settled(table)
        on_disk = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
        assert on_disk >= 3_000 * SCHEMA.row_bytes


@pytest.mark.parametrize(
    "window",
    [
        windows.Transition(), windows.NStep(3, gamma=0.5), windows.Sequence(5, burn_in=2), windows.FrameStack(4),
        windows.Episode(max_length=12),
    ],
    ids=lambda window: type(window).__name__,
)  # fmt: skip
def test_windows_across_memory_and_disk(tmp_path: Path, window: windows.Window) -> None:
    """The same rows by the same window from a table in memory, row for row."""
    with fresh_store("64MiB") as store:
        tables = [
            store.create_table("disk", EPISODIC, 2_000, window=window, max_writers=1, disk=Disk(tmp_path, "80KB")),
            store.create_table("memory", EPISODIC, 2_000, window=window, max_writers=1),
        ]
        found = []
        for table in tables:
            with table.writer() as writer:
                for i in range(1_900):
                    end = i % 11 == 10
                    writer.append(
                        obs=np.full(16, i), action=i, reward=i % 7, terminated=end and i % 2 == 0,
                        truncated=end and i % 2 == 1,
                    )  # fmt: skip
                    if end:
                        writer.end(np.full(16, -i))
            found.append({})
            keys = [key for block in table.blocks() for key in block.keys.tolist()]
            for key in keys:
                try:
                    batch = table.rows(np.asarray([key], np.uint64))
                except KeyError:  # no window begins here
                    continue
                row = {name: np.asarray(batch[name])[0] for name in batch}
                found[-1][np.asarray(row["action"]).tobytes()] = row
            table.verify()
        assert tier(tables[0])["blocks_on_disk"] > tier(tables[0])["frames"]
        on_disk, in_memory = found
        assert on_disk.keys() == in_memory.keys()
        assert len(on_disk) > 150
        for action, row in in_memory.items():
            for name, value in row.items():
                assert np.array_equal(on_disk[action][name], value), (action, name)


def test_a_loader_reads_ahead(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path, seed=3)
        fill(table, 6_000)
        settled(table)
        direct = [table.sample(64, stream=9).keys for _ in range(20)]
        with table.loader(64, stream=9 + 1, prefetch=3) as loader:
            for _ in range(20):
                check(next(loader))
        assert len(direct) == 20


def test_views_of_blocks_on_disk_are_zero_copy_and_hold_them(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 3_000)
        settled(table)
        oldest = next(iter(table.blocks()))
        batch = oldest.to_arrow()
        want = batch.column("x").to_pylist()
        del oldest
        fill(table, 8_000, 3_000)  # everybody else's rows are long gone
        assert batch.column("x").to_pylist() == want
        path = next(tmp_path.iterdir())
        store.close()
        assert batch.column("x").to_pylist() == want
        assert path.exists()
        del batch
        assert not path.exists()


def test_each_slot_of_the_file_is_an_arrow_record_batch(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 3_000)
        settled(table)
        layout = table.spec.block_layout()
        (path,) = tmp_path.iterdir()
        data = path.read_bytes()
        assert data[:8] == b"ARROW1\0\0"
        schema = pa.ipc.read_schema(pa.py_buffer(data[8:]))
        assert schema == SCHEMA.to_arrow()
        header = files.record_header(SCHEMA, layout)
        slot = -(-(len(header) + layout.block_bytes) // 4096) * 4096
        head = -(-len(files.schema_head(SCHEMA)) // 4096) * 4096
        whole = 0
        for at in range(head, len(data), slot):
            if data[at : at + 4] != b"\xff\xff\xff\xff":
                continue  # never written: the block is in memory
            batch = pa.ipc.read_record_batch(pa.py_buffer(data[at : at + slot]), schema)
            x = np.asarray(batch.column("x"))
            assert (np.stack(batch.column("img").to_numpy_ndarray()) == (x % 251)[:, None]).all()
            whole += len(x)
        assert whole >= 2_000


def test_rows_that_are_read_most_come_back_into_memory(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path, sampler=samplers.Prioritized(alpha=1.0, beta=0.0))
        fill(table, 4_000)
        settled(table)
        keys = table.rows(next(iter(table.blocks())).keys).keys  # the oldest: on disk
        table.update_priorities(keys, np.full(len(keys), 1e6))
        before = 0
        for _ in range(400):
            check(table.sample(256))
            if tier(table)["blocks_promoted"] > 0:
                before = tier(table)["rows_from_disk"]
                break
        assert before > 0
        for _ in range(20):
            check(table.sample(256))
        assert tier(table)["rows_from_disk"] - before < 20 * 64
        fill(table, 2_000, 4_000)
        table.verify()


def test_processes_share_the_rows_on_disk(tmp_path: Path) -> None:
    with fresh_store() as store, worker() as other:
        table = create(store, tmp_path)
        fill(table, 6_000)
        settled(table)
        assert pickle.loads(pickle.dumps(table)) is table
        other.call(_extend_and_check, store.name, 6_000)
        settled(table)
        batches = [table.sample(256) for _ in range(10)]
        for batch in batches:
            check(batch)
        assert max(batch["x"].max() for batch in batches) >= 6_000
        with Store.attach(store.name, read_only=True) as reader:
            check(reader.table("t").sample(256))


def _extend_and_check(name: str, first: int) -> None:
    with Store.attach(name) as store:
        table = store.table("t")
        for at in range(first, first + 3_000, 100):
            table.extend(columns(at, 100))
            check(table.sample(64))


def test_a_forked_child_goes_on(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 3_000)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                fill(table, 3_000, 3_000)
                check(table.sample(256))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        fill(table, 1_000, 6_000)
        check(table.sample(256))
        table.verify()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_cut_off_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    """A page that cannot be read, as of a failing disk: SIGBUS for whoever touches it."""
    with fresh_store() as store:
        table = create(store, tmp_path)
        fill(table, 4_000)
        settled(table)
        (path,) = tmp_path.iterdir()
        length = path.stat().st_size
        with table.loader(64, prefetch=2) as loader:
            os.truncate(path, 8192)
            with pytest.raises(DiskError, match=r"cannot be reached on disk.*blocks\.arrow"):
                table.sample(2_000)
            with pytest.raises(DiskError):
                _ = [next(loader) for _ in range(50)]
        with pytest.raises(DiskError):
            table.histogram("x")
        newest = table.rows([block.keys for block in table.blocks()][-1])
        check(newest)
        os.truncate(path, length)
        fill(table, 4_500, 4_000)  # what is written now is there
        settled(table)
        for _ in range(20):
            check(table.sample(256))
        table.verify()


def test_a_table_that_fits_in_memory_has_no_file(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path, max_size=1_000, host="8MB")
        fill(table, 2_000)
        check(table.sample(64))
        assert list(tmp_path.iterdir()) == []


def test_exist_ok_and_the_settings_that_are_kept(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path)
        assert create(store, tmp_path, exist_ok=True) is table
        assert table.spec.disk == Disk(tmp_path, "200KB")
        assert type(table.spec).from_json(table.spec.to_json()) == table.spec
        assert table.spec.from_json(table.spec.to_json()).messages == table.spec.messages


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with fresh_store() as store:
        with pytest.raises(ConfigError, match="not a size"):
            Disk(tmp_path, "much")
        with pytest.raises(ConfigError, match="2 writers need"):
            create(store, tmp_path, host="2KB")
        with pytest.raises(ConfigError, match="capacity is 100,000"):
            store.create_table("t", SCHEMA, 4_000, disk=Disk(tmp_path, "200KB", 100_000))
        with pytest.raises(ConfigError, match="one by one"):
            create(store, tmp_path, remover=removers.Lifo())
        with pytest.raises(DiskError, match="cannot be created: No such file"):
            create(store, tmp_path / "nowhere")
        assert store.tables() == []
        assert list(tmp_path.iterdir()) == []


def test_files_of_the_dead_are_swept_and_those_of_the_living_stay(tmp_path: Path) -> None:
    with fresh_store() as store, worker() as dying:
        dying.call(_hold, str(tmp_path))
        assert len(list(tmp_path.iterdir())) == 1
        (tmp_path / "conduit-notes.txt").write_text("mine")
        table = create(store, tmp_path)
        assert len(list(tmp_path.iterdir())) == 3
        dying.kill()
        assert len(files.sweep(str(tmp_path))) == 1
        fill(table, 4_000)
        check(table.sample(64))
    assert [path.name for path in tmp_path.iterdir()] == ["conduit-notes.txt"]


def _hold(folder: str) -> None:
    store = Store.create(f"held-{os.getpid()}", "16MiB")
    fill(create(store, Path(folder)), 3_000)
    _held.append(store)


_held: list[Store] = []


def test_support_rows_are_what_they_say() -> None:
    assert support.columns(5, 2)["x"].tolist() == [5, 6]


def test_mutable_numbers_change_wherever_their_row_lies(tmp_path: Path) -> None:
    schema = Schema((*SCHEMA.columns, Column("reward", np.dtype("f4"), mutable=True)))
    with fresh_store() as store:
        table = store.create_table("t", schema, 4_000, max_writers=2, disk=Disk(tmp_path, "200KB"))
        want: dict[int, float] = {}
        keys = {}
        chance = np.random.default_rng(1)
        for at in range(0, 6_000, 100):
            x = columns(at, 100)
            put = table.extend({**x, "reward": np.zeros(100, np.float32)}, return_keys=True)
            keys |= dict(zip(x["x"].tolist(), put.tolist(), strict=True))
            want |= dict.fromkeys(x["x"].tolist(), 0.0)
            chosen = chance.choice(sorted(keys), 200)
            values = chance.random(200).astype(np.float32)
            result = table.update(np.asarray([keys[i] for i in chosen], np.uint64), reward=values)
            assert result.applied + result.stale == 200
            want |= dict(zip(chosen.tolist(), values.tolist(), strict=True))
            batch = table.sample(128)
            check(batch)
            assert batch["reward"].tolist() == [want[i] for i in batch["x"].tolist()]
        settled(table)
        assert tier(table)["blocks_on_disk"] > tier(table)["frames"]
        for block in table.blocks():
            rows = block.to_arrow()
            assert rows.column("reward").to_pylist() == [want[i] for i in rows.column("x").to_pylist()]
        table.verify()


def _content(table: Table) -> dict[str, list[Any]]:
    batch = table.rows(np.concatenate([block.keys for block in table.blocks()]))
    check(batch)
    return {name: np.asarray(batch[name]).tolist() for name in ("x", "done")}


def _draws(table: Table, n: int) -> list[list[int]]:
    return [table.sample(64, stream=5).keys.tolist() for _ in range(n)]


def test_a_checkpoint_has_the_rows_on_disk_too_and_a_restore_puts_them_there(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with fresh_store() as store:
        table = create(store, tmp_path / "rows", sampler=samplers.Prioritized(0.5, 0.4))
        fill(table, 6_030, step=30)
        settled(table)
        batch = table.sample(64, stream=5)
        table.update_priorities(batch.keys, np.linspace(0.1, 3.0, 64))
        store.checkpoint(tmp_path / "saved")
        want, follows = _content(table), _draws(table, 5)
        with Store.restore(tmp_path / "saved", f"{store.name}-again") as again:
            restored = again.table("t")
            restored.verify()
            assert tier(restored)["blocks_on_disk"] > tier(restored)["frames"] / 2
            assert _content(restored) == want
            assert _draws(restored, 5) == follows
            fill(restored, 3_000, 6_030)
            settled(restored)
            restored.verify()
            assert max(_content(restored)["x"]) == 9_029
            again.checkpoint(tmp_path / "saved")
        with Store.restore(tmp_path / "saved", f"{store.name}-third") as third:
            assert min(_content(third.table("t"))["x"]) >= 5_000


@pytest.mark.parametrize("change", ["smaller", "elsewhere", "memory", "disk"])
def test_a_restore_into_another_shape(tmp_path: Path, change: str) -> None:
    for folder in ("rows", "other"):
        (tmp_path / folder).mkdir()
    changes = {
        "smaller": Changes(max_size=2_500),
        "elsewhere": Changes(disk=Disk(tmp_path / "other", "300KB")),
        "memory": Changes(disk=False),
        "disk": Changes(disk=Disk(tmp_path / "rows", "150KB")),
    }
    with fresh_store() as store:
        if change == "disk":
            table = store.create_table("t", SCHEMA, 4_000, max_writers=2)
        else:
            table = create(store, tmp_path / "rows")
        fill(table, 6_000)
        store.checkpoint(tmp_path / "saved")
        want = _content(table)
        with Store.restore(tmp_path / "saved", f"{store.name}-again", tables={"t": changes[change]}) as again:
            restored = again.table("t")
            restored.verify()
            n = 2_500 if change == "smaller" else 4_000
            assert _content(restored)["x"] == want["x"][-n:]
            assert restored.spec.tiered == (change != "memory")
            fill(restored, 1_000, 6_000)
            check(restored.sample(256))
            restored.verify()


def test_checkpoints_while_blocks_move(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with fresh_store() as store, worker() as other:
        table = create(store, tmp_path / "rows")
        fill(table, 4_000)
        other.start(_extend_and_check, store.name, 10_000)
        for _ in range(5):
            store.checkpoint(tmp_path / "saved")
        other.result()
        with Store.restore(tmp_path / "saved", f"{store.name}-again") as again:
            again.table("t").verify()
            assert len(_content(again.table("t"))["x"]) == 4_000


def test_a_restore_where_the_folder_is_not(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    with fresh_store() as store:
        fill(create(store, tmp_path / "rows"), 1_000)
        store.checkpoint(tmp_path / "saved")
    (tmp_path / "rows").rmdir()
    with pytest.raises(DiskError, match="rows"):
        Store.restore(tmp_path / "saved")
    with Store.restore(tmp_path / "saved", tables={"t": Changes(disk=False)}) as store:
        assert len(store.table("t")) == 1_000
