"""The manifest of a checkpoint: which files it has, what is in them, and what a table is beside its rows.

A folder holds one `checkpoint-NNNNNN.json` for each checkpoint that is kept; the one with the highest number counts.
It comes into being by a rename, when all that it names lies on the disk. The text carries its own checksum. Whoever
reads one takes nothing for granted: names lead nowhere but into the folder, and numbers are whole and not negative.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conduit import __version__
from conduit.checkpoints.migrations import FORMAT, to_today
from conduit.values import whole_number
from conduit_store.errors import CheckpointDamaged, CheckpointError, CheckpointNotFound
from conduit_store.native import native

__all__ = [
    "Batch", "Manifest", "Part", "TableRecord", "find", "held", "is_part", "newest", "numbers", "parsed",
    "path_of", "remove_unread", "sync_folder", "write",
]  # fmt: skip

_NAME = re.compile(r"checkpoint-(\d{6,18})\.json")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*-\d{6,18}-(\d{4,18}|rows|blocks)\.arrow")
_HEAD = re.compile(rb'\{"crc32c": "([0-9a-f]{8})", "manifest": ')
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch of a file: where its columns' bytes lie, as (offset in the file, bytes).

    `key` is the first row's, where the keys of the others follow it one by one; else None, and the file says them.
    """

    rows: int
    key: int | None
    buffers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A file: `crc32c` is that of all its `bytes`."""

    file: str
    bytes: int
    crc32c: int
    batches: tuple[Batch, ...]

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(batch.rows for batch in self.batches)


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table or queue: `spec` as it was created, `state` of the core at the cut, and the files with the rest."""

    spec: dict[str, Any]
    state: dict[str, Any]
    rows_per_block: int
    n_blocks: int
    rows: int
    blocks: Part
    index: Part
    columns: tuple[str, ...]  # of the index, after the keys
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint. `store_id` tells stores apart that had the same name; `build`: which conduit-edp wrote it."""

    number: int
    created: str
    store: str
    store_id: str
    host_memory: int
    tables: tuple[TableRecord, ...]
    build: str = __version__

    @property
    def files(self) -> set[str]:
        """Names of all files it needs, in its folder."""
        return {part.file for table in self.tables for part in (table.blocks, table.index, *table.parts)}

    @property
    def bytes(self) -> int:
        """Bytes of those files."""
        return sum(part.bytes for table in self.tables for part in (table.blocks, table.index, *table.parts))


def is_part(name: str) -> bool:
    """Whether a file of that name belongs to a checkpoint, of whatever number."""
    return _PART.fullmatch(name) is not None


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in `folder`, ascending.

    Raises:
        CheckpointNotFound: there is no such folder.
    """
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFound(f"{folder} is no folder: give the one that store.checkpoint was given") from error
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def path_of(folder: Path, number: int) -> Path:
    """Return where the manifest of that number lies."""
    return folder / f"checkpoint-{number:06d}.json"


def newest(folder: Path) -> Manifest:
    """Return the newest checkpoint of a folder.

    Raises:
        CheckpointNotFound: there is none. CheckpointDamaged: its manifest cannot be read.
    """
    return find(folder, newest_number(folder))


def newest_number(folder: Path) -> int:
    """Return the highest number of a folder's checkpoints.

    Raises:
        CheckpointNotFound: there is none.
    """
    found = numbers(folder)
    if not found:
        raise CheckpointNotFound(f"{folder} holds no checkpoint: no file checkpoint-NNNNNN.json is there")
    return found[-1]


@contextmanager
def held(folder: Path, number: int | None) -> Iterator[Manifest]:
    """The newest checkpoint of a folder, or that of `number`, whose files stay while it is read.

    Raises:
        What `newest` and `find` raise. ConfigError: `number` is none.
    """
    if number is not None:
        number = whole_number("number", number, 1, 999_999)
    while True:
        chosen = number if number is not None else newest_number(folder)
        try:
            fd = os.open(path_of(folder, chosen), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            if number is None and newest_number(folder) != chosen:
                continue  # a newer one has taken its place
            find(folder, chosen)  # says what is wrong
            raise
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_SH)
            if _names(path_of(folder, chosen), fd):
                yield find(folder, chosen)
                return
        finally:
            os.close(fd)


