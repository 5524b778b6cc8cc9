"""Tables whose blocks are compressed on disk: what is tested of tables with a disk holds, and slots are Arrow's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import CheckpointError, Column, ConfigError, Disk, DiskError, MissingExtra, Schema, Store, Table, windows
from conduit_store.native import native
from tests.disk_support import SCHEMA, check, create, fill, settled, tier
from tests.store_support import fresh_store
from tests.unit import test_disk, test_disk_varying
from tests.varying import SCHEMA as VARYING

CODECS = [name for name in ("lz4", "zstd") if native.has_codec(name)]
WINDOWS = [windows.NStep(3, 0.9), windows.Sequence(6, burn_in=2), windows.FrameStack(3)]
BODIES: list[Callable[..., None]] = [
    test_disk.test_a_loader_reads_ahead, test_disk.test_rows_that_are_read_most_come_back_into_memory,
    test_disk.test_processes_share_the_rows_on_disk, test_disk.test_a_forked_child_goes_on,
    test_disk.test_a_file_that_is_cut_off_is_an_error_and_not_the_end,
    test_disk.test_a_checkpoint_has_the_rows_on_disk_too_and_a_restore_puts_them_there,
    test_disk.test_checkpoints_while_blocks_move, test_disk_varying.test_rows_are_the_same_wherever_they_lie,
]  # fmt: skip


def varying(codec: str, store: Store, folder: Path, max_size: int = 2_000, **options: Any) -> Table:
    disk = Disk(folder, "60KB", compression=codec)
    return store.create_table("t", VARYING, max_size, max_writers=1, disk=disk, **options)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_as_uncompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: Any, codec: str) -> None:
    monkeypatch.setattr(test_disk, "create", partial(create, compression=codec))
    monkeypatch.setattr(test_disk_varying, "create", partial(varying, codec))
    body(tmp_path)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: type(window).__name__)
def test_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: Any, codec: str) -> None:
    monkeypatch.setattr(test_disk, "Disk", partial(Disk, compression=codec))
    test_disk.test_windows_across_memory_and_disk(tmp_path, window)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("schema", [SCHEMA, VARYING], ids=["plain", "varying"])
def test_each_slot_is_a_compressed_arrow_record_batch(tmp_path: Path, schema: Schema, codec: str) -> None:
    with fresh_store() as store:
        if schema is SCHEMA:
            table = create(store, tmp_path, compression=codec)
            fill(table, 3_000)
        else:
            table = varying(codec, store, tmp_path)
            test_disk_varying.fill(table, 3_000)
        settled(table)
        layout, messages = table.spec.block_layout(), table.spec.messages
        assert messages is not None
        (path,) = tmp_path.iterdir()
        data = path.read_bytes()
        of = pa.ipc.read_schema(pa.py_buffer(data[8:]))
        buffers = len(schema) + len(schema.ragged)
        slot = -(-(max(len(messages.record), len(messages.packed) + 16 * buffers) + layout.block_bytes) // 4096) * 4096
        head = -(-len(messages.head) // 4096) * 4096
        whole = 0
        for block in table.blocks():
            at, want = head + slot * block.index, block.to_arrow()
            if block._address != 0:  # in memory, or larger than a block
                continue
            batch = pa.ipc.read_record_batch(pa.py_buffer(data[at:]), of)
            batch.validate(full=True)
            assert batch.slice(len(batch) - len(want)).equals(want)
            whole += batch.num_rows
        assert whole > 500
        info = table.info().disk
        assert info is not None
        assert info.bytes_written < 0.5 * info.blocks_written * layout.block_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_the_file_is_as_small_as_its_blocks(tmp_path: Path, codec: str) -> None:
    """What a slot does not need is given back to the disk, also where a block that was larger lay there."""
    schema = Schema((Column("x", "int64"), Column("img", "uint8", (1_000,))))
    with fresh_store() as store:
        disk = Disk(tmp_path, "2MB", compression=codec)
        table = store.create_table("t", schema, 10_000, max_writers=1, disk=disk)
        sizes: list[int] = []
        chance = np.random.default_rng(0)
        for noisy in (True, False):
            for first in range(0, 20_000, 100):
                x = np.arange(first, first + 100)
                img = chance.integers(0, 256, (100, 1_000)) if noisy else np.tile(x[:, None] % 251, 1_000)
                table.extend({"x": x, "img": img.astype(np.uint8)})
            settled(table)
            sizes.append(next(iter(tmp_path.iterdir())).stat().st_blocks * 512)
        assert sizes[0] > 7_000_000
        assert sizes[1] < 0.2 * sizes[0]
        batch = table.sample(200)
        assert (batch["img"] == (batch["x"] % 251)[:, None]).all()


@pytest.mark.parametrize("codec", CODECS)
def test_what_does_not_become_smaller_is_kept_as_it_is(tmp_path: Path, codec: str) -> None:
    schema = Schema((Column("x", "int64"), Column("noise", "uint8", (500,))))
    noise = np.random.default_rng(0).integers(0, 256, (2_000, 500), np.uint8)
    with fresh_store() as store:
        disk = Disk(tmp_path, "200KB", compression=codec)
        table = store.create_table("t", schema, 2_000, max_writers=1, disk=disk)
        for at in range(0, 2_000, 50):
            table.extend({"x": np.arange(at, at + 50), "noise": noise[at : at + 50]})
        settled(table)
        assert tier(table)["blocks_on_disk"] > 5
        batch = table.sample(500)
        assert (batch["noise"] == noise[batch["x"]]).all()


@contextmanager
def settled_table(tmp_path: Path, codec: str) -> Iterator[tuple[Store, Table, Path]]:
    """A full table, most of whose blocks lie compressed in the file."""
    with fresh_store() as store:
        table = create(store, tmp_path, compression=codec)
        fill(table, 4_000)
        settled(table)
        (path,) = tmp_path.iterdir()
        yield store, table, path


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_block_is_an_error(tmp_path: Path, codec: str) -> None:
    """Whatever is written over the file: an error, or the rows that were there."""
    chance = np.random.default_rng(1)
    with settled_table(tmp_path, codec) as (_, table, path):
        refused = 0
        with path.open("r+b") as file:
            for _ in range(300):
                file.seek(int(chance.integers(4096, path.stat().st_size - 64)))
                file.write(chance.bytes(64))
        for _ in range(200):
            try:
                check(table.sample(4))
            except DiskError:
                refused += 1
        assert refused > 0


def packed_slots(table: Table, path: Path) -> dict[int, tuple[int, int]]:
    """Where in the file the bytes of each compressed block lie, by the block's number: [start, stop)."""
    layout, messages = table.spec.block_layout(), table.spec.messages
    assert messages is not None
    buffers = len(table.schema) + len(table.schema.ragged)
    slot = -(-(max(len(messages.record), len(messages.packed) + 16 * buffers) + layout.block_bytes) // 4096) * 4096
    head = -(-len(messages.head) // 4096) * 4096
    (bytes_at,) = (at for what, _, at, _ in messages.packed_numbers if what == 1)
    data, found = path.read_bytes(), {}
    for block in table.blocks():
        if block._address == 0:
            start = head + slot * block.index
            body = int.from_bytes(data[start + bytes_at : start + bytes_at + 8], "little")
            found[block.index] = start, start + len(messages.packed) + body
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_a_bit_that_flips_is_found(tmp_path: Path, codec: str) -> None:
    """Wherever it is in a block's bytes, with the block and the file; a block is not taken for another one either."""
    chance = np.random.default_rng(2)
    with settled_table(tmp_path, codec) as (store, table, path):
        slots = packed_slots(table, path)
        keys = {block.index: block.keys for block in table.blocks()}
        with path.open("r+b") as file:
            first, second, *others = slots
            for block in others:
                at = int(chance.integers(*slots[block]))
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1 << int(chance.integers(8))]))
            file.seek(slots[first][0])
            other = file.read(slots[first][1] - slots[first][0])
            file.seek(slots[second][0])
            file.write(other)
        assert len(others) > 5
        check(table.rows(keys.pop(first)))
        for block in (second, *others):
            named = rf"block {block} of table 't' is damaged on disk, file {re.escape(str(path))}"
            with pytest.raises(DiskError, match=named):
                table.rows(keys.pop(block))
        for left in keys.values():
            check(table.rows(left))
        with pytest.raises(CheckpointError, match="is damaged on disk"):
            store.checkpoint(tmp_path / "saved")


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_block_that_is_hot_stops_nobody_else(tmp_path: Path, codec: str) -> None:
    """It cannot come back into memory, and appends go on."""
    with settled_table(tmp_path, codec) as (_, table, path):
        slots = packed_slots(table, path)
        hot = next(block for block in table.blocks() if block.index in slots)
        keys = hot.keys
        del hot
        with path.open("r+b") as file:
            file.seek(slots[int(keys[0] & 0xFFFFFFF) // table.spec.block_layout().rows][1] - 1)
            file.write(b"?")
        for _ in range(60):
            with pytest.raises(DiskError, match="is damaged on disk"):
                table.rows(keys)
        newest = 4_000
        while tier(table)["blocks_written"] < 2 * tier(table)["frames"] or newest < 6_000:
            fill(table, 100, newest)
            newest += 100
        info = table.info().disk
        assert info is not None
        assert info.failures == 0
        table.verify()


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="give 'lz4', 'zstd' or None"):
        Disk(tmp_path, "1MB", compression="gzip")
    late = Schema((Column("x", "int64"), Column("y", "float32", mutable=True)))
    with fresh_store() as store:
        with pytest.raises(ConfigError, match="columns y are mutable"):
            store.create_table("t", late, 100_000, disk=Disk(tmp_path, "100KB", compression="zstd"))
        with pytest.raises(ConfigError, match="'q' is a queue"):
            store.create_queue("q", SCHEMA, 100_000, disk=Disk(tmp_path, "200KB", compression="zstd"))
        monkeypatch.setattr(native, "has_codec", lambda name: False)
        with pytest.raises(MissingExtra, match=r"libzstd\.so\.1"):
            create(store, tmp_path, compression="zstd")
        assert list(tmp_path.iterdir()) == []
