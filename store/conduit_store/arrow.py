"""Columns as Arrow data: blocks as zero-copy record batches, Arrow data as NumPy arrays, types both ways.

The only file that imports pyarrow, so it is itself imported by the functions that need it. Three of pyarrow's
traps decide its shape: `FixedSizeListArray.values` ignores a slice's offset and `flatten` drops null rows, so
nulls are refused first and `flatten` is used; packed bits cannot be viewed, so blocks hold arrow.bool8;
`to_numpy_ndarray` of a tensor refuses bool8 and times, so tensors are opened here, level by level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .arrays import Array
from .column import VALID, Column
from .errors import DtypeMismatch, MissingColumn, MissingExtra, SchemaError, ShapeMismatch, UnknownColumn
from .native import native
from .ragged import Ragged
from .scalars import null_error
from .schema import Schema

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingExtra("Arrow data needs pyarrow, which is not installed. Run `pip install pyarrow`") from error

if TYPE_CHECKING:
    from .layout import BlockLayout

__all__ = [
    "CategoryValues", "arrow_type", "block_to_arrow", "column_of_field", "ragged_chunks", "record_batch_columns",
    "schema_to_arrow", "steps_within", "to_numpy", "with_nulls",
]  # fmt: skip


class CategoryValues(Protocol):
    """The values of a column of categories, by their numbers."""

    def to_arrow(self) -> pa.Array: ...


def block_to_arrow(
    schema: Schema,
    layout: BlockLayout,
    address: int,
    start: int,
    stop: int,
    owner: object,
    starts: Sequence[int] = (),
    *,
    shared: bool = False,
    own_offsets: bool = False,
    stored: bool = False,
    categories: Mapping[str, CategoryValues] | None = None,
) -> pa.RecordBatch:
    """Return rows [start, stop) of the block at `address` as a record batch over that very memory.

    Column i lies at `address + layout.offsets[i]`, `layout.rows` rows long. Where rows vary in length these are their
    offsets, and `starts` says for one such column after the other where its elements begin. The batch is read-only, and
    it, its slices and the NumPy arrays made from it without a copy hold `owner` alive: what keeps the memory
    mapped and unchanged belongs there. Copies nothing but mutable columns, where the memory is `shared` with others who
    may rewrite them, which rows of nullable columns are null (a byte a row there, a bit here), and with `own_offsets`
    those: of a block that may be reused while it is read, so that sizes stay. `stored`: validity columns come by
    themselves instead, and nothing is null; categories as their numbers. `categories`: the values of columns of such,
    which become dictionary arrays. Never blocks.

    Raises:
        IndexError: not 0 <= start <= stop <= layout.rows.
    """
    if not 0 <= start <= stop <= layout.rows:
        raise IndexError(f"rows [{start}, {stop}) are outside a block of {layout.rows} rows. Ask for rows within it")
    arrow_schema = schema_to_arrow(schema, stored=stored)
    arrays: list[pa.Array] = []
    elements = iter(starts)
    rows = stop - start
    valid: dict[str, pa.Array] = {}
    for column, offset in zip(schema.columns, layout.offsets, strict=True):
        at, kept = address + offset + start * column.row_bytes, owner
        if shared and column.mutable:
            kept = np.frombuffer(native.copy_scalars(at, rows, column.row_bytes), np.uint8)
            at = kept.ctypes.data
        if column.values_name is not None and not stored:  # stands before its column, see Schema
            valid[column.values_name] = _bits(at, rows * math.prod(column.shape))
            continue
        bits = valid.get(column.name)
        steps = None if stored else _steps(schema, column)
        one, n = (column, rows) if steps is None else (_of_step(column), rows * steps)
        kind = _stored_type(one) if stored else arrow_type(one)
        if column.categorical and not stored:
            values = (categories or {})[column.name].to_arrow()
            array = _foreign_categories(one, kind, at, n, kept, bits, values)
        elif column.ragged:
            array = _foreign_rows(one, kind, at, n, address + next(elements), kept, bits, own_offsets)
        else:
            array = _foreign_array(one, kind, at, n, kept, bits)
        if steps is not None:
            array = pa.Array.from_buffers(_listed(array.type, column, steps), rows, [None], children=[array])
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _bits(address: int, rows: int) -> pa.Buffer:
    """Bytes of bools at an address, as bits of a validity bitmap."""
    valid = np.frombuffer(pa.foreign_buffer(address, rows), np.bool_)
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def with_nulls(array: pa.Array, valid: Array) -> pa.Array:
    """Return an array without nulls as one that is null where `valid`, bool (n,), is False."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, with_nulls(array.storage, valid))
    if array.offset:
        array = pa.concat_arrays([array])
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_fixed_size_list(array.type):
        children = [array.values]
    else:
        children = [array.values] if _is_list(array.type) else []
    buffers = [bits, *array.buffers()[1 : array.type.num_buffers]]
    return pa.Array.from_buffers(array.type, len(array), buffers, children=children)


