"""Rows on their way in: names checked, values made contiguous, appended through a native writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit import limiting
from conduit.categories import Categories, categories_of
from conduit.spec import TableSpec
from conduit_store.arrays import Array
from conduit_store.errors import AppendTimeout, ConduitError, ConfigError, MissingColumn, UnknownColumn
from conduit_store.native import native
from conduit_store.nulls import as_nullable, is_null, zero
from conduit_store.ragged import Ragged
from conduit_store.ragged_values import as_ragged
from conduit_store.schema import Column, Schema
from conduit_store.values import as_rows

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "FINAL",
    "FIRST",
    "TERMINATED",
    "TRUNCATED",
    "append",
    "as_column",
    "as_columns",
    "as_values",
    "blank",
    "blocked",
    "buffer",
    "check_names",
    "inserted",
    "joined",
    "kept",
    "last_keys",
    "native_writer",
    "not_prioritized",
    "timed_out",
    "zeros",
]

TERMINATED, TRUNCATED, FINAL, FIRST = 1, 2, 4, 8  # row flags of the core (layout.hpp)


def native_writer(
    core: native.Table, spec: TableSpec, chains: int, categories: Mapping[str, Categories] | None = None
) -> native.Writer:
    """Return a native writer of `chains` independent environments; `categories`: the table's, by column."""
    if categories is None:
        categories = categories_of(core, spec)
    numbers = {name: of.numbers for name, of in categories.items() if not of.column.shape}
    columns = [_as_core_names(column) for column in spec.schema.columns]
    names = spec.schema.names
    ends = [names.index(name) if spec.episodic else -1 for name in ("terminated", "truncated")]
    return native.Writer(core, chains, columns, numbers, ends[0], ends[1])


def _as_core_names(column: Column) -> tuple[str, str, list[int]]:
    if column.ragged:
        kind = "s1" if column.text == "string" else column.dtype.str[1:]
        return column.name, kind, [-1, *column.shape[1:]]
    if column.values_name is not None:
        return column.name, "v1", []
    if column.categorical and not column.shape:
        return column.name, "c4", []
    return column.name, column.dtype.str[1:], list(column.shape)


def as_column(column: Column, value: Any, n: int | None) -> Any:
    """Return `n` rows of a column (any number if None) as `buffer` takes them; see `as_rows` and `as_ragged`."""
    return as_ragged(column, value, n) if column.ragged else as_rows(column, value, n)


def check_names(given: Mapping[str, Any], schema: Schema) -> None:
    """Refuse missing and unknown columns.

    Raises:
        MissingColumn, UnknownColumn: with the names that the schema has.
    """
    missing = [column.name for column in schema.valued if column.name not in given]
    if missing:
        unknown = [name for name in given if name not in schema]
        beside = f", and not {', '.join(unknown)}" if unknown else ""
        raise MissingColumn(f"missing column {', '.join(missing)}; the schema has {', '.join(schema.names)}{beside}")
    if len(given) > len(schema.valued):
        unknown = [name for name in given if name not in schema]
        if unknown:
            raise UnknownColumn(f"unknown column {', '.join(unknown)}; the schema has {', '.join(schema.names)}")


def as_columns(
    schema: Schema, given: Mapping[str, Any], categories: Mapping[str, Categories], n: int | None = None
) -> tuple[dict[str, Any], int]:
    """Return all columns of a schema as `as_column` does, in its order, and how many rows they have.

    Raises:
        DtypeMismatch, ShapeMismatch, ValueOutOfRange: see `as_rows`, `as_ragged` and `as_nullable`.
        CapacityError: see `Categories.encode`.
    """
    made: dict[str, Any] = {}

    def of_column(column: Column, value: Any, rows: int | None) -> Any:
        of = categories.get(column.name)
        return as_column(column, value, rows) if of is None else of.encode(value, rows)

    for column in schema.columns:
        name = column.name
        if column.nullable:
            valid = given.get(column.validity.name)
            made[name], made[column.validity.name] = as_nullable(column, given[name], n, valid, of_column)
        elif column.values_name is not None:  # keeps its place, before its column
            made[name] = None
            continue
        else:
            made[name] = of_column(column, given[name], n)
        n = len(made[name])
    assert n is not None
    return made, n


def as_values(schema: Schema, given: Mapping[str, Any], categories: Mapping[str, Categories]) -> Mapping[str, Any]:
    """Return one row's values: categories as numbers, of nullable columns zeros where null, and whether it is not."""
    if not schema.nullable and not categories:
        return given
    whole = dict(given)
    for column in schema.nullable:
        valid = not is_null(given[column.name]) and bool(given.get(column.validity.name, True))
        whole[column.validity.name] = valid
        if not valid:
            whole[column.name] = zero(column)
    for name, of in categories.items():
        if name in schema and whole.get(name) is given.get(name):
            whole[name] = of.encode_row(given[name])
    return whole


