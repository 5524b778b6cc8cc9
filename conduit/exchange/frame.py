"""The one form that rows have on their way out and in: Arrow tables of steps, with what links them to episodes.

    episode: int64        number of the episode, from 0 in each export       } tables of episodes
    step: int64           number of the row in its episode, from 0. Where   }
                          rows before it have been evicted: as the table
                          numbers it for windows with a period, else from 1
    <columns>             as in the schema; bools as Arrow bools, shapes as fixed-shape tensors; nulls as nulls
    final_obs[/...]       null but where the episode stops: the observation that its last step led to
    priority: float32     as given to update_priorities; null where it was not given yet    } prioritized tables

A final observation is no row of its own here, so that whoever counts rows or averages rewards need not know of it.
Readers that know no tensors see lists. The schema stands in the metadata as well, for what a format cannot say itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from conduit.spec import TableSpec
from conduit_store.arrays import Array
from conduit_store.arrow import arrow_type, column_of_field, to_numpy, with_nulls
from conduit_store.column import VALID, shown
from conduit_store.errors import ExchangeError, MissingColumn, SchemaError, ShapeMismatch
from conduit_store.schema import Column, Schema

__all__ = [
    "FINAL", "NEXT", "PRIORITY", "STEPS", "Frame", "arrow_array", "as_stored", "check_rename", "free_name", "named",
    "outer",
]  # fmt: skip

FINAL = "final_"  # final_obs, final_obs/camera
NEXT = "next_"
PRIORITY = "priority"
STEPS = 1 << 32  # of an episode, as many as the core can number
_METADATA = b"conduit"
_VERSION = 1


@dataclass(frozen=True)
class Frame:
    """Which columns of an Arrow table are a table's own and which say how rows belong together.

    `episode` and `step`: the names of those two columns, where there are any.
    `own`: written by `table.export`, which leaves out final observations that nobody has. `export`: which export, where
    that is known: episode numbers of another one are of other episodes.
    """

    schema: Schema
    episode: str | None = None
    step: str | None = None
    prioritized: bool = False
    own: bool = False
    export: str | None = None

    @classmethod
    def of_table(cls, spec: TableSpec, schema: Schema) -> Frame:
        """Return the frame of a table's rows; `schema`: the table's, with the categories that there are."""
        episode, step = (free_name(name, spec.schema) if spec.episodic else None for name in ("episode", "step"))
        return cls(schema, episode, step, prioritized=spec.prioritized, own=True, export=uuid4().hex)

    @classmethod
    def of_arrow(cls, schema: pa.Schema, wanted: Schema | None, path: object, rename: Mapping[str, str]) -> Frame:
        """Return the frame of Arrow data: as its metadata says, else by the names of its columns.

        `rename`: other names that its columns are to have. `wanted`: the columns that the rows are for; all that have
        no other role if None.

        Raises:
            MissingColumn: one that is wanted is not there.
            SchemaError, DtypeMismatch, ShapeMismatch: see Schema.from_arrow.
            ExchangeError: metadata of Conduit that cannot be read.
        """
        if not isinstance(wanted, Schema | None):
            raise SchemaError(f"schema is {shown(wanted)}: give a conduit.Schema")
        told = _told(schema, path)
        if told is not None:
            told = told._renamed(rename)
        schema = named(schema, rename)
        names = schema.names
        if told is not None and (wanted is None or wanted == told.schema):
            lacking = [column.name for column in told.schema.valued if column.name not in names]
            if lacking:
                raise MissingColumn(f"{path} lacks {', '.join(lacking)}, which its own metadata names. Write it again")
            episode, step = (name if name in names else None for name in (told.episode, told.step))
            return cls(told.schema, episode, step, prioritized=PRIORITY in names, own=True, export=told.export)
        if wanted is not None:
            lacking = [column.name for column in wanted.valued if column.name not in names]
            if lacking:
                raise MissingColumn(
                    f"{path} has no column {', '.join(lacking)}; it has {', '.join(names)}. Rename those that are "
                    f"meant: rename={{'observations': 'obs'}}"
                )
            kept = wanted
        else:
            kept = _found(schema)
        taken = set(kept.names)
        episode, step = (name if name in names and name not in taken else None for name in ("episode", "step"))
        export = None if told is None else told.export
        return cls(kept, episode, step, prioritized=PRIORITY in names, own=told is not None, export=export)

    def _renamed(self, rename: Mapping[str, str]) -> Frame:
        columns = tuple(replace(column, name=rename.get(column.name, column.name)) for column in self.schema.valued)
        links = [None if name is None else rename.get(name, name) for name in (self.episode, self.step)]
        return replace(self, schema=Schema(columns), episode=links[0], step=links[1])

    @cached_property
    def episodic(self) -> bool:
        """Whether rows may belong to episodes."""
        return self.schema.is_episodic

    @cached_property
    def finals(self) -> dict[str, Column]:
        """The columns of final observations, by name: columns of `obs`."""
        return {FINAL + column.name: column for column in self.schema.obs} if self.episodic else {}

    @cached_property
    def following(self) -> dict[str, Column]:
        """Columns that hold the next observation of every row, which other libraries write instead."""
        return {NEXT + column.name: column for column in self.schema.obs} if self.episodic else {}

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema of what is exported."""
        fields = [pa.field(name, pa.int64(), nullable=False) for name in (self.episode, self.step) if name is not None]
        fields += [
            pa.field(column.name, _outer_type(column), nullable=column.nullable) for column in self.schema.valued
        ]
        if self.episode is not None:
            fields += [pa.field(name, _outer_type(column)) for name, column in self.finals.items()]
        if self.prioritized:
            fields.append(pa.field(PRIORITY, pa.float32()))
        told = {
            "version": _VERSION,
            "schema": json.loads(self.schema.to_json()),
            "episode": self.episode,
            "step": self.step,
            "export": self.export,
        }
        return pa.schema(fields, {_METADATA: json.dumps(told).encode()})

    def columns_to_read(self, names: Iterable[str]) -> list[str]:
        """Return those of `names` that an import looks at."""
        links = {self.episode, self.step, PRIORITY, *self.finals, *self.following}
        return [name for name in names if name in self.schema or name in links]


