"""What a process holds of a table: the core's object, its settings, the readers of its windows. Ends with the store."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any

from conduit import populate
from conduit.categories import categories_of
from conduit.disk import DiskTier
from conduit.extend import Extender
from conduit.sampling import Reader
from conduit.spec import TableSpec
from conduit.views import View, find
from conduit_store.errors import ConfigError, LockTimeout, ReadOnlyStore, StoreClosed
from conduit_store.native import native
from conduit_store.schema import Schema

if TYPE_CHECKING:
    from conduit.store import Store

__all__ = ["TableHandle"]


class TableHandle:
    """The part of `Table` that every other part stands on."""

    def __init__(self, store: Store, core: native.Table) -> None:
        self._store = store
        self._native = core
        self._spec = TableSpec.from_json(core.spec.decode())
        self._layout = self._spec.block_layout()
        self._categories = categories_of(core, self._spec)
        self._disk: DiskTier | None = None
        if self._spec.tiered:
            self._disk = DiskTier(core, self._spec, store._disk_path(self._spec), write=not store.read_only)
            self._disk.start()
        self._readers: dict[str, Reader] = {}
        if self._spec.queue is None:
            self._readers = {
                view.name: Reader(core, self._spec, view, self._categories) for view in self._spec.views
            }
        self._first = next(iter(self._readers.values()), None)
        self._extender = Extender(self)
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()  # those of queues too
        self._populating: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The table's name within its store."""
        return self._spec.name

    @property
    def schema(self) -> Schema:
        """Columns of the stored rows."""
        return self._spec.schema

    @property
    def batch_schema(self) -> Schema:
        """Columns of sampled batches, of the first window."""
        return self._reader(None).schema

    @property
    def batch_schemas(self) -> dict[str, Schema]:
        """Columns of sampled batches, by window. A window that was given without a name is called "default"."""
        return {name: reader.schema for name, reader in self._readers.items()}

    def _schema_now(self) -> Schema:
        """The schema with the categories that there are now: in a table made of it they have the same numbers."""
        return self.schema.with_values({name: of.values for name, of in self._categories.items()})

    def categories(self, name: str) -> tuple[str, ...]:
        """Return the values that a "category" column has until now, by their numbers. They are only ever added to.

        Raises:
            UnknownColumn: no such column. ConfigError: it has another dtype. StoreClosed: the store was closed here.
        """
        column = self.schema.column(name)
        if not column.categorical:
            raise ConfigError(f"column {name!r} of table {self.name!r} is {column.dtype_name}: it has no categories")
        return self._categories[name].values

    @property
    def max_size(self) -> int:
        """The most rows (steps, for episodes) that are live at a time."""
        return self._spec.max_size

    @property
    def spec(self) -> TableSpec:
        """All settings the table was created with."""
        return self._spec

    def __len__(self) -> int:
        """Live rows (steps, for episodes) now, exact.

        Raises:
            StoreClosed: the store was closed here.
        """
        return self._native.steps()

    def _view(self, window: str | None) -> View:
        return find(self._spec.views, window, self.name)

    def _reader(self, window: str | None) -> Reader:
        if window is None and self._first is not None:
            return self._first
        return self._readers[self._view(window).name]

    def _check_writable(self) -> None:
        if self._store.read_only:
            raise ReadOnlyStore(
                f"store {self._store.name!r} is attached read-only: attach with read_only=False to change "
                f"table {self.name!r}"
            )

    def _populate(self) -> None:
        """Touch the pages of the rows in the background, so that appends do not meet untouched ones."""
        self._populating = populate.start(self._store._native, self._native, self.name)

    def _close_loaders(self) -> None:
        for loader in list(self._loaders):
            loader.close()

    def _start_movers(self) -> None:
        if self._disk is not None:
            self._disk.start()

    def _close(self) -> None:
        if self._populating is not None:
            self._populating.join()  # it stops at its next slice
        if self._disk is not None:
            self._disk.stop()
        self._extender.close()
        if self._spec.queue is not None:
            with contextlib.suppress(LockTimeout, StoreClosed):  # a stopped process has the lock: time ends them
                self._native.end_leases()
        for reader in self._readers.values():
            reader.close()
        self._native.close()
