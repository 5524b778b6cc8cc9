"""Rows out of a queue: what a batch of them is, and what a consumer asks for."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conduit.balance import balance
from conduit.batch import Batch, BatchFormat, DeviceBatch, Formats
from conduit.categories import Categories
from conduit.values import as_keys, whole_number
from conduit_store.errors import CapacityError, ConduitError, ConfigError, QueueEnded, SampleTimeout, UnknownColumn
from conduit_store.native import native
from conduit_store.ragged import Ragged
from conduit_store.schema import Column

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from conduit.spec import TableSpec

__all__ = ["AT_DEADLINE", "AT_ONCE", "NEVER", "Consumer", "Demand", "DeviceQueueBatch", "QueueBatch"]

_TOKENS = "n_tokens"  # the column that max_tokens counts, if none is named
NEVER, AT_DEADLINE, AT_ONCE = range(3)  # when fewer rows than asked for will do; after the queue's end they always do
_TOO_FEW, _ENDED, _TOO_LARGE = 1, 2, 3  # TakeStatus of the core


class QueueBatch(Batch):
    """Rows of a queue, oldest first, leased to this process until `ack` or `release`. Columns and `keys` as of a Batch.

    A batch that is dropped without either goes back, as do those of a process that ends and those whose lease runs out:
    their rows are delivered again. In a forked child a parent's batch raises ForkedHandle.
    """

    __slots__ = ("_delivery", "_group_size")

    def __init__(
        self, staging: native.Staging, layout: BatchFormat, delivery: native.Delivery | None, group_size: int
    ) -> None:
        super().__init__(staging, layout)
        self._delivery = delivery
        self._group_size = group_size

    def ack(self, keys: Any = None) -> int:
        """Acknowledge the rows that are left of this batch, or those of `keys`: they are never delivered again.

        All of them or, if it raises or the process dies, none. Returns how many. A second call does nothing.

        Raises:
            LeaseExpired: the lease has ended; the rows are delivered again, maybe they have been already.
            StaleKey: a key names no row of this batch that is left; names the first. Nothing was acknowledged.
            StoreClosed: the store was closed here. ForkedHandle: delivered before a fork.
        """
        if self._delivery is None or self._delivery.left == 0:
            return 0
        if keys is None:
            return self._delivery.acknowledge(None, 0)
        chosen = as_keys(keys)
        return self._delivery.acknowledge(chosen, len(chosen))

    def release(self) -> None:
        """Give the rows that are not acknowledged back: they are delivered again, before younger ones. Idempotent.

        Raises:
            StoreClosed: the store was closed here. ForkedHandle: delivered before a fork.
        """
        if self._delivery is not None and self._delivery.left:
            self._delivery.release()

    def _renew(self) -> bool:
        """Begin the lease's time anew. False: the batch is of no use, for it has ended or is too stale now."""
        return self._delivery is None or self._delivery.renew()

    @property
    def unacknowledged(self) -> int:
        """Rows of this batch that have not been acknowledged or released."""
        return 0 if self._delivery is None else self._delivery.left

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """Rows of a queue are not drawn.

        Raises:
            UnknownColumn: always.
        """
        raise UnknownColumn("a batch of a queue has no probabilities: its rows are delivered, not drawn")

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Rows of a queue are not drawn.

        Raises:
            UnknownColumn: always.
        """
        raise UnknownColumn("a batch of a queue has no weights: its rows are delivered, not drawn")

    def split(self, parts: int, *, by: str | None = None) -> list[npt.NDArray[np.intp]]:
        """Divide the rows among `parts` learners: ascending row indices for each, about equal sums of column `by`.

        `by`: a column of numbers, or one whose rows vary in length: their lengths. None counts rows. Groups stay
        together. `batch["x"][part]` are a part's rows.

        Raises:
            UnknownColumn: no column `by`. ConfigError: parts less than 1. ShapeMismatch: `by` is no column of numbers.
        """
        lengths = np.ones(len(self), np.int64) if by is None else self[by]
        lengths = lengths.lengths if isinstance(lengths, Ragged) else lengths
        size = self._group_size
        if size == 1 or lengths.ndim != 1:
            return balance(lengths, parts)
        of_groups = lengths.reshape(-1, size).sum(axis=1)
        rows = np.arange(len(self), dtype=np.intp).reshape(-1, size)
        return [rows[groups].ravel() for groups in balance(of_groups, parts)]

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        raise ConfigError(
            f"{self!r} is leased to this process and cannot be pickled: send what is needed of it, such as "
            "{name: batch[name] for name in batch.names}, and acknowledge it here"
        )

    def __repr__(self) -> str:
        return f"<QueueBatch of {len(self)} rows, {self.unacknowledged} not acknowledged: {', '.join(self.names)}>"


class DeviceQueueBatch(DeviceBatch):
    """Rows of a queue whose columns are tensors on a device; from `queue.loader(device=...)`.

    Leased, acknowledged and divided as a QueueBatch, which stays in host memory as long as this does.
    """

    __slots__ = ("_host", "_token")

    def __init__(self, host: QueueBatch, tensors: dict[str, Any], token: Any) -> None:
        self._host, self._tensors, self._token = host, tensors, token
        self._format, self.keys = host._format, host.keys

    def ack(self, keys: Any = None) -> int:
        """As `QueueBatch.ack`."""
        return self._host.ack(keys)

    def release(self) -> None:
        """As `QueueBatch.release`."""
        self._host.release()

    def _renew(self) -> bool:
        """As `QueueBatch._renew`."""
        return self._host._renew()

    @property
    def unacknowledged(self) -> int:
        """Rows of this batch that have not been acknowledged or released."""
        return self._host.unacknowledged

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:  # type: ignore[override]
        """Rows of a queue are not drawn.

        Raises:
            UnknownColumn: always. So does `weights`.
        """
        return self._host.probabilities

    @property
    def weights(self) -> torch.Tensor:
        """As `probabilities`."""
        raise UnknownColumn("a batch of a queue has no weights: its rows are delivered, not drawn")

    def split(self, parts: int, *, by: str | None = None) -> list[npt.NDArray[np.intp]]:
        """As `QueueBatch.split`; looks at the host's columns, so that nothing waits for the device."""
        return self._host.split(parts, by=by)

    def __repr__(self) -> str:
        left = self.unacknowledged
        return f"<DeviceQueueBatch of {len(self)} rows, {left} not acknowledged: {', '.join(self.names)}>"


