"""A folder into a store: tables as they were, rows read straight to their places, the index put back by the core."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit import creation
from conduit.checkpoints import manifest as manifests
from conduit.checkpoints.index import NUMBERS, SLOT_BITS, Runs, places_of, row_columns
from conduit.checkpoints.loading import load, read_into, values_of
from conduit.checkpoints.manifest import Batch, Manifest, Part
from conduit.checkpoints.reading import SavedTable, one_table, read_rows, read_tables
from conduit.checkpoints.reshaping import Changes, Shape, changed_spec, changed_state, default_rows, same_shape
from conduit.checkpoints.varying import VaryingShape
from conduit.spec import TableSpec
from conduit.values import as_path, check_function
from conduit_store.arrays import Array
from conduit_store.column import shown
from conduit_store.errors import CheckpointDamaged, ConduitError, ConfigError, did_you_mean
from conduit_store.layout import ALIGN

if TYPE_CHECKING:
    from conduit.store import Store
    from conduit.table import Table

__all__ = ["fill", "restore", "spec_in"]

_THREADS = 2  # that read files: a disk wants several requests, and the index a core for itself meanwhile

Progress = Callable[[int, int], object]


def restore(
    make: Callable[[str, int], Store],
    path: str | os.PathLike[str],
    name: str | None,
    host_memory: int | None,
    tables: Mapping[str, Changes],
    number: int | None,
    progress: Progress | None,
) -> Store:
    """See `Store.restore`. `make(name, host_memory)`: a store that nobody can attach to yet."""
    folder = as_path(path)
    check_function("progress", progress)
    with manifests.held(folder, number) as manifest:
        return _restore(make, folder, manifest, name, host_memory, tables, progress)


def _restore(
    make: Callable[[str, int], Store],
    folder: Path,
    manifest: Manifest,
    name: str | None,
    host_memory: int | None,
    tables: Mapping[str, Changes],
    progress: Progress | None,
) -> Store:
    saved = {table.spec.name: table for table in read_tables(folder, manifest)}
    if not isinstance(tables, Mapping) or not all(isinstance(change, Changes) for change in tables.values()):
        raise ConfigError(f"tables is {shown(tables)}: give a mapping of names to conduit.checkpoints.Changes")
    for unknown in tables.keys() - saved.keys():
        raise ConfigError(
            f"the checkpoint has no table {unknown!r} to change; it has {', '.join(saved) or 'none'}."
            f"{did_you_mean(unknown, saved)}"
        )
    changes = {table: tables.get(table, Changes()) for table in saved}
    specs = {table: changed_spec(saved[table], changes[table]) for table in saved}
    if host_memory is None:
        host_memory = max(manifest.host_memory, sum(_bytes(spec) for spec in specs.values()))
    store = make(manifest.store if name is None else name, host_memory)
    try:
        total = sum(part.bytes for table in saved.values() for part in table.record.parts)
        done = 0
        for table in saved.values():
            for size in _restore_table(store, table, specs[table.spec.name], changes[table.spec.name]):
                done += size
                if progress is not None:
                    progress(done, total)
    except BaseException:
        store.close()
        raise
    return store


def _bytes(spec: TableSpec) -> int:
    """Of a table's rows in memory, with what the segment rounds up."""
    return spec.frames * spec.block_layout().block_bytes + 4096


def spec_in(path: str | os.PathLike[str], name: str) -> TableSpec:
    """Return the settings of a table in the newest checkpoint of a folder.

    Raises:
        CheckpointNotFound, CheckpointDamaged: see `Store.restore`. UnknownTable: says which there are.
    """
    folder = as_path(path)
    with manifests.held(folder, None) as manifest:
        return one_table(folder, manifest, name).spec


def fill(table: Table, path: str | os.PathLike[str]) -> None:
    """Put the rows of its namesake in a folder's newest checkpoint into a table that has never held any.

    Of another `max_size`, perhaps, but else of the same settings. While nobody writes.

    Raises:
        CheckpointNotFound, CheckpointDamaged: see `Store.restore`. UnknownTable: says which there are.
        ConfigError: the table has held rows.
    """
    folder = as_path(path)
    with manifests.held(folder, None) as manifest:
        for _ in _fill(lambda: table, one_table(folder, manifest, table.name), table.spec, Changes()):
            pass