def buffer(value: Any) -> Any:
    """Return what the core can read bytes from: times have no buffer protocol, their integers do.

    Rows that vary in length are a list of buffers already, or (elements, offsets).
    """
    if isinstance(value, np.ndarray):
        return value.view(np.int64) if value.dtype.kind in "mM" else value
    if isinstance(value, Ragged):
        return buffer(value.values), value.offsets
    return value


def append(
    writer: native.Writer,
    spec: TableSpec,
    n: int,
    columns: list[Any],
    *,
    flags: Array | None = None,
    priorities: Array | None = None,
    chains: Array | None = None,
    steps: Array | None = None,
    timeout: float | None,
    whole: bool = False,
) -> None:
    """Append `n` rows, waiting for space and for the limiter; with `whole` all or none (up to two blocks of them).

    `steps`: uint32 (n,), of rows whose chain has none before them their number in their episode: see writer.hpp.

    Raises:
        AppendTimeout: with what holds the memory, or what the limiter lacks, and how many of the rows are in.
        ConfigError: `whole`, and more than the limiter can ever let in together.
    """
    done = writer.append_rows(n, columns, flags, priorities, chains, steps, timeout, whole)
    if done < n:
        raise timed_out(writer, spec, timeout, done, n)


def last_keys(writer: native.Writer) -> npt.NDArray[np.uint64]:
    """Return the keys of the rows that the writer's last call put in, in the order in which they were given."""
    return np.frombuffer(writer.keys, np.uint64)


def blocked(writer: native.Writer) -> tuple[bool, int]:
    """Of a queue: whether the last append found room but no block; how many are in memory, if it waited for those."""
    return writer.blocked, writer.holders[4] if writer.blocked else 0


def timed_out(writer: native.Writer, spec: TableSpec, timeout: float | None, done: int, n: int) -> ConduitError:
    """Return the error of an append that found no space in time, or was not let in."""
    name, stopped = spec.name, writer.stopped
    if stopped in (limiting.STOPPED_BY_LIMITER, limiting.STOPPED_FOR_EVER):
        return limiting.append_stopped(spec.limiter, name, timeout, done, n, stopped, writer.limiter)
    pinned, read, written, saved, in_memory, pid = writer.holders
    layout = spec.block_layout()
    nbytes = layout.data_bytes
    if in_memory and spec.disk is not None:
        return AppendTimeout(
            f"no block of memory came free for table {name!r} within {timeout} s: {spec.disk.folder} is slower than "
            f"appends are, or the {in_memory} blocks in memory are pinned or open. {done} of {n} rows are in. "
            "Wait longer, append less, or give the table more host_memory"
        )
    size = f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"
    held = ", ".join(
        f"{count} {what}"
        for count, what in (
            (pinned, "pinned by zero-copy views"),
            (read, "still being copied by readers"),
            (written, "in the hands of idle or stopped writers"),
            (saved, "held by a checkpoint that has yet to write them"),
        )
        if count
    )
    return AppendTimeout(
        f"no free block in table {name!r} within {timeout} s: blocks {held or 'all open'}"
        f"{f' (pid {pid})' if held else ''}, of {layout.blocks} ({size}). {done} of {n} rows are in. "
        "Release views sooner, or raise max_size or max_writers"
    )


def not_prioritized(name: str, window: str = "") -> ConfigError:
    """Return the error of giving priorities to a table, or one of its windows, that is not sampled by priority."""
    where = f"window {window!r} of table {name!r}" if window else f"table {name!r}"
    return ConfigError(
        f"{where} is not sampled by priority and keeps none: create it with sampler=samplers.Prioritized()"
    )


def zeros(column: Column, n: int) -> Array:
    """Return `n` rows of zeros."""
    return np.zeros((n, *column.shape), column.dtype)


def blank(column: Column, n: int) -> Any:
    """Return `n` rows of zeros, or of no elements where rows vary in length."""
    return [b""] * n if column.ragged else zeros(column, n)


def joined(column: Column, parts: Sequence[Any]) -> Any:
    """Return rows of a column, as `as_column` makes them, one part after the other."""
    return [row for part in parts for row in _each(part)] if column.ragged else np.concatenate(parts)


def inserted(column: Column, given: Any, at: Array, new: Any) -> Any:
    """Return rows of a column with `new` ones before those at the ascending places `at`, as `np.insert` has them."""
    if not column.ragged:
        return np.insert(given, at, new, axis=0)
    whole = _each(given)
    for place, row in zip(at.tolist()[::-1], _each(new)[::-1], strict=True):
        whole.insert(place, row)
    return whole


def kept(given: Any) -> Any:
    """Return a copy of rows, which the caller may not change."""
    if isinstance(given, list):
        return [bytes(row) for row in given]
    return given.copy() if isinstance(given, np.ndarray) else given  # a slice of a Ragged is one already


def _each(given: Any) -> list[Any]:
    """Rows that vary in length as one buffer each."""
    return list(given.pieces()) if isinstance(given, Ragged) else list(given)
