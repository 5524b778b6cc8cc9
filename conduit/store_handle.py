"""What a process holds of a store: segments, the server that answers others, tables and queues. Until it is closed."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

from conduit.closing import Closing
from conduit.metrics import StoreMetrics
from conduit.opening import Opened
from conduit.queue import Queue
from conduit.spec import TableSpec
from conduit.table import Table
from conduit_store import disk as files
from conduit_store import segment
from conduit_store.errors import ConfigError, UnknownTable, did_you_mean
from conduit_store.native import native

if TYPE_CHECKING:
    from conduit.store import Store
    from conduit_transport import shm

__all__ = ["StoreHandle", "open_stores"]

open_stores: weakref.WeakValueDictionary[tuple[str, bool], StoreHandle] = weakref.WeakValueDictionary()


class StoreHandle(Closing):
    """The part of `Store` that finds what is in it and lets go of it. Each is a `Store`: nothing else is made of it."""

    def __init__(self, opened: Opened) -> None:
        self._name = opened.name
        self._control_fd = opened.control_fd
        self._data_fd = opened.data_fd
        self._host_memory = opened.host_memory
        server = opened.server
        self._read_only = server is None
        self._native = native.Attachment(opened.control_fd, opened.data_fd, server is not None)
        self._server = server
        self._tables: dict[str, Table] = {}
        self._queues: dict[str, Queue] = {}
        self._writers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._finalizer = weakref.finalize(
            self, _release, opened.name, self._native, server, opened.control_fd, opened.data_fd
        )
        open_stores[opened.name, server is None] = self

    @property
    def name(self) -> str:
        """The name that other processes attach by."""
        return self._name

    @property
    def read_only(self) -> bool:
        """Whether this attach may not write."""
        return self._read_only

    @property
    def closed(self) -> bool:
        """Whether `close` has been called here."""
        return self._native.closed

    def table(self, name: str) -> Table:
        """Return the table `name`. Every call returns the same object.

        Raises:
            UnknownTable: there is none; says which there are. ConfigError: it is a queue.
            StoreClosed: the store was closed here.
        """
        table = self._table(name)
        if table.spec.queue is not None:
            raise ConfigError(f"{name!r} of store {self._name!r} is a queue: use store.queue({name!r})")
        return table

    __getitem__ = table

    def queue(self, name: str) -> Queue:
        """Return the queue `name`. Every call returns the same object.

        Raises:
            UnknownTable: there is none; says which there are. ConfigError: it is a table.
            StoreClosed: the store was closed here.
        """
        table = self._table(name)
        if table.spec.queue is None:
            raise ConfigError(f"{name!r} of store {self._name!r} is a table: use store.table({name!r})")
        with self._lock:
            return self._queues.setdefault(name, Queue(table))

    def _table(self, name: str) -> Table:
        with self._lock:
            existing = self._native.tables()
            found = self._tables.get(name) if isinstance(name, str) else None
            if found is not None:
                return found
            if name not in existing:
                has = f"it has {', '.join(existing) or 'none'}.{did_you_mean(name, existing)}"
                raise UnknownTable(f"store {self._name!r} has no table {name!r}; {has}")
            table = Table(cast("Store", self), native.Table(self._native, existing.index(name)))
            self._tables[name] = table
            return table

    def tables(self) -> list[str]:
        """Return the names of the tables and queues, in order of creation.

        Raises:
            StoreClosed: the store was closed here.
        """
        return self._native.tables()

    def metrics(self) -> StoreMetrics:
        """Return counts, times and sizes of the store and of each table.

        Raises:
            StoreClosed: the store was closed here. LockTimeout: a stopped process holds an index lock.
        """
        if not self._read_only:
            self._native.tidy(self._control_fd, self._data_fd)  # what a killed creator of a table had reserved
        processes = self._native.processes()
        reserved = segment.allocated_bytes(self._control_fd) + segment.allocated_bytes(self._data_fd)
        tables = {name: self._table(name).info() for name in self.tables()}
        queues = {name: self.queue(name).info() for name in tables if self._table(name).spec.queue is not None}
        alive = sum(lives for _, _, lives in processes)
        return StoreMetrics(self._name, self._host_memory, reserved, alive, tables, queues)

    def close(self) -> None:
        """Let go of the store in this process: writers first. Idempotent.

        Zero-copy views stay valid and keep their memory; everything else made from this store raises
        StoreClosed from now on, also in calls that are waiting. Other processes go on.
        """
        if not self._native.closed:
            self._native.shutdown()  # first of all: calls that wait, maybe with a lock, must come back
        for table in list(self._tables.values()):
            table._close_loaders()  # without the lock: a transform may be asking for it
        with self._lock:
            for writer in list(self._writers):
                writer.close()
            for queue in self._queues.values():
                queue._close()
            for table in self._tables.values():
                table._close()
            self._finalizer()
            if open_stores.get((self._name, self.read_only)) is self:
                del open_stores[self._name, self.read_only]

    def _disk_path(self, spec: TableSpec) -> str:
        assert spec.disk is not None
        return files.path_of(spec.disk.folder, self._name, self._native.created_ns, spec.name)


def _release(
    name: str, attachment: native.Attachment, server: shm.Server | None, control_fd: int, data_fd: int
) -> None:
    def release() -> None:
        attachment.close()
        if server is not None:
            server.stop()
            shm.unlink(name)  # only if nobody listens any more
        os.close(control_fd)
        os.close(data_fd)

    from conduit_transport import forks, shm

    forks.unguarded(release)
