"""Tables whose blocks are compressed on disk: the rows are those of any table, and the slots are Arrow's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import Batch, Column, ConfigError, Disk, DiskError, Schema, Store, Table, windows
from conduit.checkpoints import Changes
from conduit_store.native import native
from tests.checkpoint_support import restored
from tests.disk_support import EPISODIC, check, settled, tier, with_least_memory
from tests.disk_support import SCHEMA as PLAIN
from tests.disk_support import fill as fill_plain
from tests.store_support import fresh_store
from tests.varying import SCHEMA, columns, faults

CODECS = [name for name in ("lz4", "zstd") if native.has_codec(name)]


def create(store: Store, folder: Path, codec: str, schema: Schema = SCHEMA, max_size: int = 2_000, **options: Any) -> Table:
    return with_least_memory(
        folder,
        lambda disk: store.create_table(
            "t", schema, max_size, max_writers=1,
            disk=Disk(folder, max(60_000, disk.host_memory), compression=codec), **options,
        ),  # fmt: skip
    )


def fill(table: Table, n: int, first: int = 0) -> None:
    for at in range(first, first + n, 25):
        serials = np.arange(at, at + 25)
        table.extend(columns(serials, np.where(serials % 97 == 5, 1_500, serials % 41)))


def content(table: Table) -> list[int]:
    batch = table.rows(np.concatenate([block.keys for block in table.blocks()]))
    assert faults(batch) == []
    found: list[int] = np.asarray(batch["serial"]).tolist()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_each_length_come_back_as_they_were(tmp_path: Path, codec: str) -> None:
    with fresh_store() as store:
        table = create(store, tmp_path, codec)
        fill(table, 3_000)
        settled(table)
        assert tier(table)["blocks_on_disk"] > 2 * tier(table)["frames"]
        table.verify()
        assert len(content(table)) == len(table)
        for _ in range(20):
            assert faults(table.sample(64)) == []
        with table.loader(64) as loader:
            assert faults(loader.next()) == []
        for block in table.blocks():
            arrow = block.to_arrow()
            arrow.validate(full=True)
            rows = {name: arrow.column(name).to_pylist() for name in SCHEMA.names}
            assert rows["text"] == ["é" * (len(t) % 5) + str(s) for s, t in zip(rows["serial"], rows["tokens"], strict=True)]
        assert sorted(table.histogram("serial").edges)[0] >= 0
