"""Blocks as record batches over foreign memory, and Arrow data as NumPy arrays, against plain NumPy."""

from __future__ import annotations

import ctypes
import gc
import io
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from conduit_store import Column, DtypeMismatch, MissingColumn, Schema, SchemaError, UnknownColumn
from conduit_store.arrow import block_to_arrow, record_batch_columns, to_numpy
from conduit_store.layout import BlockLayout

ROWS = 11
DTYPES = ("?", "i1", "i8", "u2", "u8", "f2", "f4", "f8", "M8[ns]", "m8[s]")
SCHEMA = Schema(
    tuple(Column(f"c{i}{len(s)}", np.dtype(d), s) for i, d in enumerate(DTYPES) for s in ((), (5,), (3, 4)))
)


class Block:
    """Memory that a batch may outlive only if it holds this object: freed, and so overwritten, with it."""

    def __init__(self, schema: Schema, rows: int = ROWS) -> None:
        rng = np.random.default_rng(7)
        self.values: dict[str, npt.NDArray[Any]] = {}
        self.offsets: list[int] = []
        end = 0
        for column in schema:
            self.offsets.append(end)
            end += -(-rows * column.row_bytes // 64) * 64
        self.memory = (ctypes.c_char * end)()
        for column, offset in zip(schema, self.offsets, strict=True):
            raw = rng.integers(0, 2 if column.dtype.kind == "b" else 120, (rows, *column.shape))
            self.values[column.name] = raw.astype(column.dtype)
            ctypes.memmove(self.address + offset, self.values[column.name].tobytes(), rows * column.row_bytes)
        self.layout = BlockLayout(
            rows=rows,
            blocks=1,
            block_bytes=end,
            offsets=tuple(self.offsets),
            row_bytes=tuple(column.row_bytes for column in schema),
        )

    @property
    def address(self) -> int:
        return ctypes.addressof(self.memory)

    def batch(self, schema: Schema, start: int = 0, stop: int = ROWS) -> pa.RecordBatch:
        return block_to_arrow(schema, self.layout, self.address, start, stop, self)


@pytest.mark.parametrize(("start", "stop"), [(0, ROWS), (0, 4), (3, 9), (10, 11), (0, 0), (11, 11)])
def test_rows_of_a_block_are_those_that_were_stored(start: int, stop: int) -> None:
    block = Block(SCHEMA)
    batch = block.batch(SCHEMA, start, stop)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA.to_arrow())
    assert batch.num_rows == stop - start
    for column in SCHEMA:
        array = to_numpy(column.name, batch.column(column.name))
        assert array.dtype == column.dtype
        np.testing.assert_array_equal(array, block.values[column.name][start:stop])


def test_slices_and_slices_of_slices() -> None:
    block = Block(SCHEMA)
    batch = block.batch(SCHEMA, 1, 10).slice(2, 6).slice(1)
    for column in SCHEMA:
        np.testing.assert_array_equal(
            to_numpy(column.name, batch.column(column.name)), block.values[column.name][4:9]
        )
    assert batch.equals(block.batch(SCHEMA, 4, 9))


def test_the_batch_survives_ipc_and_gives_the_same_schema() -> None:
    batch = Block(SCHEMA).batch(SCHEMA, 2, 9)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    table = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert Schema.from_arrow(table.schema) == SCHEMA
    assert table.to_batches()[0].equals(batch)


def test_nothing_is_copied_and_nothing_is_writable() -> None:
    block = Block(SCHEMA)
    batch = block.batch(SCHEMA, 2, 9)
    for column, offset in zip(SCHEMA, block.offsets, strict=True):
        array = batch.column(column.name)
        while hasattr(array, "storage"):
            array = array.storage
        if column.shape:
            array = array.flatten()
        if hasattr(array, "storage"):
            array = array.storage
        buffer = array.buffers()[1]
        view = array.to_numpy(zero_copy_only=True)
        assert buffer.address == block.address + offset + 2 * column.row_bytes
        assert view.ctypes.data == buffer.address
        assert not buffer.is_mutable
        assert not view.flags.writeable