def free_name(name: str, schema: Schema) -> str:
    """Return `name`, or with underscores behind it, so that no column has it."""
    while name in schema:
        name += "_"
    return name


def _told(schema: pa.Schema, path: object) -> Frame | None:
    """What `table.export` has written into the metadata."""
    text = (schema.metadata or {}).get(_METADATA)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        if fields["version"] != _VERSION:
            raise ExchangeError(
                f"{path} is of version {fields['version']} of this format, known is {_VERSION}. Use a newer conduit-edp"
            )
        links = [fields[what] for what in ("episode", "step", "export")]
        if not all(name is None or isinstance(name, str) for name in links):
            raise TypeError(f"links {links}")
        return Frame(Schema.from_json(json.dumps(fields["schema"])), links[0], links[1], export=links[2])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ExchangeError):
            raise
        raise ExchangeError(f"{path}: its metadata of Conduit cannot be read ({error}). The file is damaged") from error


def _found(schema: pa.Schema) -> Schema:
    """The columns of a table for Arrow data of others: all fields that have no other role."""
    roles = {PRIORITY, "__index_level_0__"}  # the latter is what pandas calls its index
    finals = FINAL + "obs"
    fields = [f for f in schema if f.name not in roles and f.name != finals and not f.name.startswith(finals + "/")]
    names = {field.name for field in fields}
    columns = (column_of_field(field) for field in fields)
    plain = Schema(tuple(replace(column, nullable=column.name + VALID in names) for column in columns))
    if not plain.is_episodic:
        return plain
    return Schema(tuple(column for column in plain if column.name not in ("episode", "step")))


def _outer_type(column: Column) -> pa.DataType:
    """The type that others know: bool8 is known to few."""
    return arrow_type(column, pa.bool_())


def outer(array: pa.Array) -> pa.Array:
    """Return a block's array in the type that others know."""
    kind = array.type
    if pa.types.is_large_list(kind):
        first = array.offsets[0].as_py()
        values = outer(array.values.slice(first, array.offsets[-1].as_py() - first))
        made = pa.large_list(pa.field("item", values.type, nullable=False))
        whole = pa.LargeListArray.from_arrays(pa.array(array.offsets.to_numpy() - first), values, type=made)
        return with_nulls(whole, _valid(array)) if array.null_count else whole
    if isinstance(kind, pa.Bool8Type):
        return array.cast(pa.bool_())
    if isinstance(kind, pa.FixedShapeTensorType) and isinstance(kind.value_type, pa.Bool8Type):
        size = array.storage.type.list_size  # `values` has those of null rows too, and all of a slice's parent
        flat = array.storage.values.slice(array.storage.offset * size, len(array) * size).cast(pa.bool_())
        nulls = array.is_null() if array.null_count else None
        storage = pa.FixedSizeListArray.from_arrays(flat, size, mask=nulls)
        return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.bool_(), list(kind.shape)), storage)
    return array