def steps_within(lists: pa.FixedSizeListArray, mask: Array) -> pa.FixedSizeListArray:
    """Return lists of categories, one a step, that are also null where `mask`, bool (rows, steps), is False."""
    words = lists.values
    valid = mask.ravel() & words.is_valid().to_numpy(zero_copy_only=False)
    words = pa.DictionaryArray.from_arrays(with_nulls(words.indices, valid), words.dictionary, safe=False)
    kind = pa.list_(pa.field("item", words.type), mask.shape[1])
    return pa.Array.from_buffers(kind, len(lists), [None], children=[words])


def record_batch_columns(data: pa.RecordBatch | pa.Table, schema: Schema) -> dict[str, Any]:
    """Return the columns of `data` as arrays of shape (rows, ...), by name and in the schema's order.

    Where rows of the schema vary in length, may be null or are categories, as they are: who stores them takes them so.

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
    missing = [column.name for column in schema.valued if column.name not in names]
    if missing:
        raise MissingColumn(
            f"no column {missing[0]!r} in the Arrow data, which has {', '.join(names)}. Add {', '.join(missing)}"
        )
    return {
        column.name: data.column(column.name)
        if column.ragged or column.nullable or column.categorical
        else to_numpy(column.name, data.column(column.name))
        for column in schema.columns
        if column.name in names
    }


def to_numpy(name: str, data: pa.Array | pa.ChunkedArray) -> Array:
    """Return Arrow values as an array of shape (rows, ...), without a copy where their memory allows it.

    `name` is for messages. Also right where pyarrow's own conversions are not: tensors of bool8 and of times.

    Raises:
        DtypeMismatch: a null, with its row; or a type without a fixed width.
    """
    if pa.types.is_dictionary(data.type):
        data = data.cast(data.type.value_type)
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


def column_of_field(field: pa.Field, mean_length: float | None = None) -> Column:
    """Return the column that holds values of an Arrow field.

    Raises:
        DtypeMismatch: a type without a fixed width, or one that NumPy cannot hold exactly.
        SchemaError, ShapeMismatch: a name or shape that no column has.
    """
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if kind is not field.type and _text_of(kind) == "string" and mean_length is None:
        return Column(field.name, "category")
    if (text := _text_of(kind)) is not None:
        return Column(field.name, text, mean_length=mean_length)
    if _is_list(kind):
        dtype, shape = _numpy_type(field.name, kind.value_type)
        return Column(field.name, dtype, (None, *shape), mean_length=mean_length)
    dtype, shape = _numpy_type(field.name, kind)
    return Column(field.name, dtype, shape, mean_length=mean_length)


def schema_to_arrow(schema: Schema, *, stored: bool = False) -> pa.Schema:
    """Return the Arrow schema of a block, see `Schema.to_arrow`; `stored`: as `block_to_arrow` says."""
    if stored:
        return pa.schema([pa.field(column.name, _stored_type(column), nullable=False) for column in schema.columns])
    fields: list[pa.Field] = []
    for column in schema.valued:
        steps = _steps(schema, column)
        if steps is None:
            fields.append(pa.field(column.name, arrow_type(column), nullable=column.nullable))
        else:
            fields.append(pa.field(column.name, _listed(arrow_type(_of_step(column)), column, steps), nullable=False))
    return pa.schema(fields)


def _steps(schema: Schema, column: Column) -> int | None:
    """In batches of windows of several steps: how many of a column lie in a list, each null or as long as it is."""
    if column.nullable and (shape := schema.column(column.name + VALID).shape):
        return int(shape[0])
    return column.places


def _of_step(column: Column) -> Column:
    return replace(column, places=None) if column.ragged else replace(column, shape=column.shape[1:])


def _listed(kind: pa.DataType, column: Column, steps: int) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=column.nullable), steps)


def ragged_chunks(name: str, data: pa.Array | pa.ChunkedArray) -> list[Ragged]:
    """Return Arrow lists (of any width, views too) or text as Ragged, one for each chunk.

    Elements are not copied, however many there are, but for those of dictionaries, which are decoded, and of lists that
    are views. Arrays of rows that are equally long will do.

    Raises:
        DtypeMismatch: a null, with its row; or elements that no column holds.
    """
    chunks = data.chunks if isinstance(data, pa.ChunkedArray) else [data]
    found: list[Ragged] = []
    row = 0
    for chunk in chunks:
        found.append(_rows_of(name, chunk, row))
        row += len(chunk)
    return found or [_rows_of(name, pa.nulls(0, data.type), 0)]


def _rows_of(name: str, array: pa.Array, first_row: int) -> Ragged:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        raise null_error(name, first_row + int(array.is_null().to_numpy(zero_copy_only=False).argmax()))
    text = _text_of(array.type)
    if text is not None:
        array = array.cast(pa.large_string() if text == "string" else pa.large_binary())
        _, ends, elements = array.buffers()
        offsets = _int64(ends, array.offset, len(array))
        values = np.frombuffer(elements, np.uint8) if elements is not None else np.empty(0, np.uint8)
        return Ragged(values, offsets, text=text)
    if not _is_list(array.type):
        rows = to_numpy(name, array)
        if rows.ndim < 2:
            raise DtypeMismatch(f"column {name!r}: rows vary in length, Arrow type {array.type} has none. Give lists")
        flat = rows.reshape(-1, *rows.shape[2:])
        return Ragged(flat, np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1])
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        first, elements = 0, array.flatten()
        offsets = np.append(0, np.cumsum(array.value_lengths().to_numpy(zero_copy_only=False))).astype(np.int64)
    else:  # `offsets` are the slice's, `values` the parent's
        offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
        first = int(offsets[0])
        elements = array.values.slice(first, int(offsets[-1]) - first)
    try:
        values = _array_to_numpy(name, elements, 0)
    except DtypeMismatch:
        if not elements.null_count:
            raise
        at = int(elements.is_null().to_numpy(zero_copy_only=False).argmax())
        raise null_error(name, first_row + int(np.searchsorted(offsets, first + at, side="right")) - 1) from None
    return Ragged(values, offsets - first)


def _int64(buffer: pa.Buffer | None, offset: int, n: int) -> Array:
    if buffer is None or buffer.size == 0:
        return np.zeros(1, np.int64)
    return np.frombuffer(buffer, np.int64, n + 1, offset * 8)


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind)
    )


def _text_of(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    return None


def _foreign_rows(
    column: Column,
    kind: pa.DataType,
    offsets: int,
    rows: int,
    elements: int,
    owner: object,
    bits: pa.Buffer | None,
    own: bool,
) -> pa.Array:
    ends = pa.foreign_buffer(offsets, (rows + 1) * 8, base=owner)
    if own:
        ends = pa.py_buffer(bytes(ends))
    ends_of = np.frombuffer(ends, np.int64)
    first = int(ends_of[0])
    total = int(ends_of[-1]) - first
    if first > 0:  # offsets from 0 on, so that the elements of rows before these are no part of it
        ends = pa.py_buffer(ends_of - first)
        elements += first * column.element_bytes
    if column.text is not None:
        return pa.Array.from_buffers(kind, rows, [bits, ends, pa.foreign_buffer(elements, total, base=owner)])
    values = _foreign_array(column.elements, kind.value_type, elements, total, owner)
    return pa.Array.from_buffers(kind, rows, [bits, ends], children=[values])


def arrow_type(column: Column, boolean: pa.DataType | None = None) -> pa.DataType:
    """Return the Arrow type of a column's rows; `boolean`: of a bool, arrow.bool8 if None, as blocks have it."""
    if column.categorical:
        words = pa.dictionary(pa.int32(), pa.string())
        return pa.list_(words, math.prod(column.shape)) if column.shape else words
    return _stored_type(column, boolean)


