"""A checkpoint's files as checked arrays. Nothing that a file says is used as a place before it has been looked at."""

from __future__ import annotations

import json
import os
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np

from conduit.checkpoints import manifest as manifests
from conduit.checkpoints.index import BLOCK, SLOT_BITS, KeyOrder, Runs, keys_of, row_columns, runs_of
from conduit.checkpoints.loading import load, load_columns, values_of
from conduit.checkpoints.manifest import Manifest, Part, TableRecord
from conduit.spec import TableSpec
from conduit.values import as_path
from conduit_store.arrays import Array
from conduit_store.errors import CheckpointDamaged, ConduitError, UnknownTable, did_you_mean

__all__ = ["SavedTable", "one_table", "read_rows", "read_tables", "verify"]


@dataclass(frozen=True, slots=True)
class SavedTable:
    """A table of a checkpoint, without its rows: `read_rows` reads what is saved of them.

    `blocks`: BLOCK (n_blocks,), open ones in eviction order, then the others as they will be given out. `runs`: which
    rows each part has.
    """

    folder: Path
    spec: TableSpec
    record: TableRecord
    blocks: Array
    runs: tuple[Runs, ...]

    @property
    def keys(self) -> Array:
        """Keys of its rows, in the order of the blocks: uint64 (rows,)."""
        return keys_of(self.blocks[self.blocks["count"] > self.blocks["first"]], self.rows_per_block)

    @property
    def rows_per_block(self) -> int:
        """Rows of a block of the table that was saved."""
        return self.record.rows_per_block


def read_tables(folder: Path, manifest: Manifest) -> list[SavedTable]:
    """Return all tables, which rows they have held against the checksums and against themselves.

    Raises:
        CheckpointDamaged: names the file, or the table and what of it cannot be.
    """
    return [_read_table(folder, record) for record in manifest.tables]


def one_table(folder: Path, manifest: Manifest, name: str) -> SavedTable:
    """Return one table.

    Raises:
        UnknownTable: says which there are. CheckpointDamaged: as `read_tables`.
    """
    records = {str(record.spec["name"]): record for record in manifest.tables}
    if name not in records:
        raise UnknownTable(
            f"checkpoint {manifest.number} in {folder} has no table {name!r}; it has {', '.join(records) or 'none'}."
            f"{did_you_mean(name, records)}"
        )
    return _read_table(folder, records[name])


def verify(path: str | os.PathLike[str], number: int | None = None) -> Manifest:
    """Check every byte of a checkpoint: sums of all files, keys, counts, links. Returns its manifest.

    `number`: of those that the folder keeps; the newest if None. Reads everything once, at the disk's speed.

    Raises:
        CheckpointNotFound: there is none. CheckpointDamaged: names the file, or the table and what of it cannot be.

    Example:
        >>> checkpoints.verify("/data/run1").number
        3
    """
    folder = as_path(path)
    with manifests.held(folder, number) as manifest:
        _verify(folder, manifest)
        return manifest


def _verify(folder: Path, manifest: Manifest) -> None:
    for table in read_tables(folder, manifest):
        read_rows(table)
        # one piece of memory for all files: new pages would cost more than reading does
        memory = np.empty(max((part.bytes for part in table.record.parts), default=0), np.uint8)
        for part in table.record.parts:
            load(folder, part, memory)
            _check_columns(table, part)
            for batch in range(len(part.batches)):
                _check_keys(memory, part, batch)


def _check_columns(table: SavedTable, part: Part) -> None:
    """Each batch has its keys and every column, at the lengths that the schema says."""
    for batch in part.batches:
        lengths = [length for _, length in batch.buffers]
        expected = [8 * batch.rows]
        for column in table.spec.schema.columns:
            expected.append(column.row_bytes * (batch.rows + column.ragged))
            if column.ragged:  # whole elements, however many
                there = lengths[len(expected)] if len(expected) < len(lengths) else 0
                expected.append(there - there % column.element_bytes)
        if lengths != expected:
            raise CheckpointDamaged(f"{part.file} does not have the columns of table {table.spec.name!r}")


def _check_keys(memory: Array, part: Part, batch: int) -> None:
    """Where the manifest says the first key, the file says that one and those that follow it."""
    said = part.batches[batch].key
    if said is None:
        return
    keys = values_of(memory, part, batch, 0, np.dtype("u8"))
    if not (keys == np.uint64(said) + np.arange(len(keys), dtype=np.uint64)).all():
        raise CheckpointDamaged(f"{part.file} holds other rows than its manifest says")


