"""A running store into a folder: one cut of all tables, then their rows while everybody goes on.

Rows that an earlier checkpoint of the folder has, and that have not changed (published rows never do), are named again
instead of written: see `_plan`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from conduit.checkpoints import manifest as manifests
from conduit.checkpoints.index import BLOCK, keys_of, row_columns, runs_of
from conduit.checkpoints.manifest import Manifest, Part, TableRecord
from conduit.checkpoints.parts import KEYS, Disk, PartFile, gathered, keyed, keyed_schema, write_columns
from conduit.values import whole_number
from conduit_store import arrow
from conduit_store.arrays import Array
from conduit_store.errors import CheckpointBusy, CheckpointDamaged, CheckpointError, CheckpointNotFound, ReadOnlyStore
from conduit_store.native import native

if TYPE_CHECKING:
    from conduit.store import Store
    from conduit.table import Table

__all__ = ["CheckpointInfo", "take"]

Progress = Callable[[int, int], object]
_PART_BYTES = 32 << 20  # of rows in one file: the unit that an incremental checkpoint keeps or writes anew
_COPY_BYTES = 4 << 20  # of single rows that are copied together before they are written
_LEAST_LIVE = 0.5  # part of a file's rows that must still be there for the file to be kept


class CheckpointInfo(NamedTuple):
    """A checkpoint that was taken: `rows` of all tables, `bytes` that it consists of, `written` of them now."""

    path: Path
    number: int
    tables: int
    rows: int
    bytes: int
    written: int
    seconds: float


@dataclass(slots=True)
class _Work:
    """What of one table is to be done. `blocks`: those with rows, oldest first; `todo`: which of them to write."""

    number: int
    table: Table
    all_blocks: Array
    blocks: Array
    todo: Array
    kept: list[Part]
    made: list[Part]
    index: Part
    of_blocks: Part
    columns: tuple[str, ...]

    @property
    def bytes(self) -> int:
        rows = self.blocks["count"][self.todo].astype(np.int64) - self.blocks["first"][self.todo]
        return int(rows.sum()) * (self.table.schema.row_bytes + 8)


def take(store: Store, path: str | os.PathLike[str], keep: int, progress: Progress | None) -> CheckpointInfo:
    """See `Store.checkpoint`."""
    keep = whole_number("keep", keep, 1, 1 << 20)
    if store.read_only:
        raise ReadOnlyStore(f"store {store.name!r} is attached read-only: attach with read_only=False to checkpoint it")
    folder = Path(path)
    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            info = _take(store, folder, keep, progress, began)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"no checkpoint of store {store.name!r} in {folder}: {error}. Those that were there before are as they were"
        ) from error
    return info


def _take(store: Store, folder: Path, keep: int, progress: Progress | None, began: float) -> CheckpointInfo:
    taken = manifests.numbers(folder)
    number = taken[-1] + 1 if taken else 1
    store_id = identity(store)
    before: Manifest | None = None
    with contextlib.suppress(CheckpointNotFound, CheckpointDamaged):
        found = manifests.newest(folder)
        before = found if found.store_id == store_id else None
    disk = Disk(folder)
    tables = [store._table(name) for name in store.tables()]
    cut = native.Cut(store._native, [table._native for table in tables])
    try:
        works = [_begin(disk, cut, i, table, number, before) for i, table in enumerate(tables)]
        total = disk.written + sum(work.bytes for work in works)
        # Tables take turns, a file each: what is evicted next of any of them is written soon.
        turns = [_write_rows(disk, cut, work, number, lambda: _tell(progress, disk, total)) for work in works]
        while turns:
            turns = [turn for turn in turns if next(turn, None) is not None]
        cut.close()
        disk.finish()
        manifests.sync_folder(folder)
        records = tuple(
            TableRecord(
                json.loads(work.table.spec.to_json()), cut.state(work.number), work.table._layout.rows,
                work.table._layout.blocks, cut.rows(work.number), work.of_blocks, work.index, work.columns,
                (*work.kept, *work.made),
            )
            for work in works
        )  # fmt: skip
        host_memory = store._host_memory
        now = datetime.now(UTC).isoformat(timespec="seconds")
        made = Manifest(number, now, store.name, store_id, host_memory, records)
        manifests.write(folder, made)
    except BaseException:
        cut.close()
        disk.undo()
        with contextlib.suppress(OSError):
            manifests.path_of(folder, number).with_suffix(".new").unlink(missing_ok=True)
        raise
    _forget_older(folder, keep)
    if progress is not None:
        progress(disk.written, disk.written)
    rows = sum(record.rows for record in made.tables)
    seconds = time.monotonic() - began
    return CheckpointInfo(folder, number, len(tables), rows, made.bytes, disk.written, seconds)


def identity(store: Store) -> str:
    """Return what tells this store from every other, also from one of the same name before or after it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{store._native.created_ns}-{store.name}"


def _tell(progress: Progress | None, disk: Disk, total: int) -> None:
    if progress is not None:
        progress(min(disk.written, total), total)