def _restore_table(store: Store, saved: SavedTable, spec: TableSpec, changes: Changes) -> Iterator[int]:
    """Make the table; yields the bytes of each file that has been read."""
    table = yield from _fill(lambda: creation.create(store, spec, populate=False), saved, spec, changes)
    table._populate()


def _fill(
    make: Callable[[], Table], saved: SavedTable, spec: TableSpec, changes: Changes
) -> Generator[int, None, Table]:
    """Fill the table that `make` returns; yields as `_restore_table`."""
    files = list(zip(saved.record.parts, saved.runs, strict=True))
    blocks, shape = saved.blocks, None
    stays = same_shape(saved, spec)
    if stays and spec.schema.ragged:  # their elements lie close together: no writer goes on in such a block
        blocks = blocks.copy()
        blocks["sealed"] = blocks["birth"] > 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="conduit-restore") as pool:
        stop = Event()
        try:
            reading = pool.submit(read_rows, saved, stop)  # while the table is made, which touches its whole index
            table = make()
            state = changed_state(saved, spec, changes)
            reads: list[Future[None]] = []
            if stays and not spec.slots:
                divided = [_divided(table, saved, part, runs) for part, runs in files]
                _lay_out(table, blocks)
                reads = [
                    pool.submit(_in_place, table, saved, part, runs, starts)
                    for (part, runs), starts in zip(files, divided, strict=True)
                ]
            rows = reading.result()
            if not stays:
                varies = bool(spec.schema.ragged)
                shape = VaryingShape(saved, rows, spec, changes) if varies else Shape(saved, rows, spec)
                blocks, rows, state = shape.blocks, shape.rows, shape.state(state)
                if isinstance(shape, VaryingShape):
                    shape.divide(table)
            if not stays or spec.slots:
                _lay_out(table, blocks)
                if isinstance(shape, VaryingShape):
                    shape.prepare(table)
                reads = [pool.submit(_one_by_one, table, saved, part, runs, shape, changes) for part, runs in files]
            n = saved.record.rows if shape is None else len(shape.keep)
            # While rows are being read; but the core looks at where each row ends, and blocks that lie in memory may
            # be moved to disk as soon as it knows of them.
            late = bool(spec.schema.ragged) or spec.tiered
            if not late:
                _put_back(table, state, blocks, rows, n)
            for part, read in zip(saved.record.parts, reads, strict=True):
                read.result()
                yield part.bytes
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    _put_numbers(table, saved, rows, shape)
    if late:
        table._native.laid_out(np.ascontiguousarray(blocks).tobytes())
        _put_back(table, state, blocks, rows, n)
    return table


def _lay_out(table: Table, blocks: Array) -> None:
    """Give blocks places, where some of them lie on disk."""
    if table.spec.tiered:
        table._native.lay_out(np.ascontiguousarray(blocks).tobytes())


def _put_numbers(table: Table, saved: SavedTable, rows: dict[str, Array], shape: Shape | None) -> None:
    """Mutable columns as they were at the cut: what the files of rows have of them may be older, or newer."""
    if not any(name.startswith(NUMBERS) for name in rows):
        return
    slots = saved.keys & np.uint64((1 << SLOT_BITS) - 1) if shape is None else shape.slots
    for number, column in enumerate(table.schema.columns):
        values = rows.get(f"{NUMBERS}{column.name}")
        if values is None:
            continue
        numbers = values.view(saved.spec.schema.column(column.name).dtype).astype(column.dtype)
        n = len(numbers)
        plain = numbers.view(np.int64) if column.dtype.kind in "mM" else numbers
        table._native.place(number, np.ascontiguousarray(slots, np.uint32), np.ascontiguousarray(plain), n)


def _put_back(table: Table, state: dict[str, Any], blocks: Array, rows: dict[str, Array], n: int) -> None:
    arrays = {
        (part, which): np.ascontiguousarray(rows[column], dtype)
        for column, (part, which, dtype) in row_columns(table.spec).items()
        if column in rows
    }
    with _as_damage(table.spec):
        table._native.restore(state, np.ascontiguousarray(blocks).tobytes(), n, arrays)


@contextmanager
def _as_damage(spec: TableSpec) -> Iterator[None]:
    """What the core cannot take, it was not told by a checkpoint of ours."""
    try:
        yield
    except ConduitError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise CheckpointDamaged(f"what the checkpoint says of table {spec.name!r} cannot be: {error!r}") from error


