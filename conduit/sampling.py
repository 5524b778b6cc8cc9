"""Reading from a table: what a window's batch looks like, random streams, samplers for each thread."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from conduit import limiting
from conduit.batch import Batch, BatchFormat, Formats
from conduit.categories import Categories
from conduit.hindsight import Relabelling
from conduit.plans import plan_of
from conduit.spec import TableSpec
from conduit.values import seconds, whole_number
from conduit.views import View
from conduit.windows import Hindsight
from conduit_store.errors import CapacityError, ConduitError, StaleKey
from conduit_store.native import native

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Reader"]

_OWN_STREAMS = 1 << 31  # streams that callers name, apart from those that are handed out
_MAX_ROWS = (1 << 31) - 1


class Reader:
    """Samples one view of a table for one process. Safe in any thread: each call has a native sampler of its own."""

    def __init__(
        self,
        core: native.Table,
        attachment: native.Attachment,
        spec: TableSpec,
        view: View,
        categories: Mapping[str, Categories],
    ) -> None:
        self._native = core
        self._attachment = attachment
        self.view = view
        self._name = spec.name
        self._max_size = spec.max_size
        self._most = spec.max_size if view.distinct else _MAX_ROWS
        self._limiter = spec.limiter
        self.counted = spec.max_times_sampled is not None
        self._plan, self.schema = plan_of(spec.schema, view)
        self.relabelling = Relabelling(view, spec.name) if isinstance(view.window, Hindsight) else None
        self._idle: list[native.Sampler] = []
        self._formats = Formats(self.schema, categories, drawn=True)
        self._lock = threading.Lock()
        self._stream: int | None = None
        self._forks = attachment.forks
        self._batches: dict[int, int] = {}
        self._closed = False

    def sample(self, n: int, timeout: float | None, stream: int | None) -> Batch:
        n = operator.index(n)
        if not 1 <= n <= _MAX_ROWS:
            raise ValueError(f"sample({n}): give a number of rows from 1 to {_MAX_ROWS:,}")
        if n > self._most:
            self.check_batch(n)
        timeout = seconds(timeout)
        if self.relabelling is not None:
            self.relabelling.prepare()  # before anything is drawn
        sampler = self._take()
        try:
            with self._lock:
                if self._forks != self._attachment.forks:
                    self._forget_parent()
                if stream is None:
                    chosen = self._stream
                    if chosen is None:
                        chosen = self._stream = self._native.next_stream()
                else:
                    chosen = _OWN_STREAMS | whole_number("stream", stream, 0, (1 << 31) - 1)
                batch = self._batches.get(chosen)
                if batch is None:
                    batch = self._next(chosen)
                self._batches[chosen] = batch + 1
            staging: native.Staging | None = None
            try:
                staging, lacking = sampler.sample(n, chosen, batch, timeout)
            finally:
                if staging is None:  # nothing was delivered: the next call draws this batch
                    with self._lock:
                        if self._batches.get(chosen) == batch + 1:
                            self._batches[chosen] = batch
            if staging is None:
                assert lacking is not None
                raise self.refused(n, timeout, lacking)
            made = Batch(staging, self._formats.found.get(n) or self._formats.of(n, sampler.offsets))
        finally:
            self._idle.append(sampler)
            if self._closed:
                self.close()
        if self.relabelling is not None:
            self.relabelling.apply(made)
        return made

    def _forget_parent(self) -> None:
        """Streams of a forked child's own, so that it does not repeat its parent's draws. Under the lock, there."""
        self._forks, self._stream, self._batches = self._attachment.forks, None, {}

    # ---- for loaders: streams are counted here, so that a stream goes on whoever draws from it next

    def reserve(self, stream: int | None) -> tuple[int, int]:
        """Return the core's number of a stream, a new one if None, and of the first batch to draw from it."""
        with self._lock:
            if self._forks != self._attachment.forks:
                self._forget_parent()
            chosen = self._native.next_stream() if stream is None else _OWN_STREAMS | stream
            return chosen, self._next(chosen)

    def _next(self, stream: int) -> int:
        """The number of the next batch; of a stream that is new here 0, or where a restored one goes on."""
        batch = self._batches.get(stream)
        return self._native.stream_first(self.view.index, stream) if batch is None else batch

    def advance(self, stream: int, batch: int) -> None:
        """The next batch of `stream`, if nobody is further."""
        with self._lock:
            if batch > self._batches.get(stream, 0):
                self._batches[stream] = batch

    def loader(
        self, core: native.Table, settings: native.LoaderSettings, pool: native.StagingPool | None
    ) -> native.Loader:
        return native.Loader(core, self._plan, settings, pool)

    def format_of(self, n: int) -> BatchFormat:
        sampler = self._take()
        try:
            return self._formats.of(n, sampler.offsets)
        finally:
            self._idle.append(sampler)

    def close(self) -> None:
        """Let go of the store; calls that are waiting raise StoreClosed."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def read(self, keys: npt.NDArray[np.uint64]) -> Batch:
        sampler = self._take()
        try:
            staging, position = sampler.read(keys, len(keys))
            if staging is None:
                raise StaleKey(
                    f"key {int(keys[position])} at position {position} of {len(keys)} names no row that is live and "
                    f"complete in table {self._name!r}: it was evicted, or its window is not there yet"
                )
            return Batch(staging, self._formats.of(len(keys), sampler.offsets))
        finally:
            self._idle.append(sampler)

    def _take(self) -> native.Sampler:
        try:
            return self._idle.pop()
        except IndexError:
            return native.Sampler(self._native, self._plan)

    def refused(self, n: int, timeout: float | None, state: native.SampleState) -> ConduitError:
        return limiting.sample_refused(self._limiter, self._name, self.view.window, n, timeout, state)

    def check_batch(self, n: int) -> None:
        """Raise CapacityError where a batch of n rows can never be: each row at most once, and so many are not held."""
        if n > self._most:
            raise CapacityError(
                f"a batch of {n:,} rows, each once ({self.view.sampler}), can never be drawn from table "
                f"{self._name!r}, which holds {self._max_size:,} at most. Draw fewer"
            )
