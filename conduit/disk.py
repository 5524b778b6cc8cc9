"""Tables that outgrow memory: rows beyond a bound lie on disk, and are sampled as if they were in memory."""

from __future__ import annotations

import atexit
import base64
import contextlib
import logging
import os
import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from conduit.values import as_path
from conduit_store import disk as files
from conduit_store import memory
from conduit_store.errors import ConduitError, ConfigError, LockTimeout, MissingExtra, StoreClosed
from conduit_store.native import native
from conduit_store.schema import Schema

if TYPE_CHECKING:
    from conduit.spec import TableSpec

__all__ = ["Disk", "DiskTier"]

logger = logging.getLogger("conduit")

_LOOK_EVERY = 5.0  # seconds, if nobody asks before


@dataclass(frozen=True, slots=True)
class Disk:
    """Where the rows of a table go that do not fit into `host_memory`; give it as `create_table(..., disk=...)`.

    `folder`: an existing folder of a local disk that every process of the store sees. `host_memory`: what the table's
    rows may take of memory, as "4GiB" or bytes; the newest rows stay there, and older ones that are sampled much more
    often than others. `capacity`: the most bytes of disk, any number if None. The table still holds `max_size` rows.
    `compression`: "lz4" or "zstd" have blocks compressed there, which are then small (64 KiB): a row is read by
    decompressing the block it is in. Tables only, whose columns are not mutable; needs the system's liblz4 or libzstd.

    Rows move by blocks. The file is sparse and removed with the last process that has the table open; files of killed
    processes are swept when a table is created in the same folder. It is no checkpoint: `store.checkpoint` makes those.

    Example:
        >>> disk = conduit.Disk("/scratch", host_memory="8GiB")
        >>> table = store.create_table("replay", schema, 50_000_000, disk=disk)

    Raises:
        ConfigError: not a size, or another compression.
    """

    folder: str
    host_memory: int
    capacity: int | None = None
    compression: str | None = None

    def __init__(
        self,
        folder: str | os.PathLike[str],
        host_memory: str | int,
        capacity: str | int | None = None,
        *,
        compression: str | None = None,
    ) -> None:
        if compression not in (None, "lz4", "zstd"):
            raise ConfigError(f"compression is {compression!r}: give 'lz4', 'zstd' or None")
        object.__setattr__(self, "folder", os.path.abspath(as_path(folder)))
        object.__setattr__(self, "host_memory", memory.parse_bytes(host_memory))
        object.__setattr__(self, "capacity", None if capacity is None else memory.parse_bytes(capacity))
        object.__setattr__(self, "compression", compression)


@dataclass(frozen=True, slots=True)
class Messages:
    """What of Arrow's format a table's file holds beside the rows, made once: others need no pyarrow."""

    head: bytes
    record: bytes
    numbers: list[tuple[int, int, int, int]]  # in `record`, see `record_header`
    packed: bytes = b""  # the same of compressed blocks
    packed_numbers: list[tuple[int, int, int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, schema: Schema, layout: Any, compression: str | None) -> Messages:
        """Return them for a table's blocks.

        Raises:
            MissingExtra: the library of the compression is not on this machine.
        """
        made = cls(files.schema_head(schema), *files.record_header(schema, layout))
        if compression is None:
            return made
        if not native.has_codec(compression):
            raise MissingExtra(
                f"compression={compression!r} needs lib{compression}.so.1, which this machine lacks: install the "
                f"system's package of {compression}"
            )
        packed, numbers = files.record_header(schema, layout, compression)
        return replace(made, packed=packed, packed_numbers=numbers)

    def to_json(self) -> dict[str, Any]:
        """Return them as JSON has them."""
        text = {what: base64.b64encode(getattr(self, what)).decode() for what in ("head", "record", "packed")}
        return {**text, "numbers": self.numbers, "packed_numbers": self.packed_numbers}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Messages:
        """Return what `to_json` wrote."""
        # Tables that were saved before there was compression have none.
        fields = {"packed": "", "packed_numbers": [], **fields}
        text = [base64.b64decode(fields[what]) for what in ("head", "record", "packed")]
        numbers = [[(n[0], n[1], n[2], n[3]) for n in fields[what]] for what in ("numbers", "packed_numbers")]
        return cls(text[0], text[1], numbers[0], text[2], numbers[1])


class DiskTier:
    """The file of one table in this process, and the thread that moves blocks."""

    def __init__(self, core: native.Table, spec: TableSpec, path: str, *, write: bool) -> None:
        assert spec.messages is not None
        fd = files.open_file(path, create=False, write=write)
        made, codec = spec.messages, (spec.disk.compression if spec.disk else None) or ""
        core.use_disk(fd, path, made.head, made.record, made.numbers, codec, made.packed, made.packed_numbers)
        self._core = core
        self._write = write
        self._name = spec.name
        self._stop = threading.Event()
        self._mover: threading.Thread | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Have a thread here that moves blocks: each process that writes needs one. Idempotent, also after a fork."""
        if not self._write or self._pid == os.getpid():
            return
        with self._lock:
            if self._pid == os.getpid() or self._stop.is_set():
                return
            self._mover = threading.Thread(target=self._run, name=f"conduit-disk-{self._name}", daemon=True)
            _tiers.add(self)
            self._mover.start()
            self._pid = os.getpid()

    def _run(self) -> None:
        failing = False
        while not self._stop.is_set():
            try:
                moved = self._core.move_blocks(_LOOK_EVERY)
            except LockTimeout:
                continue
            except ConduitError:  # closed
                return
            if moved < 0 and not failing:
                logger.warning("table %r: rows cannot be moved to disk; appends raise DiskError", self._name)
            failing = moved < 0 or (failing and moved == 0)

    def stop(self) -> None:
        """End the thread; waits for the block that it is moving."""
        self._stop.set()
        mover = self._mover
        while mover is not None and self._pid == os.getpid() and mover.is_alive():
            with contextlib.suppress(StoreClosed):
                self._core.wake_movers()
            mover.join(0.02)


_tiers: weakref.WeakSet[DiskTier] = weakref.WeakSet()


@atexit.register
def _stop_movers() -> None:
    """A thread that came back from the core after the interpreter's end would abort."""
    for tier in list(_tiers):
        tier.stop()
