"""Columns as Arrow data: blocks as zero-copy record batches, Arrow data as NumPy arrays, types both ways.

The only file that imports pyarrow, so it is itself imported by the functions that need it. Three of pyarrow's
traps decide its shape: `FixedSizeListArray.values` ignores a slice's offset and `flatten` drops null rows, so
nulls are refused first and `flatten` is used; packed bits cannot be viewed, so blocks hold arrow.bool8;
`to_numpy_ndarray` of a tensor refuses bool8 and times, so tensors are opened here, level by level.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Array
from .column import Column
from .errors import DtypeMismatch, MissingColumn, MissingExtra, SchemaError, ShapeMismatch, UnknownColumn
from .schema import Schema

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingExtra("Arrow data needs pyarrow, which is not installed. Run `pip install pyarrow`") from error

if TYPE_CHECKING:
    from .layout import BlockLayout

__all__ = ["block_to_arrow", "column_of_field", "record_batch_columns", "schema_to_arrow", "to_numpy"]


def block_to_arrow(
    schema: Schema, layout: BlockLayout, address: int, start: int, stop: int, owner: object
) -> pa.RecordBatch:
    """Return rows [start, stop) of the block at `address` as a record batch over that very memory.

    Column i lies at `address + layout.offsets[i]`, `layout.rows` rows long. The batch is read-only, and it,
    its slices and the NumPy arrays made from it without a copy hold `owner` alive: what keeps the memory
    mapped and unchanged belongs there. Copies nothing and never blocks.

    Raises:
        IndexError: not 0 <= start <= stop <= layout.rows.
    """
    if not 0 <= start <= stop <= layout.rows:
        raise IndexError(f"rows [{start}, {stop}) are outside a block of {layout.rows} rows. Ask for rows within it")
    arrow_schema = schema.to_arrow()
    arrays = [
        _foreign_array(column, field.type, address + offset + start * column.row_bytes, stop - start, owner)
        for column, field, offset in zip(schema.columns, arrow_schema, layout.offsets, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def record_batch_columns(data: pa.RecordBatch | pa.Table, schema: Schema) -> dict[str, Array]:
    """Return the columns of `data` as arrays of shape (rows, ...), by name and in the schema's order.

    Dtypes are those of `data`: `values.as_rows` decides whether they fit. Slices, chunks, fixed-size lists,
    fixed-shape tensors, packed bools and bool8 give the rows that Arrow shows. Views where possible, else
    copies.

    Raises:
        MissingColumn, UnknownColumn: the names are not the schema's. SchemaError: a name is there twice.
        DtypeMismatch: a null, with its row, or a type without a fixed width.
    """
    names: list[str] = data.schema.names
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"column {name!r} is in the Arrow data {names.count(name)} times. Give each name once")
        if name not in schema:
            raise UnknownColumn(
                f"column {name!r} of the Arrow data is not in the schema, which has {', '.join(schema.names)}. Drop it"
            )
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise MissingColumn(
            f"no column {missing[0]!r} in the Arrow data, which has {', '.join(names)}. Add {', '.join(missing)}"
        )
    return {name: to_numpy(name, data.column(name)) for name in schema.names}


def to_numpy(name: str, data: pa.Array | pa.ChunkedArray) -> Array:
    """Return Arrow values as an array of shape (rows, ...), without a copy where their memory allows it.

    `name` is for messages. Also right where pyarrow's own conversions are not: tensors of bool8 and of times.

    Raises:
        DtypeMismatch: a null, with its row; or a type without a fixed width.
    """
    dtype, shape = _numpy_type(name, data.type)
    if not isinstance(data, pa.ChunkedArray):
        return _array_to_numpy(name, data, 0)
    chunks: list[Array] = []
    row = 0
    for chunk in data.chunks:
        chunks.append(_array_to_numpy(name, chunk, row))
        row += len(chunk)
    if not chunks:
        return np.empty((0, *shape), dtype)
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def column_of_field(field: pa.Field) -> Column:
    """Return the column that holds values of an Arrow field.

    Raises:
        DtypeMismatch: a type without a fixed width, or one that NumPy cannot hold exactly.
        SchemaError, ShapeMismatch: a name or shape that no column has.
    """
    dtype, shape = _numpy_type(field.name, field.type)
    return Column(field.name, dtype, shape)


def schema_to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a block; see `Schema.to_arrow`."""
    return pa.schema([pa.field(column.name, _arrow_type(column), nullable=False) for column in schema.columns])