def arrow_array(column: Column, values: Array, nulls: Array | None = None) -> pa.Array:
    """Return rows of a column as an Arrow array of the exported type; null where `nulls` (bool (n,)) says so."""
    if column.categorical:
        numbers = pa.array(np.ascontiguousarray(values), pa.int32(), mask=nulls)
        return pa.DictionaryArray.from_arrays(numbers, pa.array(column.values, pa.string()))
    kind = _outer_type(column)
    flat = np.ascontiguousarray(values).reshape(-1)
    if column.dtype.kind in "mM":  # as integers: a NaT is a value here, and pyarrow would make a null of it
        flat = pa.array(flat.view(np.int64), mask=None if column.shape else nulls).view(
            pa.from_numpy_dtype(column.dtype)
        )
    else:
        flat = pa.array(flat, mask=None if column.shape else nulls)
    if not column.shape:
        return flat
    storage = pa.FixedSizeListArray.from_arrays(
        flat, int(np.prod(column.shape)), mask=None if nulls is None else pa.array(nulls)
    )
    return pa.ExtensionArray.from_storage(kind, storage)


def as_stored(column: Column, data: pa.Array | pa.ChunkedArray) -> Array:
    """Return Arrow values as rows of `column`, where a format or another library has kept them in another form.

    Parquet has no seconds and keeps milliseconds. DuckDB and Polars make lists of tensors: they are taken where each
    has as many numbers as a row.

    Raises:
        DtypeMismatch: nulls, or not numbers. ShapeMismatch: a list of another length, with its row.
    """
    if isinstance(data.type, pa.ExtensionType):  # of another library, as Ray's tensors: what lies below
        chunks = data.chunks if isinstance(data, pa.ChunkedArray) else [data]
        data = pa.chunked_array([chunk.storage for chunk in chunks], data.type.storage_type)
    values = to_numpy(column.name, data) if not _is_list(data.type) else _rows_of_lists(column, data)
    if column.shape and values.shape == (len(data), int(np.prod(column.shape))):
        values = values.reshape(len(data), *column.shape)
    if values.dtype.kind in "mM" and values.dtype.kind == column.dtype.kind and values.dtype != column.dtype:
        exact = values.astype(column.dtype)
        same = (exact.astype(values.dtype) == values) | np.isnat(values)
        if same.all():
            return exact
    return values


def _valid(data: pa.Array | pa.ChunkedArray) -> Array:
    valid: Array = data.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _rows_of_lists(column: Column, data: pa.Array | pa.ChunkedArray) -> Array:
    """Open lists, nested ones too, each with as many numbers as a row of the column."""
    array = data.combine_chunks() if isinstance(data, pa.ChunkedArray) else data
    size = int(np.prod(column.shape))
    flat, counts = array, np.ones(len(array), np.int64)
    while _is_list(flat.type):
        lengths = flat.value_lengths().fill_null(0).to_numpy()
        whole = len(lengths) > 0 and (counts > 0).all()
        counts = np.add.reduceat(lengths, np.cumsum(counts) - counts) if whole else counts * 0
        flat = flat.flatten()
    values = to_numpy(column.name, flat)
    counts = counts * int(np.prod(values.shape[1:]))  # where elements have a shape of their own
    if (odd := np.flatnonzero(counts != size)).size:
        raise ShapeMismatch(
            f"column {column.name!r} has {size} numbers a row, and the list of row {odd[0]} has {counts[odd[0]]}"
        )
    return values.reshape(len(array), size)


def check_rename(rename: Mapping[str, str] | None, names: Iterable[str], path: object) -> dict[str, str]:
    """Return new names by old ones, checked.

    Raises:
        MissingColumn: a column that is not there. SchemaError: two columns with the same name.
    """
    given = dict(rename or {})
    there = list(names)
    lacking = [name for name in given if name not in there]
    if lacking:
        raise MissingColumn(f"rename names {', '.join(lacking)}; {path} has {', '.join(there)}")
    after = [given.get(name, name) for name in there]
    twice = sorted({name for name in after if after.count(name) > 1})
    if twice:
        raise SchemaError(f"after rename {path} has {', '.join(twice)} more than once. Give each name once")
    return given


def named(table: Any, rename: Mapping[str, str]) -> Any:
    """Return an Arrow table, batch or schema with new names."""
    if not rename:
        return table
    if isinstance(table, pa.Schema):
        return pa.schema([f.with_name(rename.get(f.name, f.name)) for f in table], table.metadata)
    return table.rename_columns([rename.get(name, name) for name in table.schema.names])