def remove_unread(folder: Path, number: int) -> bool:
    """Remove a manifest, unless somebody reads what it names."""
    path = path_of(folder, number)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        with suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _names(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def find(folder: Path, number: int) -> Manifest:
    """Return the checkpoint of that number.

    Raises:
        CheckpointNotFound: there is none. CheckpointDamaged: its manifest cannot be read. CheckpointNewer: it is of a
        later format than this build reads.
    """
    path = path_of(folder, number)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointDamaged(f"{path} has {path.stat().st_size:,} bytes: that is no manifest")
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointNotFound(f"{path} does not exist; the folder has {numbers(folder)}") from error
    except OSError as error:
        raise CheckpointDamaged(f"{path} cannot be read: {error}") from error
    return parsed(text, folder, number)


def parsed(text: bytes, folder: Path, number: int) -> Manifest:
    """Return what a manifest's file says; `folder` and `number` are for messages, and the number it has to say.

    Raises:
        CheckpointDamaged, CheckpointNewer: see `find`.
    """
    path = path_of(folder, number)
    head = _HEAD.match(text)
    if head is None or not text.endswith(b"}\n"):
        raise CheckpointDamaged(
            f"{path} ({len(text):,} bytes) is no manifest, or was cut off. {_others(folder, number)}"
        )
    body = text[head.end() : -2]
    if native.crc32c(body) != int(head[1], 16):
        raise CheckpointDamaged(
            f"{path} was changed after it was written: its checksum is {native.crc32c(body):08x}, and it says "
            f"{head[1].decode()}. {_others(folder, number)}"
        )
    try:
        return _manifest(json.loads(body), number)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointDamaged(f"{path} does not say what a manifest says ({error!r})") from error


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest aside and rename it: from then on the checkpoint is there, before it is not."""
    fields = asdict(manifest)
    fields["format"] = FORMAT
    body = json.dumps(fields).encode()
    path = path_of(folder, manifest.number)
    aside = path.with_suffix(".new")
    with open(aside, "wb") as file:
        file.write(b'{"crc32c": "%08x", "manifest": %b}\n' % (native.crc32c(body), body))
        file.flush()
        os.fsync(file.fileno())
    os.rename(aside, path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Wait until the folder's names lie on the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _others(folder: Path, number: int) -> str:
    others = [n for n in numbers(folder) if n != number]
    return f"Others in the folder: {others}" if others else "The folder has no other"


def _manifest(fields: dict[str, Any], number: int) -> Manifest:
    fields = to_today(fields, number)
    if fields["number"] != number:
        raise CheckpointDamaged(f"checkpoint {number} says that it is number {fields['number']!r}")
    names = [_text(table["spec"]["name"]) for table in fields["tables"]]
    if len(set(names)) != len(names):
        raise CheckpointDamaged(f"checkpoint {number} has two tables of one name: {', '.join(names)}")
    return Manifest(
        number, _text(fields["created"]), _text(fields["store"]), _text(fields["store_id"]),
        _whole(fields["host_memory"]), tuple(_table(table) for table in fields["tables"]),
        _text(fields["build"]),
    )  # fmt: skip


def _table(fields: dict[str, Any]) -> TableRecord:
    return TableRecord(
        spec=_mapping(fields["spec"]),
        state=_state(_mapping(fields["state"])),
        rows_per_block=_whole(fields["rows_per_block"]),
        n_blocks=_whole(fields["n_blocks"]),
        rows=_whole(fields["rows"]),
        blocks=_part(fields["blocks"]),
        index=_part(fields["index"]),
        columns=tuple(_text(name) for name in fields["columns"]),
        parts=tuple(_part(part) for part in fields["parts"]),
    )


def _part(fields: dict[str, Any]) -> Part:
    name = _text(fields["file"])
    if not is_part(name):
        raise CheckpointDamaged(f"{name!r} is no name of a checkpoint's file")
    size = _whole(fields["bytes"])
    batches = tuple(_batch(batch, size, name) for batch in fields["batches"])
    ends = 0
    for batch in batches:
        for offset, length in batch.buffers:
            if offset < ends or offset + length > size:
                raise CheckpointDamaged(f"columns of {name} overlap, or lie outside of it")
            ends = offset + length
    return Part(name, size, _whole(fields["crc32c"]), batches)


def _batch(fields: dict[str, Any], size: int, name: str) -> Batch:
    rows = _whole(fields["rows"])
    if rows < 1 or rows > size:
        raise CheckpointDamaged(f"a batch of {name} has {rows:,} rows in {size:,} bytes")
    buffers = tuple((_whole(offset), _whole(length)) for offset, length in fields["buffers"])
    return Batch(rows, None if fields["key"] is None else _whole(fields["key"]), buffers)


def _state(state: dict[str, Any]) -> dict[str, Any]:
    """The core takes it apart by type; here each number is looked at."""
    _each(state, _number)
    return state


def _each(value: Any, check: Callable[[Any], None]) -> None:
    if isinstance(value, Mapping):
        for inner in value.values():
            _each(inner, check)
    elif isinstance(value, list):
        for inner in value:
            _each(inner, check)
    elif value is not None:
        check(value)


def _number(value: Any) -> None:
    if isinstance(value, bool):
        return
    if not isinstance(value, int | float) or not abs(value) < 2.0**64:
        raise CheckpointDamaged(f"{value!r} is no number that a table has")


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise CheckpointDamaged(f"{value!r} is no whole number from 0 on")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CheckpointDamaged(f"{value!r} is no text")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointDamaged(f"{value!r} is no mapping")
    return value
