"""A new table in a store: its record, its memory, and its file where it has rows on disk."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from conduit.spec import TableSpec
from conduit.values import check_flags
from conduit_store import disk as files
from conduit_store import memory
from conduit_store.errors import NameTaken, ReadOnlyStore

if TYPE_CHECKING:
    from conduit.store_handle import StoreHandle
    from conduit.table import Table

__all__ = ["create"]

logger = logging.getLogger("conduit")


def create(store: StoreHandle, spec: TableSpec, *, exist_ok: bool = False, populate: bool = True) -> Table:
    """Create the table, or with `exist_ok` return one that is there with the very same settings.

    `populate`: whether to touch its memory in the background from now on.

    Raises:
        What `Store.create_table` raises.
    """
    check_flags(exist_ok=exist_ok)
    name, core = spec.name, store._native
    record = spec.to_native()
    core.check()
    if store.read_only:
        raise ReadOnlyStore(f"store {store.name!r} is attached read-only: attach with read_only=False")
    if name not in core.tables():
        index_bytes, data_bytes = core.table_bytes(record)
        memory.check_fits(index_bytes + data_bytes, f"table {name!r} of {spec.max_size:,} rows")
    try:
        with _disk_file(store, spec) if spec.tiered else contextlib.nullcontext():
            core.create_table(store._control_fd, store._data_fd, record)
            table = store._table(name)
    except NameTaken:
        table = store._table(name)
        if exist_ok and table.spec == spec:
            return table
        if exist_ok:
            raise NameTaken(f"table {name!r} exists with other settings: {table.spec.to_json()}") from None
        raise
    logger.info("%s", table.describe())
    if populate:
        table._populate()
    return table


@contextlib.contextmanager
def _disk_file(store: StoreHandle, spec: TableSpec) -> Iterator[None]:
    """Have the file of a table's rows on disk while it is created; removed again if it is not."""
    assert spec.disk is not None
    for path in files.sweep(spec.disk.folder):
        logger.info("removed %s, left by a process that was killed", path)
    path = store._disk_path(spec)
    fd = files.open_file(path, create=True, write=True)
    try:
        yield
    except BaseException:
        if spec.name not in store._native.tables():
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    finally:
        os.close(fd)