@dataclass(frozen=True, slots=True)
class Demand:
    """What a consumer asks for with each batch; see `Queue.sample`. Checked against the queue by `Consumer.check`."""

    rows: int | None
    group_by: str | None = None
    group_size: int | None = None
    max_tokens: int | None = None
    tokens: str = _TOKENS


class Lack(NamedTuple):
    """Why there is no batch, and what there is of the demand."""

    status: int
    waiting: int  # rows
    leased: int
    complete: int  # groups
    key: int  # of the row that is too large
    tokens: int

    @property
    def may_come(self) -> bool:
        """Whether only rows are missing: there may be some later."""
        return self.status == _TOO_FEW


class Consumer:
    """One consumer group of a queue, as one process sees it. Safe in any thread."""

    def __init__(
        self, core: native.Table, spec: TableSpec, name: str, index: int, categories: Mapping[str, Categories]
    ) -> None:
        self._native = native.Consumer(core, index)
        self._table, self._index = core, index
        self._spec = spec
        self._name = name
        self._groups: dict[tuple[str, int], native.Groups] = {}
        self._formats = Formats(spec.schema, categories, drawn=False)
        self._lock = threading.Lock()

    def check(self, demand: Demand) -> Demand:
        """Return the demand with its numbers checked.

        Raises:
            ConfigError: it can never be met, or contradicts itself. UnknownColumn: no such column.
        """
        size, most, limit = demand.group_size, demand.rows, self._spec.max_size
        if (demand.group_by is None) != (size is None):
            raise ConfigError("group_by and group_size belong together: give both, or neither")
        if demand.group_by is not None:
            self._integers("group_by", demand.group_by)
            size = whole_number("group_size", size, 1, limit)
        if demand.max_tokens is not None:
            whole_number("max_tokens", demand.max_tokens, 1, (1 << 62) - 1)
            self._lengths(demand.tokens)
        elif most is None:
            raise ConfigError("give a number of rows, or max_tokens")
        elif demand.tokens != _TOKENS:
            raise ConfigError(f"tokens={demand.tokens!r} says what max_tokens counts: give that too, or leave it out")
        if most is None:
            most = limit // (size or 1) * (size or 1)
        try:
            most = operator.index(most)
        except TypeError:
            most = 0
        if not 1 <= most <= limit:
            raise ConfigError(f"a batch of {demand.rows!r} rows: give 1 to {limit:,}, the queue's max_size")
        if size is not None and most % size:
            raise ConfigError(f"a batch of {most} rows is no number of groups of {size}: give a multiple of {size}")
        return Demand(most, demand.group_by, size, demand.max_tokens, demand.tokens)

    def _lengths(self, name: str) -> None:
        """A column of whole numbers, or one whose rows vary in length."""
        if not (isinstance(name, str) and name in self._spec.schema and self._spec.schema.column(name).ragged):
            self._integers("tokens", name)

    def _integers(self, argument: str, name: str) -> Column:
        if not isinstance(name, str) or name not in self._spec.schema:
            raise UnknownColumn(f"{argument} is {name!r}: the queue has {', '.join(self._spec.schema.names)}")
        column = self._spec.schema.column(name)
        if column.mutable:
            raise ConfigError(f"{argument} is {name!r}, which is mutable: rows are looked at once, as they come in")
        if column.nullable:
            raise ConfigError(f"{argument} is {name!r}, which is nullable: give a column that every row has a value of")
        if column.dtype.kind not in "iub" or column.shape != ():
            raise ConfigError(
                f"{argument} is {name!r}, {column.dtype} of shape {column.shape}: give a column of whole numbers"
            )
        return column

    def take(self, demand: Demand, timeout: float | None, *, partial: int = NEVER) -> QueueBatch:
        """Return the next batch of a checked demand; see `Queue.sample`. `partial`: when fewer rows will do."""
        found = self.attempt(demand, timeout, partial=partial)
        if isinstance(found, Lack):
            raise self.refusal(found, demand, timeout)
        return found

    def attempt(
        self, demand: Demand, timeout: float | None, *, partial: int = NEVER, pool: native.StagingPool | None = None
    ) -> QueueBatch | Lack:
        """As `take`; what there is instead where there is no batch.

        `pool`: where the batch's memory comes from, the process's own if None.
        """
        groups = None if demand.group_by is None else self.groups(demand.group_by, demand.group_size)
        column, width, signed = 0, 0, False
        if demand.max_tokens is not None:
            column = self._spec.schema.names.index(demand.tokens)
            counted = self._spec.schema.columns[column]
            width, signed = counted.row_bytes, counted.dtype.kind == "i"
        assert demand.rows is not None
        status, staging, delivery, n, *lack = self._native.take(
            demand.rows, groups, demand.max_tokens or 0, column, width, signed, partial, timeout, pool
        )
        if staging is None:
            return Lack(status, *lack)
        return QueueBatch(staging, self.format(n), delivery, demand.group_size or 1)

    def refusal(self, lack: Lack, demand: Demand, timeout: float | None) -> ConduitError:
        """Return the error that says so."""
        queue = f"queue {self._spec.name!r}"
        if lack.status == _TOO_LARGE:
            what = "the row" if demand.group_size is None else f"the group of {demand.group_size} rows that begins"
            return CapacityError(
                f"{what} with key {lack.key} of {queue} has {lack.tokens:,} tokens, max_tokens is "
                f"{demand.max_tokens:,}: nothing was delivered. Raise max_tokens, or give such rows up with queue.drop"
            )
        if lack.status == _ENDED:
            rest = f"; {lack.waiting} rows of incomplete groups are left" if lack.waiting else ""
            return QueueEnded(f"{queue} has ended and consumer {self._name!r} has had every row{rest}")
        assert lack.status == _TOO_FEW
        wanted = f"{demand.rows} rows"
        if demand.group_size is not None:
            wanted += f" in groups of {demand.group_size} by {demand.group_by!r} ({lack.complete} groups are complete)"
        if demand.max_tokens is not None:
            wanted = f"{demand.max_tokens:,} tokens or {wanted}"
        return SampleTimeout(
            f"{queue} has not {wanted} for consumer {self._name!r} after {timeout} s: {lack.waiting} rows wait, "
            f"{lack.leased} are out with others. Check that producers run and batches are acknowledged, or ask for "
            "fewer (partial=True)"
        )

    def standing(self) -> tuple[int, int]:
        """Rows that wait, and rows that are out."""
        waiting, leased, *_ = self._table.queue_info()["groups"][self._index]
        return waiting, leased

    def nothing(self) -> QueueBatch:
        """Return a batch of no rows."""
        return QueueBatch(self._native.nothing(), self.format(0), None, 1)

    def drop(self, keys: npt.NDArray[np.uint64]) -> int:
        return self._native.drop(keys, len(keys))

    def incomplete(self, group_by: str, group_size: int | None) -> list[tuple[Any, int, float]]:
        """Return (value, rows, seconds since the first of them) of each incomplete group, the oldest first."""
        dtype = self._integers("group_by", group_by).dtype
        found = self._native.incomplete(self.groups(group_by, group_size))
        return [(np.frombuffer(value, dtype)[0].item(), rows, age) for value, rows, age in found]

    def drop_incomplete(self, group_by: str, group_size: int | None, older_than: float) -> int:
        self._integers("group_by", group_by)
        return self._native.drop_incomplete(self.groups(group_by, group_size), older_than)

    def groups(self, group_by: str, group_size: int | None) -> native.Groups:
        size = whole_number("group_size", group_size, 1, self._spec.max_size)
        with self._lock:
            found = self._groups.get((group_by, size))
            if found is None:
                column = self._spec.schema.names.index(group_by)
                found = self._groups[group_by, size] = self._native.groups(column, size)
            return found

    def format(self, n: int) -> BatchFormat:
        return self._formats.of(n, self._native.offsets)

    def close(self) -> None:
        self._native.close()
