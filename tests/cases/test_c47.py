"""C47: a put into a full store hung for ever."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from conduit import AppendTimeout, BlockView, CapacityError, Store
from tests.store_support import fresh_store, scalar_writer, schema
from tests.worker import workers

MIB = 1 << 20
ROW = 5 * MIB  # a fifth of the case's numbers: blocks of one row
_views: list[BlockView] = []


def pin(store: str, blocks: list[int]) -> int:
    table = Store.attach(store)["t"]
    _views.extend(table.block(block) for block in blocks)
    return len(_views)


def release() -> None:
    del _views[0]


def row(value: int) -> Any:
    return {"x": np.full(ROW, value, np.uint8)}


def test_an_append_to_a_full_store_times_out_and_goes_on_when_there_is_room() -> None:
    with fresh_store("64MiB") as store, workers(4) as readers:
        table = store.create_table("t", schema(x=("u1", (ROW,))), 4, max_writers=1)
        assert table.spec.block_layout().rows == 1
        with scalar_writer(table, timeout=2.0) as writer:
            for value in range(4):
                writer.append(**row(value))
            held = table._native.live_blocks()
            assert len(held) == 4
            for reader, block in zip(readers, held, strict=True):
                assert reader.call(pin, store.name, [block]) == 1
            spare = table.spec.block_layout().blocks - 4
            for value in range(4, 4 + spare):
                writer.append(**row(value))  # what the pins leave
            extra = [table.block(block) for block in table._native.live_blocks() if block not in held]
            began = time.monotonic()
            said = r"blocks \d pinned by zero-copy views \(pid \d+\), of 6 \(30\.0 MiB\)"
            with pytest.raises(AppendTimeout, match=said) as full:
                writer.append(**row(9))
            assert 2.0 <= time.monotonic() - began < 3.0
            assert "0 of 1 rows are in" in str(full.value)
            began = time.monotonic()
            with pytest.raises(CapacityError, match="6 rows in one call"):
                table.extend({"x": np.zeros((6, ROW), np.uint8)})
            assert time.monotonic() - began < 1.0
            readers[0].call(release)
            writer.append(**row(10))
        done: list[int] = []

        def put(value: int) -> None:
            with scalar_writer(table, timeout=60.0) as one:
                one.append(**row(value))
            done.append(value)

        threads = [threading.Thread(target=put, args=(value,)) for value in range(20, 30)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        assert not done  # full again: every other block is pinned
        del extra
        for reader in readers[1:]:
            reader.call(release)
        for thread in threads:
            thread.join(60.0)
        assert sorted(done) == list(range(20, 30))
        table.verify()