def _arrow_type(column: Column) -> pa.DataType:
    value_type = pa.bool8() if column.dtype.kind == "b" else pa.from_numpy_dtype(column.dtype)
    return pa.fixed_shape_tensor(value_type, list(column.shape)) if column.shape else value_type


def _foreign_array(column: Column, kind: pa.DataType, address: int, rows: int, owner: object) -> pa.Array:
    buffer = pa.foreign_buffer(address, rows * column.row_bytes, base=owner)
    elements = math.prod(column.shape)
    if column.dtype.kind == "b":
        array = pa.ExtensionArray.from_storage(
            pa.bool8(), pa.Array.from_buffers(pa.int8(), rows * elements, [None, buffer])
        )
    else:
        array = pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), rows * elements, [None, buffer])
    if not column.shape:
        return array
    storage = pa.FixedSizeListArray.from_arrays(array, elements)
    return pa.ExtensionArray.from_storage(kind, storage)


def _numpy_type(name: str, kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and row shape of an Arrow type, or refuse it."""
    types = pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        dtype, inner = _numpy_type(name, kind.value_type)
        order = kind.permutation or range(len(kind.shape))
        if any(order[order[axis]] != axis for axis in order):
            # pyarrow 26 writes the inverse of what the format says, and reads it with overlapping strides.
            raise DtypeMismatch(
                f"column {name!r}: tensors of permutation {order} are read differently by different writers. "
                "Store them in C order, without a permutation"
            )
        return dtype, (*(kind.shape[axis] for axis in order), *inner)
    if types.is_fixed_size_list(kind):
        dtype, inner = _numpy_type(name, kind.value_type)
        if kind.list_size < 1:
            raise ShapeMismatch(f"column {name!r}: {kind} has lists of 0 elements. Leave the column out")
        return dtype, (kind.list_size, *inner)
    if isinstance(kind, pa.Bool8Type) or types.is_boolean(kind):
        return np.dtype(np.bool_), ()
    if types.is_timestamp(kind) and kind.tz is not None:
        raise DtypeMismatch(
            f"column {name!r}: {kind} has a time zone, which NumPy cannot keep. Cast to {pa.timestamp(kind.unit)}"
        )
    if types.is_integer(kind) or types.is_floating(kind) or types.is_timestamp(kind) or types.is_duration(kind):
        return np.dtype(kind.to_pandas_dtype()) if not types.is_temporal(kind) else _time_dtype(kind), ()
    raise DtypeMismatch(
        f"column {name!r}: Arrow type {kind} has no fixed-width NumPy form. Cast it, for example to a "
        "fixed-size list (pa.list_(pa.float32(), n)), to numbers, or leave the column out"
    )


def _time_dtype(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(f"{'datetime64' if pa.types.is_timestamp(kind) else 'timedelta64'}[{kind.unit}]")


def _array_to_numpy(name: str, array: pa.Array, first_row: int, per_row: int = 1) -> Array:
    """Open one level of an array: extension -> storage, list -> flattened children, numbers -> NumPy.

    `first_row` and `per_row` (how many of these elements make a row) turn the position of a null into its
    row.
    """
    if array.null_count:
        row = first_row + int(array.is_null().to_numpy(zero_copy_only=False).argmax()) // per_row
        raise DtypeMismatch(
            f"column {name!r}: row {row} is or holds a null, and columns hold none. Fill or drop such rows first"
        )
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        rows = _children_to_numpy(name, array.storage, tuple(kind.shape), first_row, per_row)
        if kind.permutation is None:
            return rows
        inner = range(1 + len(kind.shape), rows.ndim)
        return rows.transpose(0, *(1 + axis for axis in kind.permutation), *inner)
    if pa.types.is_fixed_size_list(kind):
        return _children_to_numpy(name, array, (kind.list_size,), first_row, per_row)
    if isinstance(kind, pa.Bool8Type):
        # A byte of bool8 may be any non-zero value, a byte of a NumPy bool only 1.
        unequal: Array = np.not_equal(_array_to_numpy(name, array.storage, first_row, per_row), 0)
        return unequal
    numbers: Array = array.to_numpy(zero_copy_only=not pa.types.is_boolean(kind))
    return numbers


def _children_to_numpy(name: str, array: pa.Array, shape: tuple[int, ...], first_row: int, per_row: int) -> Array:
    # flatten honours the slice's offset, and has no null rows to drop here.
    values = _array_to_numpy(name, array.flatten(), first_row, per_row * math.prod(shape))
    return values.reshape((len(array), *shape, *values.shape[1:]))
