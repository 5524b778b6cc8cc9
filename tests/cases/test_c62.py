"""C62: offsets of 32 bits overflowed beyond 2 GiB, or a column of fixed width was wrongly held to 2 GiB."""

from __future__ import annotations

import resource

import numpy as np
import pyarrow as pa
import pytest

from conduit import CapacityError, Column, Ragged, Schema
from conduit_store.memory import available_bytes
from tests.store_support import fresh_store, schema

GIB = 1 << 30
CHUNK = int(0.8 * GIB)
TEXT = Schema((Column("x", "binary", mean_length=1_000),))


def zeros(nbytes: int) -> np.ndarray:  # type: ignore[type-arg]
    """Bytes that take no memory until they are written."""
    return np.zeros(nbytes, np.uint8)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("form", ["chunks", "packed", "one row"])
def test_more_than_2_gib_of_bytes_are_refused_before_a_copy(form: str) -> None:
    whole = zeros(3 * CHUNK)
    if form == "chunks":  # of 32-bit offsets each, as Arrow's own binary arrays have
        ends = pa.py_buffer(np.array([0, CHUNK], np.int32))
        chunk = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(whole[:CHUNK])])
        given = pa.chunked_array([chunk] * 3)
    else:
        ends64 = [0, CHUNK, 2 * CHUNK, 3 * CHUNK] if form == "packed" else [0, 3 * CHUNK]
        given = Ragged(whole, ends64, text="binary")
    with fresh_store() as store:
        table = store.create_table("t", TEXT, 1_000)
        before = peak_bytes()
        first = (1, 3 * CHUNK) if form == "one row" else (3, CHUNK)
        with pytest.raises(CapacityError, match="row 0 of {} has {} bytes .* could hold [0-9]+ if".format(*first)):
            table.extend({"x": given})
        assert peak_bytes() - before < CHUNK // 4
        assert len(table) == 0


def test_offsets_are_64_bits_everywhere() -> None:
    with fresh_store() as store:
        table = store.create_table("t", TEXT, 10)
        table.extend({"x": [b"ab", b"c"]})
        assert table.schema.to_arrow().field("x").type == pa.large_binary()
        batch = table.sample(4)
        assert batch["x"].offsets.dtype == np.int64
        assert batch.to_arrow().schema.field("x").type == pa.large_binary()
        assert table.blocks()[0].to_arrow().column("x").to_pylist() == [b"ab", b"c"]


def test_offsets_beyond_32_bits_find_their_elements() -> None:
    """The elements that are read lie behind 2^31 others, which take no memory."""
    values = zeros((1 << 31) + 64)
    values[-64:] = np.arange(64, dtype=np.uint8)
    rows = Ragged(values, [(1 << 31) + 8, (1 << 31) + 11, (1 << 31) + 64], text="binary")
    with fresh_store() as store:
        table = store.create_table("t", TEXT, 10)
        table.extend({"x": rows})
        found = table.rows(table.blocks()[0].keys)["x"]
        assert list(found) == [bytes([8, 9, 10]), bytes(range(11, 64))]


@pytest.mark.slow
def test_a_column_of_fixed_width_beyond_2_gib() -> None:
    n = (1 << 31) // 64 + 1  # rows of 64 bytes: 2^31 + 64 in one block's column
    need = 4 * GIB
    if available_bytes().bytes < 2 * need:
        pytest.skip(f"needs {need:,} bytes of memory")
    with fresh_store("3GiB") as store:
        table = store.create_table("t", schema(x=("f4", (16,))), n, max_writers=1)
        for first in range(0, n, 1 << 20):
            part = np.arange(first, min(first + (1 << 20), n), dtype=np.float32)
            table.extend({"x": np.broadcast_to(part[:, None], (len(part), 16))})
        last = table.blocks()[-1]
        assert table.rows(last.keys[-1:])["x"].tolist() == [[float(np.float32(n - 1))] * 16]
