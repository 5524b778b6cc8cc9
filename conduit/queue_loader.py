"""Batches of a queue leased ahead of the learner, by a thread."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

from conduit.closing import Closing
from conduit.delivery import DeviceQueueBatch, Lack, QueueBatch
from conduit.devices import Device, open_device, pinned_pool
from conduit.values import seconds
from conduit_store.errors import ConduitError, ForkedHandle, QueueEnded, StoreClosed

if TYPE_CHECKING:
    from conduit.delivery import Consumer, Demand
    from conduit.queue import Queue
    from conduit_store.native import native

__all__ = ["QueueLoader"]

_SLICE_S = 0.05  # the thread looks this often whether it shall end
_UNSET = cast("float | None", object())
_Leased = QueueBatch | DeviceQueueBatch


class QueueLoader(Closing):
    """Leased batches of a queue, oldest rows first; from `queue.loader`. Iterate over it, or call `next`.

    Acknowledge each batch. Safe in any thread. Use it in a `with`, or `close` it: batches that were not handed over go
    back then; the garbage collector and the end of the interpreter close it too. Pickled by the queue's name and
    the settings. In a forked child it raises ForkedHandle.
    """

    def __init__(
        self,
        queue: Queue,
        taker: Consumer,
        demand: Demand,
        consumer: str | None,
        prefetch: int,
        timeout: float | None,
        device: Any,
    ) -> None:
        self._queue = queue
        self._demand = demand
        self._given = (consumer, prefetch, timeout, device)
        self._timeout = timeout
        self._ahead = _Ahead(taker, demand, prefetch, open_device(device), queue._table._store._native)
        queue._table._loaders.add(self)
        self._finalizer = weakref.finalize(self, self._ahead.close)

    def next(self, *, timeout: float | None = _UNSET) -> Any:
        """Return the next QueueBatch, leased to this process from now on for the queue's lease_timeout.

        With `device` a DeviceQueueBatch: what this thread asks of the device from now on comes after its copy.
        Waits up to `timeout` seconds (None: for ever; the loader's own if not given). Other threads run meanwhile.

        Raises:
            SampleTimeout: no batch in time; a later call goes on. QueueEnded: there will be none.
            CapacityError: as `Queue.sample`. StoreClosed: the store or this loader was closed, also while waiting.
            ForkedHandle: made before a fork.
        """
        return self._ahead.next(self._timeout if timeout is _UNSET else seconds(timeout))

    def close(self) -> None:
        """Stop, and give back what was not handed over. Idempotent."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether the loader, or its store, was closed here."""
        return self._ahead.closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.next()
        except QueueEnded:
            raise StopIteration from None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _reopen, (self._queue, self._demand, *self._given)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<QueueLoader of {self._queue.name!r}: {self._demand.rows} rows a batch{state}>"


class _Ahead:
    """What a loader and its thread share. The thread holds this and not the loader, so that it can be collected."""

    def __init__(
        self, taker: Consumer, demand: Demand, depth: int, device: Device | None, attachment: native.Attachment
    ) -> None:
        self._taker = taker
        self._demand = demand
        self._depth = depth
        self._device = device
        self._pool = pinned_pool(device)
        self._copying = threading.Lock()  # a device sees one thread at a time
        self._attachment = attachment
        self._forks = attachment.forks
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._ready: deque[_Leased] = deque()
        self._error: BaseException | None = None
        self._lack: Lack | None = None  # what the thread found when it looked last, and waits for more; None: it looks
        self._looks = 0  # that the thread has begun
        self._wanted = 0  # the first of them that may say what is lacking: earlier ones began before somebody asked
        self._flushed = 0  # how often what is ready was given back
        self._stop = False
        self._thread: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        return self._stop or self._attachment.closed

    def next(self, timeout: float | None) -> _Leased:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._check()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = self._taken(left) if self._depth == 0 else self._prepared(left)
            if isinstance(found, Lack):
                raise self._taker.refusal(found, self._demand, timeout)
            if self._depth == 0 or found._renew():
                return self._handed(found)
            # It ran out, or its rows are of an old policy. Those behind it come after what it gave back.
            with self._changed:
                for other in self._ready:
                    other.release()
                self._ready.clear()
                self._lack, self._flushed = None, self._flushed + 1
                self._changed.notify_all()

    def _taken(self, timeout: float | None) -> _Leased | Lack:
        """Lease a batch, and begin to copy it to the device."""
        batch = self._taker.attempt(self._demand, timeout, pool=self._pool)
        if self._device is None or isinstance(batch, Lack):
            return batch
        try:
            with self._copying:
                return DeviceQueueBatch(batch, *self._device.copy(batch.torch()))
        except BaseException:
            batch.release()  # the traceback keeps it, maybe for long
            raise

    def _handed(self, batch: _Leased) -> _Leased:
        if isinstance(batch, DeviceQueueBatch) and self._device is not None:
            self._device.hand_over(batch._tensors, batch._token)
        return batch

    def _check(self) -> None:
        if self._forks != self._attachment.forks:
            raise ForkedHandle("this loader belongs to the parent process: call queue.loader() again in the child")
        self._attachment.check()
        if self._stop:
            raise StoreClosed("this loader is closed: call queue.loader() for a new one")

    def _prepared(self, left: float | None) -> _Leased | Lack:
        """The next batch of the thread. Who leased beside it could get younger rows than it has in hand."""
        with self._changed:
            if self._thread is None:  # lazily: nothing is leased before the first call
                self._thread = threading.Thread(target=self._work, name="conduit-queue-loader", daemon=True)
                self._thread.start()
            if not self._changed.wait_for(self._told, left):  # then until the thread has looked, which waits for nobody
                if self._lack is None or (self._lack.waiting, self._lack.leased) != self._taker.standing():
                    self._lack, self._wanted = None, self._looks + 1
                self._changed.wait_for(lambda: self._told() or self._lack is not None)
            if self._stop:
                self._attachment.check()  # the store's end says more
                raise StoreClosed("this loader is closed: call queue.loader() for a new one")
            if self._ready:
                batch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            error, lack = self._error, self._lack
        if error is None:
            assert lack is not None
            return lack
        if not isinstance(error, QueueEnded):  # another call may fare better: a row too large may have been dropped
            self._restart()
        raise error

    def _told(self) -> bool:
        return bool(self._ready) or self._error is not None or self._stop

    def _restart(self) -> None:
        with self._changed:
            self._error, thread, self._thread = None, self._thread, None
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stop or len(self._ready) < self._depth)
                if self._stop:
                    return
                self._looks += 1
                look, flushed, slice_s = self._looks, self._flushed, 0.0 if self._lack is None else _SLICE_S
            try:
                found = self._taken(slice_s)
                if isinstance(found, Lack) and not found.may_come:
                    raise self._taker.refusal(found, self._demand, slice_s)
            except BaseException as error:
                with self._changed:
                    self._error, self._lack = error, None
                    self._changed.notify_all()
                return
            with self._changed:
                if isinstance(found, Lack):
                    self._lack = found if look >= self._wanted else None
                elif self._stop or flushed != self._flushed:  # older rows wait again
                    _give_back(found)
                else:
                    self._lack = None
                    self._ready.append(found)
                self._changed.notify_all()
            del found

    def close(self) -> None:
        if self._pid != os.getpid():
            return  # a forked child: the parent's thread may hold the lock for ever
        with self._changed:
            self._stop = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        while self._ready:
            _give_back(self._ready.popleft())
        close: Callable[[], None] | None = getattr(self._device, "close", None)
        if close is not None:
            close()


def _give_back(batch: _Leased) -> None:
    try:
        batch.release()
    except ConduitError:  # the store is closed: it has given all leases back
        return


def _reopen(
    queue: Queue, demand: Demand, consumer: str | None, prefetch: int, timeout: float | None, device: Any
) -> QueueLoader:
    return queue.loader(
        demand.rows, consumer=consumer, prefetch=prefetch, timeout=timeout, group_by=demand.group_by,
        group_size=demand.group_size, max_tokens=demand.max_tokens, tokens=demand.tokens, device=device,
    )  # fmt: skip