def test_a_block_is_seen_live() -> None:
    schema = Schema((Column("x", np.dtype("i4")),))
    block = Block(schema)
    view = block.batch(schema)["x"].to_numpy(zero_copy_only=True)
    ctypes.memmove(block.address, np.int32(-5).tobytes(), 4)
    assert view[0] == -5


VIEWS: dict[str, Callable[[Any], object]] = {
    "batch": lambda batch: batch,
    "column": lambda batch: batch["b"],
    "slice": lambda batch: batch.slice(2, 3),
    "numpy": lambda batch: batch["n"].to_numpy(zero_copy_only=True),
    "numpy slice": lambda batch: to_numpy("x", batch["x"])[2:, 1],
    "buffer": lambda batch: batch["n"].buffers()[1].slice(8),
    "tensor": lambda batch: batch["x"].to_numpy_ndarray(),
}


@pytest.mark.parametrize("keep", VIEWS)
def test_the_owner_lives_as_long_as_any_view(keep: str) -> None:
    schema = Schema(
        (Column("x", np.dtype("f4"), (3, 4)), Column("n", np.dtype("i8")), Column("b", np.dtype("?")))
    )
    block = Block(schema)
    alive = weakref.ref(block)
    batch = block.batch(schema, 1, 9)
    view = VIEWS[keep](batch)
    del block, batch
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_an_empty_batch_and_its_numpy_views_free_the_owner_too() -> None:
    block = Block(SCHEMA)
    alive = weakref.ref(block)
    batch = block.batch(SCHEMA, 4, 4)
    del block
    assert alive() is not None
    del batch
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, ROWS + 1), (12, 12)])
def test_rows_outside_the_block_are_refused(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match=rf"rows \[{start}, {stop}\) are outside a block of 11 rows"):
        Block(SCHEMA).batch(SCHEMA, start, stop)


# ---------------------------------------------------------------- Arrow -> NumPy


def test_sliced_tensors() -> None:  # C56
    kind = pa.fixed_shape_tensor(pa.float32(), [3, 4])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(1200, dtype="f4")), 12)
    rows = pa.ExtensionArray.from_storage(kind, storage)
    for two in (rows[2:4], pa.chunked_array([rows])[2:4], pa.chunked_array([rows[:3], rows[3:]])[2:4]):
        outer, inner = to_numpy("x", two), to_numpy("x", two[1:])
        assert (outer.shape, outer[0, 0, 0], outer.sum()) == ((2, 3, 4), 24, 852)
        assert (inner.shape, inner[0, 0, 0], inner.sum()) == ((1, 3, 4), 36, 498)


def test_sliced_bools() -> None:  # C57
    done = [True, False, True, True, False, False, False, False, True]
    packed = pa.array(done)
    bytewise = pa.ExtensionArray.from_storage(pa.bool8(), pa.array(np.array(done, "i1")))
    for array in (packed, bytewise, pa.chunked_array([packed[:4], packed[4:]])):
        assert to_numpy("x", array).tolist() == done
        assert to_numpy("x", array[3:]).tolist() == done[3:]
        assert to_numpy("x", array[3:]).dtype == np.bool_
    other_bytes = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 2, -1], pa.int8()))
    assert to_numpy("x", other_bytes).view(np.uint8).tolist() == [0, 1, 1]


def test_packed_bools_in_fixed_size_lists() -> None:
    rows = pa.array([[True, False, True], [False, False, True], [True, True, False]], pa.list_(pa.bool_(), 3))
    assert to_numpy("x", rows[1:]).tolist() == [[False, False, True], [True, True, False]]


def test_nested_lists() -> None:
    nested = pa.array(np.arange(24).reshape(4, 2, 3).tolist(), pa.list_(pa.list_(pa.int64(), 3), 2))
    np.testing.assert_array_equal(to_numpy("x", nested[1:3]), np.arange(24).reshape(4, 2, 3)[1:3])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [0, 2, 1]])
def test_permuted_tensors_have_their_logical_shape_and_order(order: list[int]) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=order)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(range(48), pa.int32()), 24)
    rows = to_numpy("x", pa.ExtensionArray.from_storage(kind, storage)[1:])
    np.testing.assert_array_equal(rows[0], np.arange(24, 48).reshape(2, 3, 4).transpose(order))
    assert rows.shape[1:] == Schema.from_arrow(pa.schema({"x": kind})).columns[0].shape


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 2, 0]])
def test_permutations_that_writers_disagree_on_are_refused(order: list[int]) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=order)
    with pytest.raises(DtypeMismatch, match="Store them in C order"):
        Schema.from_arrow(pa.schema({"x": kind}))


