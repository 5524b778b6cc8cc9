"""A queue: rows that are each delivered until acknowledged, and then never again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from conduit import queue_rows
from conduit.delivery import AT_DEADLINE, AT_ONCE, NEVER, Consumer, Demand, QueueBatch
from conduit.metrics import QueueMetrics
from conduit.queue_loader import QueueLoader
from conduit.queue_settings import QueueSettings
from conduit.queue_writer import QueueWriter
from conduit.values import as_keys, real_number, seconds, whole_number
from conduit_store.errors import AppendTimeout, ConfigError, QueueEnded, ReadOnlyStore, SampleTimeout
from conduit_store.schema import Schema

if TYPE_CHECKING:
    import numpy.typing as npt

    from conduit.blocks import BlockView
    from conduit.spec import TableSpec
    from conduit.table import Table, UpdateResult

__all__ = ["Queue", "QueueWriter"]


class Queue:
    """A queue as this process sees it; from `store.create_queue` or `store.queue`. Safe in any thread.

    Every consumer group gets every row, at least once: a row that was delivered and not acknowledged is delivered
    again, one that was acknowledged never. Rows of one producer come in the order in which it appended them; those
    of several in the order in which their blocks were opened. A producer is a writer, or the `extend` of one process.
    Pickled by name.
    """

    # Rows that come in: queue_rows.py. Rows that go out: delivery.py. In between they are in the table beneath.

    def __init__(self, table: Table) -> None:
        self._table = table
        self._native = table._native
        settings = table.spec.queue
        assert settings is not None
        self._settings = settings
        self._consumers: dict[str, Consumer] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The queue's name within its store."""
        return self._table.name

    @property
    def schema(self) -> Schema:
        """Columns of the rows, `policy_version` included where rows have one."""
        return self._table.schema

    @property
    def max_size(self) -> int:
        """The most rows that some consumer group has not acknowledged."""
        return self._table.max_size

    @property
    def consumers(self) -> tuple[str, ...]:
        """Names of the consumer groups."""
        return tuple(self._settings.consumers)

    @property
    def settings(self) -> QueueSettings:
        """What makes this table a queue."""
        return self._settings

    @property
    def spec(self) -> TableSpec:
        """All settings the queue was created with."""
        return self._table.spec

    def __len__(self) -> int:
        """Rows that some consumer group has not acknowledged, exact.

        Raises:
            StoreClosed: the store was closed here.
        """
        return len(self._table)

    # ---- in

    @overload
    def extend(
        self, columns: Any, *, policy_version: Any = None, timeout: float | None = 10.0,
        return_keys: Literal[False] = False,
    ) -> int: ...  # fmt: skip
    @overload
    def extend(
        self, columns: Any, *, policy_version: Any = None, timeout: float | None = 10.0, return_keys: Literal[True]
    ) -> npt.NDArray[np.uint64]: ...
    def extend(
        self, columns: Any, *, policy_version: Any = None, timeout: float | None = 10.0, return_keys: bool = False
    ) -> int | npt.NDArray[np.uint64]:
        """Append whole arrays, as `Table.extend` takes them: all rows, or none if it raises.

        `policy_version`: of all rows, or int64 (n,), where the queue has max_staleness; it may also be one of the
        columns. Waits up to `timeout` seconds (None: for ever) for room: `max_size` less the rows that are not
        acknowledged. Returns n, or with `return_keys` the keys of the n rows, uint64 (n,).

        Raises:
            StalePolicy: a version is more than max_staleness behind the learner's, maybe since it waited.
            AppendTimeout: no room in time; says what holds it. CapacityError: more rows than max_size, or than memory
                has room for. DiskError: rows that should go to disk cannot.
            QueueEnded: `end` was called. ReadOnlyStore: this attach is read-only.
            MissingColumn, UnknownColumn, ShapeMismatch, DtypeMismatch, ValueOutOfRange: see Schema.
        """
        if self._settings.max_staleness is not None or policy_version is not None:
            columns = queue_rows.with_versions(self, columns, policy_version)
        try:
            put: int | npt.NDArray[np.uint64] = self._table._extender.extend(columns, None, timeout, keys=return_keys)
            return put
        except AppendTimeout:
            raise queue_rows.full(self, timeout, *self._table._extender.blocked) from None

    def update(self, keys: Any, values: Mapping[str, Any] | None = None, /, **columns: Any) -> UpdateResult:
        """Rewrite mutable columns of rows that some consumer group has not acknowledged; as `Table.update`."""
        return self._table.update(keys, values, **columns)

    def writer(self, *, policy_version: int | None = None, timeout: float | None = 10.0) -> QueueWriter:
        """Return a writer for rows one by one. `policy_version`: of its rows until another is given.

        Raises:
            ReadOnlyStore, StoreClosed: this attach cannot write. ConfigError: versions in a queue without them.
        """
        return QueueWriter(self, policy_version=policy_version, timeout=timeout)

    def end(self) -> None:
        """Declare that no more rows will come. Consumers get the rest, the last batch maybe short, then QueueEnded.

        For every process, and for good. Appends raise QueueEnded from now on. Idempotent.

        Raises:
            ReadOnlyStore, StoreClosed: this attach cannot write.
        """
        self._check_writable()
        self._native.end()

    @property
    def ended(self) -> bool:
        """Whether `end` has been called in any process."""
        return self._native.ended

    @property
    def policy_version(self) -> int:
        """The learner's version, the same in every process; 0 at first. Only grows.

        Raises (when set):
            ConfigError: lower than it was, or a queue without max_staleness. ReadOnlyStore.
        """
        return self._native.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._check_writable()
        if self._settings.max_staleness is None:
            raise ConfigError(f"queue {self.name!r} keeps no policy versions: create it with max_staleness=")
        self._native.raise_version(queue_rows.policy_version(version))

    # ---- out

    def sample(
        self,
        n: int | None = None,
        *,
        consumer: str | None = None,
        timeout: float | None = 10.0,
        partial: bool = False,
        group_by: str | None = None,
        group_size: int | None = None,
        max_tokens: int | None = None,
        tokens: str = "n_tokens",
    ) -> QueueBatch:
        """Lease the `n` oldest rows that wait for a consumer group, and copy them out.

        Waits up to `timeout` seconds (None: for ever) until there are n; with `partial`, then gives what there is, if
        any. After `end` it gives what is left, at once. `consumer` may be left out where there is only one group.
        `group_by`, `group_size`: rows in whole groups of that size which share the value of a column (of whole
        numbers), each group contiguous, in the order in which they became complete; n is a multiple of group_size.
        Groups with a row that is too stale are dropped whole.
        `max_tokens`: as many rows (groups) as fit, in order, at least one; `tokens` names the column of their lengths,
        or one whose rows vary in length: its own are counted then. n is the most rows, or None.
        Other threads run meanwhile.

        Raises:
            SampleTimeout: says how many rows wait and are out.
            QueueEnded: after `end`, when every row was acknowledged.
            CapacityError: a row (group) is above max_tokens by itself; names it. Nothing was leased.
            ConfigError: a demand that contradicts itself or the queue. UnknownColumn: no such column.
            ReadOnlyStore: this attach is read-only. StoreClosed: the store was closed here, also while waiting.
            LockTimeout: a stopped process holds the index lock; names it.
        """
        taker = self._consumer(consumer)
        demand = taker.check(Demand(n, group_by, group_size, max_tokens, tokens))
        return taker.take(demand, seconds(timeout), partial=AT_DEADLINE if partial else NEVER)

    def drain(self, *, consumer: str | None = None, timeout: float | None = 0.0) -> QueueBatch:
        """Lease every row that waits for a consumer group, in one batch; one of no rows if there are none.

        Waits up to `timeout` seconds for the first row. Acknowledge the batch as any other.

        Raises:
            What `sample` raises, but for SampleTimeout and QueueEnded.
        """
        taker = self._consumer(consumer)
        try:
            return taker.take(Demand(self.max_size), seconds(timeout), partial=AT_ONCE)
        except (SampleTimeout, QueueEnded):
            return taker.nothing()

    def ack(self, batch: QueueBatch, keys: Any = None) -> int:
        """Acknowledge a batch; see `QueueBatch.ack`."""
        return batch.ack(keys)

    def loader(
        self,
        n: int | None = None,
        *,
        consumer: str | None = None,
        prefetch: int = 1,
        timeout: float | None = 10.0,
        group_by: str | None = None,
        group_size: int | None = None,
        max_tokens: int | None = None,
        tokens: str = "n_tokens",
        device: Any = None,
    ) -> QueueLoader:
        """Return a loader: `for batch in queue.loader(64): ...; batch.ack()`. It ends when the queue has.

        `prefetch`: batches leased ahead by a thread while you compute; 0 leases each at the call. What was not handed
        over goes back at `close`. At hand-over a lease begins anew, and rows that have become too stale are dropped:
        with max_staleness=0 no row of an older policy comes out. `device`: "cuda:0", say: batches are
        DeviceQueueBatch, whose columns were copied there, on a side stream, by the thread that leased them. The rest
        as of `sample`.

        Raises:
            ConfigError: as `sample`, or no such device. UnknownColumn, ReadOnlyStore: as `sample`.
            MissingExtra: device without torch.
        """
        taker = self._consumer(consumer)
        demand = taker.check(Demand(n, group_by, group_size, max_tokens, tokens))
        prefetch = whole_number("prefetch", prefetch, 0, 1024)
        return QueueLoader(self, taker, demand, consumer, prefetch, seconds(timeout), device)

    # ---- groups that do not become complete, and rows that nobody wants

    def incomplete(
        self, group_by: str, *, group_size: int, consumer: str | None = None
    ) -> list[tuple[Any, int, float]]:
        """Return (value, rows, age in seconds) of each group that is not complete, the oldest first.

        Only rows that wait are counted. Age is that of a group's first row.

        Raises:
            ConfigError, UnknownColumn, ReadOnlyStore: as `sample`.
        """
        return self._consumer(consumer).incomplete(group_by, group_size)

    def drop_incomplete(
        self, group_by: str, *, group_size: int, older_than: float = 0.0, consumer: str | None = None
    ) -> int:
        """Give up the rows of groups that are not complete and whose first row is older than so many seconds.

        They count as acknowledged by this consumer group, and as dropped. Returns how many rows.

        Raises:
            ConfigError, UnknownColumn, ReadOnlyStore: as `sample`.
        """
        age = real_number("older_than", older_than, 0.0, 1e9)
        return self._consumer(consumer).drop_incomplete(group_by, group_size, age)

    def drop(self, keys: Any, *, consumer: str | None = None) -> int:
        """Give up rows that wait for a consumer group: they count as acknowledged by it, and as dropped.

        Keys of rows that are out or gone are skipped. Returns how many rows.

        Raises:
            ConfigError, ReadOnlyStore: as `sample`.
        """
        return self._consumer(consumer).drop(as_keys(keys))

    # ---- the whole

    def clear(self) -> None:
        """Drop every row, those that are out too: their acknowledgement then raises LeaseExpired."""
        self._table.clear()

    def blocks(self) -> list[BlockView]:
        """Return zero-copy views of the blocks that hold rows; see `Table.blocks`.

        A view begins with its block's first row that is not done; rows that were acknowledged before those are in it.
        """
        return self._table.blocks()

    def info(self) -> QueueMetrics:
        """Return the queue's counts."""
        producers = self._table.info().open_writers
        return QueueMetrics.from_native(self.name, self.max_size, self.consumers, producers, self._native.queue_info())

    def verify(self) -> None:
        """Recount everything that is derived and compare; see `Table.verify`.

        Raises:
            ConduitError: what disagrees.
        """
        self._table.verify()

    def describe(self) -> str:
        """Return one line: rows, bytes, blocks."""
        return self._table.describe().replace("table", "queue", 1)

    def _consumer(self, name: str | None) -> Consumer:
        self._check_writable()
        names = self.consumers
        if name is None:
            name, *others = names
            if others:
                raise ConfigError(f"queue {self.name!r} has the consumers {', '.join(names)}: say which, consumer=...")
        if not isinstance(name, str) or name not in names:
            raise ConfigError(f"queue {self.name!r} has no consumer {name!r}; it has {', '.join(names)}")
        with self._lock:
            found = self._consumers.get(name)
            if found is None:
                found = Consumer(self._native, self._table.spec, name, names.index(name), self._table._categories)
                self._consumers[name] = found
            return found

    def _check_writable(self) -> None:
        store = self._table._store
        store._native.check()
        if store.read_only:
            raise ReadOnlyStore(
                f"store {store.name!r} is attached read-only, and consumers change a queue: attach with read_only=False"
            )

    def _close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()

    def __reduce__(self) -> tuple[Any, tuple[str, bool, str]]:
        return _shared_queue, (self._table._store.name, self._table._store.read_only, self.name)

    def __repr__(self) -> str:
        if self._table._store.closed:
            return f"<Queue {self.name!r} of a closed store>"
        return f"<Queue {self.name!r} {len(self):,} of {self.max_size:,} rows, for {', '.join(self.consumers)}>"


def _shared_queue(store: str, read_only: bool, name: str) -> Queue:
    from conduit.store import _shared

    return _shared(store, read_only).queue(name)