def _read_table(folder: Path, record: TableRecord) -> SavedTable:
    try:
        spec = TableSpec.from_json(json.dumps(record.spec))
    except (ConduitError, AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointDamaged(f"table {record.spec.get('name')!r} of the checkpoint: {error}") from error
    if not 0 < record.rows_per_block * record.n_blocks < 1 << SLOT_BITS:
        raise CheckpointDamaged(
            f"table {spec.name!r} of the checkpoint has {record.n_blocks} blocks of {record.rows_per_block} rows"
        )
    blocks = _read_blocks(folder, record)
    runs = tuple(_runs(folder, part) for part in record.parts)
    table = SavedTable(folder, spec, record, blocks, runs)
    for part in record.parts:
        _check_columns(table, part)
    _check_covered(table)
    return table


def read_rows(table: SavedTable, stop: Event | None = None) -> dict[str, Array]:
    """Return what is saved of each row beside its columns, by name, in the order of the blocks: (rows,) each.

    `stop`: once it is set, nobody wants them any more.

    Raises:
        CheckpointDamaged: names the file, or what it says that cannot be. CancelledError: `stop` was set.
    """
    spec, record = table.spec, table.record
    names = ("keys", *record.columns)
    kinds = {"keys": np.dtype("u8"), **{name: dtype for name, (_, _, dtype) in row_columns(spec).items()}}
    unknown = [name for name in record.columns if name not in kinds]
    if unknown or len(set(names)) != len(names):
        raise CheckpointDamaged(f"{record.index.file} says {', '.join(unknown)} of each row, which is not known here")
    order = KeyOrder(table.blocks[table.blocks["count"] > table.blocks["first"]], record.rows_per_block)
    if not len(order) == record.rows == record.index.rows:
        raise CheckpointDamaged(
            f"{record.index.file} has {record.index.rows:,} rows, {record.blocks.file} {len(order):,}, and the "
            f"manifest says {record.rows:,}"
        )

    def check(first: int, keys: Array) -> None:
        if stop is not None and stop.is_set():
            raise CancelledError
        if not np.array_equal(keys, order.keys(first, first + len(keys))):
            raise CheckpointDamaged(f"{record.index.file} is of other rows than {record.blocks.file}")

    rows = load_columns(table.folder, record.index, {name: kinds[name] for name in names}, check)
    _check_rows(spec, rows)
    return rows


def _runs(folder: Path, part: Part) -> Runs:
    try:
        return runs_of(folder, part)
    except OSError as error:
        if isinstance(error, CheckpointDamaged):
            raise
        raise CheckpointDamaged(f"{folder / part.file} cannot be read: {error}") from error


def _read_blocks(folder: Path, record: TableRecord) -> Array:
    columns = load_columns(folder, record.blocks, {name: BLOCK[name] for name in BLOCK.names or ()})
    blocks = np.zeros(len(columns["block"]), BLOCK)
    for name, values in columns.items():
        blocks[name] = values
    births = blocks["birth"][blocks["birth"] > 0]
    wrong = (
        len(blocks) != record.n_blocks
        or not np.array_equal(np.sort(blocks["block"]), np.arange(len(blocks)))
        or (blocks["count"] > record.rows_per_block).any()
        or (blocks["first"] > blocks["count"]).any()
        or (blocks["count"][blocks["birth"] == 0] != 0).any()
        or (blocks["birth"][len(births) :] != 0).any()
        or (births[1:] <= births[:-1]).any()
        or (blocks["generation"] >> np.uint64(36) != 0).any()
    )
    if wrong:
        raise CheckpointDamaged(
            f"{record.blocks.file} says what cannot be: {len(blocks):,} blocks of a table that has "
            f"{record.n_blocks:,}, or such as overlap or hold more rows than there is room for"
        )
    return blocks


def _check_rows(spec: TableSpec, columns: dict[str, Array]) -> None:
    for view in spec.views:
        raw = columns.get(f"priority:{view.name}")
        # NaN: not known before the row's window is complete
        if raw is not None and (np.fmin.reduce(raw, initial=0.0) < 0 or np.fmax.reduce(raw, initial=0.0) == np.inf):
            raise CheckpointDamaged(f"table {spec.name!r} of the checkpoint has priorities that cannot be")


def _check_covered(table: SavedTable) -> None:
    """Every row of the index is in exactly one file."""
    n_blocks, per_block = table.record.n_blocks, table.rows_per_block
    by_block = np.zeros(n_blocks, BLOCK)
    by_block[table.blocks["block"]] = table.blocks
    found = np.zeros(n_blocks, np.int64)
    for runs in table.runs:
        block = runs.slots // per_block
        row = runs.slots - block * per_block
        if len(block) and (int(block.max()) >= n_blocks or (row + runs.rows > per_block).any()):
            raise CheckpointDamaged(f"a file of table {table.spec.name!r} has rows that the table has no room for")
        now = by_block[block]
        first = np.maximum(row, now["first"])
        live = np.where(now["generation"] == runs.generations, np.minimum(row + runs.rows, now["count"]) - first, 0)
        np.add.at(found, block, np.maximum(live, 0))
    wanted = by_block["count"].astype(np.int64) - by_block["first"]
    if not np.array_equal(found, wanted):
        lacking = int(np.maximum(wanted - found, 0).sum())
        raise CheckpointDamaged(
            f"files of table {table.spec.name!r} lack {lacking:,} of its {int(wanted.sum()):,} rows, or have some twice"
        )