def test_nulls_are_refused_with_their_row() -> None:  # C61
    rows = pa.array([[0, 0], [1, 2], [3, 4], None, [7, 8]], pa.list_(pa.int32(), 2))
    assert to_numpy("x", rows[1:3]).tolist() == [[1, 2], [3, 4]]
    assert to_numpy("x", rows[4:]).tolist() == [[7, 8]]
    inner = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, None]]], pa.list_(pa.list_(pa.int32(), 2), 2))
    for array, row in (
        (rows[1:], 2),
        (pa.chunked_array([rows[:2], rows[2:]]), 3),
        (pa.array([None, None], pa.list_(pa.int32(), 2)), 0),
        (pa.array([[1, 2], [3, None]], pa.list_(pa.int32(), 2)), 1),
        (inner, 1),
        (pa.array([[[1, 2], None]], pa.list_(pa.list_(pa.int32(), 2), 2)), 0),
        (pa.array([True, None, True])[1:], 0),
        (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8())), 2),
    ):
        with pytest.raises(DtypeMismatch, match=f"column 'x': row {row} is or holds a null"):
            to_numpy("x", array)


def test_types_without_a_fixed_width_are_refused_even_when_empty() -> None:
    for array in (
        pa.array(["a"]),
        pa.array([[1]]),
        pa.array([], pa.string()),
        pa.chunked_array([], pa.binary()),
    ):
        with pytest.raises(DtypeMismatch, match="has no fixed-width NumPy form"):
            to_numpy("x", array)


def test_no_chunks_keep_shape_and_dtype() -> None:  # C63
    for data in (pa.chunked_array([], pa.list_(pa.float32(), 3)), pa.array([], pa.list_(pa.float32(), 3))):
        rows = to_numpy("x", data)
        assert rows.shape == (0, 3)
        assert rows.dtype == np.float32


# ---------------------------------------------------------------- tables

PAIR = Schema((Column("obs", np.dtype("f4"), (2,)), Column("done", np.dtype("?"))))


def test_columns_of_batches_and_tables() -> None:
    table = pa.table(
        {
            "done": pa.array([True, False, True]),
            "obs": pa.array([[0, 1], [2, 3], [4, 5]], pa.list_(pa.float32(), 2)),
        }
    )
    chunked = pa.concat_tables([table[:1], table[1:]])
    for data in (table, chunked, table.to_batches()[0], table.to_batches()[0].slice(0)):
        columns = record_batch_columns(data, PAIR)
        assert list(columns) == ["obs", "done"]
        assert columns["obs"].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert columns["done"].tolist() == [True, False, True]
    assert record_batch_columns(table.slice(1, 1), PAIR)["obs"].tolist() == [[2, 3]]
    assert record_batch_columns(table.schema.empty_table(), PAIR)["obs"].shape == (0, 2)


def test_a_block_reads_back_as_columns() -> None:
    block = Block(SCHEMA)
    columns = record_batch_columns(block.batch(SCHEMA, 3, 9).slice(1), SCHEMA)
    for name, values in block.values.items():
        np.testing.assert_array_equal(columns[name], values[4:9])
        assert math.prod(columns[name].shape) == math.prod(values[4:9].shape)


def test_missing_unknown_and_doubled_columns_are_refused() -> None:
    obs, done = pa.array([[0.0, 1.0]], pa.list_(pa.float32(), 2)), pa.array([True])
    with pytest.raises(MissingColumn, match="no column 'obs' in the Arrow data, which has done"):
        record_batch_columns(pa.table({"done": done}), PAIR)
    with pytest.raises(
        UnknownColumn, match="column 'extra' of the Arrow data is not in the schema, which has obs, done"
    ):
        record_batch_columns(pa.table({"done": done, "obs": obs, "extra": done}), PAIR)
    with pytest.raises(SchemaError, match="'done' is in the Arrow data 2 times"):
        record_batch_columns(pa.table([obs, done, done], ["obs", "done", "done"]), PAIR)
