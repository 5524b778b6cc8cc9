"""Rows into a queue one by one."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from conduit import queue_rows, rows
from conduit.queue_settings import POLICY_VERSION
from conduit.writer import Writer
from conduit_store.errors import AppendTimeout, ConfigError

if TYPE_CHECKING:
    from conduit.queue import Queue

__all__ = ["QueueWriter"]


class QueueWriter(Writer):
    """Appends rows one by one. From `queue.writer()`; for one thread of one process. Pickled, it becomes a new one."""

    def __init__(self, queue: Queue, *, policy_version: int | None = None, timeout: float | None = 10.0) -> None:
        self._queue = queue
        self._versioned = queue.settings.max_staleness is not None
        if policy_version is not None and not self._versioned:
            raise ConfigError(f"queue {queue.name!r} keeps no policy versions: create it with max_staleness=")
        self.policy_version = (
            None if policy_version is None else queue_rows.policy_version(policy_version)
        )
        super().__init__(queue._table, timeout=timeout)

    def append(self, *, priority: float | None = None, **columns: Any) -> None:
        """Append one row: a value for every column. `policy_version` may be left out where the writer has one.

        Waits up to the writer's timeout for room.

        Raises:
            StalePolicy, AppendTimeout, QueueEnded: as `Queue.extend`.
            MissingColumn, UnknownColumn, ShapeMismatch, DtypeMismatch, ValueOutOfRange: nothing was appended.
            ConfigError: a priority. StoreClosed: this writer or the store was closed. ForkedHandle: the parent's.
        """
        if self._versioned and POLICY_VERSION not in columns and self.policy_version is not None:
            columns[POLICY_VERSION] = operator.index(self.policy_version)
        try:
            super().append(priority=priority, **columns)
        except AppendTimeout:
            raise queue_rows.full(self._queue, self._timeout, *rows.blocked(self._native)) from None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _reopen, (self._queue, self.policy_version, self._timeout)

    def __repr__(self) -> str:
        return f"<QueueWriter of queue {self._name!r}{', closed' if self.closed else ''}>"


def _reopen(queue: Queue, version: int | None, timeout: float | None) -> QueueWriter:
    return queue.writer(policy_version=version, timeout=timeout)
