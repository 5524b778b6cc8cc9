"""A running store into a folder: one cut of all tables, then their rows while everybody goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conduit.checkpoints import manifest as manifests
from conduit.checkpoints.manifest import Manifest
from conduit.checkpoints.parts import Disk
from conduit.checkpoints.work import TableWork
from conduit.values import as_path, check_function, whole_number
from conduit_store.errors import CheckpointBusy, CheckpointError, ReadOnlyStore
from conduit_store.native import native

if TYPE_CHECKING:
    from conduit.store import Store
    from conduit.table import Table

__all__ = ["CheckpointInfo", "take"]

Progress = Callable[[int, int], object]


class CheckpointInfo(NamedTuple):
    """A checkpoint that was taken: `rows` of all tables, `bytes` that it consists of, `written` of them now.

    `seconds` in all, of them `locked_s` with the locks of all tables held: so long may a sample or an append have
    waited.
    """

    path: Path
    number: int
    tables: int
    rows: int
    bytes: int
    written: int
    seconds: float
    locked_s: float


def take(
    store: Store, path: str | os.PathLike[str], names: Sequence[str] | None, keep: int, progress: Progress | None
) -> CheckpointInfo:
    """See `Store.checkpoint`."""
    keep = whole_number("keep", keep, 1, 1 << 20)
    check_function("progress", progress)
    if store.read_only:
        raise ReadOnlyStore(f"store {store.name!r} is attached read-only: attach with read_only=False to checkpoint it")
    tables = [store._table(name) for name in (store.tables() if names is None else dict.fromkeys(names))]
    folder = as_path(path)
    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            info = _take(store, tables, folder, keep, progress, began)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"no checkpoint of store {store.name!r} in {folder}: {error}. Those that were there before are as they were"
        ) from error
    return info


def _take(
    store: Store, tables: list[Table], folder: Path, keep: int, progress: Progress | None, began: float
) -> CheckpointInfo:
    taken = manifests.numbers(folder)
    number = taken[-1] + 1 if taken else 1
    store_id = identity(store)
    before: Manifest | None = None
    with contextlib.suppress(CheckpointError):  # none, or none that this build can read
        found = manifests.newest(folder)
        before = found if found.store_id == store_id else None
    old = {record.spec["name"]: record.parts for record in before.tables} if before is not None else {}
    disk = Disk(folder)
    cut = native.Cut(store._native, [table._native for table in tables])
    works: list[TableWork] = []
    try:
        for i, table in enumerate(tables):
            works.append(TableWork(disk, cut, i, table, number, old.get(table.name, ())))
        total = sum(work.bytes for work in works)
        # Tables take turns, some megabytes each: what is evicted next of any of them is written soon.
        turns = [work.write() for work in works]
        while turns:
            turns = [turn for turn in turns if next(turn, None) is not None]
            if progress is not None:
                progress(min(disk.written, total), total)
        cut.close()
        records = tuple(work.finish() for work in works)
        disk.finish()
        manifests.sync_folder(folder)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        made = Manifest(number, now, store.name, store_id, store._host_memory, records)
        manifests.write(folder, made)
    except BaseException:
        cut.close()
        if not manifests.path_of(folder, number).exists():  # else it was done, and Ctrl-C came after that
            disk.undo()
            with contextlib.suppress(OSError):
                manifests.path_of(folder, number).with_suffix(".new").unlink(missing_ok=True)
        raise
    _forget_older(folder, keep)
    if progress is not None:
        progress(disk.written, disk.written)
    rows = sum(record.rows for record in made.tables)
    seconds = time.monotonic() - began
    locked = cut.locked_ns * 1e-9
    return CheckpointInfo(folder, number, len(tables), rows, made.bytes, disk.written, seconds, locked)


def identity(store: Store) -> str:
    """Return what tells this store from every other, also from one of the same name before or after it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{store._native.created_ns}-{store.name}"


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
    """Remove all but the newest `keep` checkpoints and what none needs; what somebody reads stays until later."""
    numbers = manifests.numbers(folder)
    needed: dict[int, set[str]] = {}
    for number in numbers:
        try:
            needed[number] = manifests.find(folder, number).files
        except CheckpointError:
            if number in numbers[-keep:]:
                return  # what it needs is not known: nothing is taken away
            needed[number] = set()
    for number in numbers[:-keep]:
        if manifests.remove_unread(folder, number):
            del needed[number]
    manifests.sync_folder(folder)  # manifests first: none may be left that names what is gone
    names = set().union(*needed.values())
    for name in os.listdir(folder):
        if manifests.is_part(name) and name not in names:
            (folder / name).unlink(missing_ok=True)