def _stored_type(column: Column, boolean: pa.DataType | None = None) -> pa.DataType:
    if column.text is not None:
        return pa.large_string() if column.text == "string" else pa.large_binary()
    if column.ragged:
        return pa.large_list(pa.field("item", arrow_type(column.elements, boolean), nullable=False))
    value_type = (boolean or pa.bool8()) if column.dtype.kind == "b" else pa.from_numpy_dtype(column.dtype)
    return pa.fixed_shape_tensor(value_type, list(column.shape)) if column.shape else value_type


def _foreign_categories(
    column: Column, kind: pa.DataType, address: int, rows: int, owner: object, bits: pa.Buffer | None, values: pa.Array
) -> pa.Array:
    buffer = pa.foreign_buffer(address, rows * column.row_bytes, base=owner)
    of_numbers = None if column.shape else bits
    numbers = pa.Array.from_buffers(pa.int32(), rows * math.prod(column.shape), [of_numbers, buffer])
    words = pa.DictionaryArray.from_arrays(numbers, values, safe=False)
    return pa.Array.from_buffers(kind, rows, [bits], children=[words]) if column.shape else words


def _foreign_array(
    column: Column, kind: pa.DataType, address: int, rows: int, owner: object, bits: pa.Buffer | None = None
) -> pa.Array:
    buffer = pa.foreign_buffer(address, rows * column.row_bytes, base=owner)
    elements = math.prod(column.shape)
    of_numbers = None if column.shape else bits
    if column.dtype.kind == "b":
        array = pa.ExtensionArray.from_storage(
            pa.bool8(), pa.Array.from_buffers(pa.int8(), rows * elements, [of_numbers, buffer])
        )
    else:
        array = pa.Array.from_buffers(pa.from_numpy_dtype(column.dtype), rows * elements, [of_numbers, buffer])
    if not column.shape:
        return array
    storage = pa.Array.from_buffers(pa.list_(array.type, elements), rows, [bits], children=[array])
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
        "fixed-size list (pa.list_(pa.float32(), n)), to numbers, or leave the column out. Lists, strings and binary "
        "go into columns whose rows vary in length (shape (None, ...))"
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
        raise null_error(name, row)
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