def _begin(disk: Disk, cut: native.Cut, i: int, table: Table, number: int, before: Manifest | None) -> _Work:
    """Write the table's index, and say which of its rows are to follow."""
    all_blocks = np.frombuffer(cut.blocks(i), BLOCK)
    blocks = all_blocks[all_blocks["count"] > all_blocks["first"]]
    rows_per_block = table._layout.rows
    columns: dict[str, Array] = {KEYS: keys_of(blocks, rows_per_block)}
    rows = len(columns[KEYS])
    for name, (part, which, dtype) in row_columns(table.spec).items():
        if cut.keeps(i, part, which):
            columns[name] = np.empty(rows, dtype)
            cut.fill(i, part, which, columns[name])
    of_blocks = {name: all_blocks[name] for name in BLOCK.names or ()}
    written_blocks = write_columns(disk, f"{table.name}-{number:06d}-blocks.arrow", of_blocks)
    written_rows = write_columns(disk, f"{table.name}-{number:06d}-rows.arrow", columns)
    old = next((record.parts for record in before.tables if record.spec["name"] == table.name), ()) if before else ()
    kept, covered = _plan(disk.folder, old, all_blocks, rows_per_block)
    todo = np.flatnonzero(~covered[blocks["block"]])
    names = tuple(name for name in columns if name != KEYS)
    return _Work(i, table, all_blocks, blocks, todo, kept, [], written_rows, written_blocks, names)


def _plan(folder: Path, old: tuple[Part, ...], all_blocks: Array, rows_per_block: int) -> tuple[list[Part], Array]:
    """Which files of the last checkpoint go on serving, and which blocks they cover.

    A file serves while every block in it is either gone or there in full, and half of its rows at least are of use.
    """
    n_blocks = len(all_blocks)
    by_block = np.zeros(n_blocks, BLOCK)
    by_block[all_blocks["block"]] = all_blocks
    covered = np.zeros(n_blocks, bool)
    kept: list[Part] = []
    for part in old:
        try:
            if (folder / part.file).stat().st_size != part.bytes:
                continue
            runs = runs_of(folder, part)
        except (OSError, CheckpointDamaged):
            continue
        block = runs.slots // rows_per_block
        if len(block) == 0 or block.max() >= n_blocks:
            continue
        now = by_block[block]
        row = runs.slots - block * rows_per_block
        there = (now["generation"] == runs.generations) & (now["count"] > now["first"])
        whole = (row <= now["first"]) & (row + runs.rows == now["count"])
        live = int((now["count"] - now["first"])[there].sum())
        if (there & ~whole).any() or covered[block[there]].any() or live < _LEAST_LIVE * int(runs.rows.sum()):
            continue
        covered[block[there]] = True
        kept.append(part)
    return kept, covered


def _write_rows(
    disk: Disk, cut: native.Cut, work: _Work, number: int, tell: Callable[[], None]
) -> Iterator[bool]:
    """Write what is to do, yielding after each file; blocks are let go as soon as they have been read."""
    table, blocks, todo = work.table, work.blocks, work.todo
    schema = keyed_schema(table.schema)
    place = {int(block): k for k, block in enumerate(work.all_blocks["block"])} if table.spec.slots else {}
    row_bytes = table.schema.row_bytes + 8
    at = 0
    while at < len(todo):
        name = f"{table.name}-{number:06d}-{len(work.made):04d}.arrow"
        file = PartFile(disk, name, schema)
        try:
            while at < len(todo) and file.bytes < _PART_BYTES:
                end = at + 1
                if table.spec.slots:
                    # neighbours in the order of birth, as many as are copied together
                    most = min(len(todo), at + max(1, _COPY_BYTES // row_bytes))
                    while end < most and todo[end] == todo[end - 1] + 1:
                        end += 1
                chosen = blocks[todo[at:end]]
                keys = keys_of(chosen, table._layout.rows)
                if table.spec.slots:
                    first, last = (place[int(chosen["block"][k])] for k in (0, -1))
                    batch = gathered(table.schema, cut, work.number, (first, last + 1), len(keys))
                else:
                    block = chosen[0]
                    batch = arrow.block_to_arrow(
                        table.schema, table._layout, cut.address(work.number, int(block["block"])),
                        int(block["first"]), int(block["count"]), cut, cut.starts(work.number, int(block["block"])),
                    )  # fmt: skip
                file.write(keyed(batch, keys, schema), None if table.spec.slots else int(keys[0]))
                at = end
                # Everything older than the next block to be written may be reused.
                if at < len(todo):
                    cut.written(work.number, int(blocks["birth"][todo[at]]) - 1)
                tell()
            work.made.append(file.close())
        finally:
            file.abandon()
        yield True
    cut.written(work.number, int(work.all_blocks["birth"].max(initial=0)))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One checkpoint at a time goes into a folder; the kernel forgets whoever dies."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointBusy(
                f"another process is writing a checkpoint into {folder}: wait until it is done, or use another folder"
            ) from error
        yield
    finally:
        os.close(fd)


def _forget_older(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and files that none of these needs."""
    numbers = manifests.numbers(folder)
    needed: set[str] = set()
    for number in numbers[-keep:]:
        try:
            needed |= manifests.find(folder, number).files
        except CheckpointError:
            return  # what it needs is not known: nothing is taken away
    for number in numbers[:-keep]:
        manifests.path_of(folder, number).unlink(missing_ok=True)
    manifests.sync_folder(folder)  # manifests first: none may be left that names what is gone
    for name in os.listdir(folder):
        if manifests.is_part(name) and name not in needed:
            (folder / name).unlink(missing_ok=True)