def _divided(table: Table, saved: SavedTable, part: Part, runs: Runs) -> dict[int, list[int]]:
    """Divide the blocks that a file's batches are; where the parts of each begin, by the batch's number.

    Not there: batches whose rows were evicted since the file was written.
    """
    layout = table._layout
    generations = np.zeros(layout.blocks, np.int64)
    generations[saved.blocks["block"]] = np.where(saved.blocks["birth"] > 0, saved.blocks["generation"], -1)
    starts: dict[int, list[int]] = {}
    for k, batch in enumerate(part.batches):
        block = int(runs.slots[k]) // layout.rows
        if generations[block] == runs.generations[k]:
            starts[k] = _divide(table, block, batch) if table.schema.ragged else []
    return starts


def _in_place(table: Table, saved: SavedTable, part: Part, runs: Runs, divided: dict[int, list[int]]) -> None:
    """Read a file whose batches are blocks, every column straight to where it was."""
    layout = table._layout
    extents: list[tuple[int, int, int]] = []
    for k, parts in divided.items():
        batch, starts = part.batches[k], iter(parts)
        block, row = divmod(int(runs.slots[k]), layout.rows)
        for column, first in zip(table.schema.columns, places_of(table.schema), strict=True):
            number = table.schema.names.index(column.name)
            offset, length = batch.buffers[first]
            at = block * layout.block_bytes + layout.offsets[number] + row * layout.row_bytes[number]
            extents.append((offset, length, at))
            if column.ragged:
                offset, length = batch.buffers[first + 1]
                at = block * layout.block_bytes + next(starts)
                extents += [(offset, length, at)] if length else []
    read_into(saved.folder, part, table._native, extents, table._store._data_fd)


def _divide(table: Table, block: int, batch: Batch) -> list[int]:
    """Give each column whose rows vary in length as much of a block as it needs; where the parts begin."""
    layout = table._layout
    starts: list[int] = []
    end = layout.values
    for column, first in zip(table.schema.columns, places_of(table.schema), strict=True):
        if column.ragged:
            starts.append(end)
            end += -(-batch.buffers[first + 1][1] // ALIGN) * ALIGN
    table._native.divide(block, max(1, -(-end // layout.block_bytes)), starts)
    return starts


def _one_by_one(table: Table, saved: SavedTable, part: Part, runs: Runs, shape: Shape | None, changes: Changes) -> None:
    """Read a file and put each of its rows where it goes now."""
    memory = load(saved.folder, part)
    by_block = np.zeros(saved.record.n_blocks, saved.blocks.dtype)
    by_block[saved.blocks["block"]] = saved.blocks
    slots = np.repeat(runs.slots - (np.cumsum(runs.rows) - runs.rows), runs.rows) + np.arange(int(runs.rows.sum()))
    now = by_block[slots // saved.rows_per_block]
    row = slots % saved.rows_per_block
    there = (now["generation"] == np.repeat(runs.generations, runs.rows)) & (row >= now["first"]) & (row < now["count"])
    places = slots if shape is None else shape.new_slot[slots]
    there &= places >= 0
    start = 0
    for k, batch in enumerate(part.batches):
        chosen = there[start : start + batch.rows]
        to = np.ascontiguousarray(places[start : start + batch.rows][chosen], np.uint32)
        for number, column in enumerate(table.schema.columns):
            if column.ragged:
                assert isinstance(shape, VaryingShape)
                shape.put(table, column, memory, part, k, chosen, to)
                continue
            if column.name in saved.spec.schema:
                values = _column(saved, memory, part, k, column.name)[chosen]
                values = np.ascontiguousarray(values, column.dtype)
            else:
                values = default_rows(column, changes.defaults, len(to))
            table._native.place(number, to, values, len(to))
        start += batch.rows


def _column(saved: SavedTable, memory: Array, part: Part, batch: int, name: str) -> Array:
    number = saved.spec.schema.names.index(name)
    column = saved.spec.schema.columns[number]
    row: np.dtype[Any] = np.dtype((column.dtype, column.shape)) if column.shape else column.dtype
    return values_of(memory, part, batch, places_of(saved.spec.schema)[number], row)
