"""Delivery: batches prepared ahead of the learner, in order, and what that hid."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from conduit.batch import Batch, DeviceBatch
from conduit.closing import Closing
from conduit.devices import open_device, pinned_pool
from conduit.samplers import Prioritized
from conduit.values import real_number, seconds, whole_number
from conduit_store.errors import ConduitError, ConfigError, SampleTimeout, StoreClosed
from conduit_store.memory import parse_bytes
from conduit_store.native import native

if TYPE_CHECKING:
    from conduit.async_calls import AsyncCalls
    from conduit.sampling import Reader
    from conduit.table import Table

__all__ = ["Loader", "LoaderMetrics", "LoaderSettings"]

_MAX_DEPTH = 1024
_AUTO_DEPTH = 64
_SLICE_S = 0.05
_CLOSED = "this loader is closed: call table.loader() for a new one"
_UNSET = cast("float | None", object())


class LoaderMetrics(NamedTuple):
    """What a loader has done so far. Drift is the bound for one draw; a batch of B rows has at most B times that."""

    batches: int  # handed over
    redrawn: int  # thrown away at hand-over, for the drift, and drawn again
    exposed_s: float  # what callers waited inside next()
    hidden_s: float  # preparation that ran while callers computed
    depth: int  # batches that may be ready or in preparation now
    ready: int  # batches that are ready now
    drift_last: float  # of the last batch at its hand-over; nan where it is not looked at
    drift_max: float
    drift_mean: float
    drift_bound: float | None  # max_priority_drift

    @property
    def exposed_fraction(self) -> float:
        """Share of the preparation that callers waited for."""
        total = self.exposed_s + self.hidden_s
        return self.exposed_s / total if total > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """How a loader prepares its batches; see `Table.loader`.

    Raises:
        ConfigError: a number that is not allowed.
    """

    batch_size: int
    window: str | None = None
    prefetch: int | str = "auto"
    max_priority_drift: float | None = None
    device: Any = None
    transform: Callable[[Batch], Any] | None = None
    timeout: float | None = 10.0
    stream: int | None = None
    max_staging: int | str = "256MiB"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "batch_size", whole_number("batch_size", self.batch_size, 1, (1 << 31) - 1))
        if isinstance(self.prefetch, str):
            if self.prefetch != "auto":
                raise ConfigError(f"prefetch is {self.prefetch!r}: give 'auto' or a number of batches")
        else:
            put(self, "prefetch", whole_number("prefetch", self.prefetch, 0, _MAX_DEPTH))
        if self.max_priority_drift is not None:
            drift = real_number("max_priority_drift", self.max_priority_drift, 0.0, 1.0)
            put(self, "max_priority_drift", drift)
        put(self, "timeout", seconds(self.timeout))
        if self.stream is not None:
            put(self, "stream", whole_number("stream", self.stream, 0, (1 << 31) - 1))
        put(self, "max_staging", parse_bytes(self.max_staging))
        if self.transform is not None and not callable(self.transform):
            raise ConfigError(f"transform is {self.transform!r}: give a function of a batch")


class Loader(Closing):
    """Batches of a table in order, prepared ahead; from `table.loader`. Iterate over it, or call `next`.

    Safe in any thread: callers take turns. Use it in a `with`, or `close` it; the garbage collector and the end
    of the interpreter close it too. Pickled by the table's name and the settings, it starts anew. In a forked
    child it raises ForkedHandle.
    """

    def __init__(self, table: Table, settings: LoaderSettings) -> None:
        self._table = table
        self._settings = settings
        self._pipeline = _Pipeline(table._reader(settings.window), table._native, settings)
        table._loaders.add(self)
        self._finalizer = weakref.finalize(self, self._pipeline.close)

    @property
    def settings(self) -> LoaderSettings:
        """What the loader was made with."""
        return self._settings

    def next(self, *, timeout: float | None = _UNSET) -> Any:
        """Return the next batch: a Batch, a DeviceBatch with `device`, or what `transform` made of it.

        Waits up to `timeout` seconds (None: for ever; the loader's own if not given) while nothing can be drawn.
        Other threads run meanwhile, and Ctrl-C gets through.

        Raises:
            SampleTimeout: says what a draw lacked; a later call goes on.
            StoreClosed: the store or the loader was closed, also while waiting. ForkedHandle: made before a fork.
            What `transform` or another part of the preparation raised, after the batches before it; and so again
            in every later call.
        """
        return self._pipeline.next(self._settings.timeout if timeout is _UNSET else seconds(timeout))

    def metrics(self) -> LoaderMetrics:
        """Return counts and times so far.

        A closed loader keeps those of its end.

        Raises:
            ForkedHandle: made before a fork.
        """
        return self._pipeline.metrics()

    def close(self) -> None:
        """Stop preparing; batches that were not handed over are dropped. Idempotent.

        Waits for a `transform` that is running, unless called from it.
        """
        self._finalizer()

    @property
    def closed(self) -> bool:
        """Whether the loader, or its store, was closed here."""
        return self._pipeline.closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Return the next batch without blocking the event loop.

        A wait that is cancelled loses nothing: the next one gets its batch. Raises what `next` raises.
        """
        return await self._pipeline.next_async(self._settings.timeout)

    def __reduce__(self) -> tuple[Any, tuple[Table, LoaderSettings]]:
        return Loader, (self._table, self._settings)

    def __repr__(self) -> str:
        s = self._settings
        state = "closed" if self.closed else f"prefetch={s.prefetch!r}"
        return f"<Loader of {self._table.name!r}: {s.batch_size} rows a batch, {state}>"


class _Pipeline:
    """What a loader and its threads share. Threads hold this and not the Loader, so that it can be collected."""

    def __init__(self, reader: Reader, table: native.Table, settings: LoaderSettings) -> None:
        self._reader = reader
        sampler = reader.view.sampler
        reader.check_batch(settings.batch_size)
        if reader.view.distinct and settings.max_priority_drift is not None:
            raise ConfigError(
                f"max_priority_drift={settings.max_priority_drift} has no meaning for {sampler}, where no row is "
                "drawn by a chance of its own: leave it out"
            )
        if reader.counted and settings.max_priority_drift is not None:
            raise ConfigError(
                "max_priority_drift means that batches are drawn again, and a table with max_times_sampled has counted "
                "the rows of the first draw: leave it out"
            )
        self._settings = settings
        self._transform = settings.transform
        self._device = open_device(settings.device)
        self._works = any(x is not None for x in (self._transform, self._device, reader.relabelling))
        self._lock = threading.Lock()
        self._making = threading.Lock()  # transform and device see one thread at a time
        self._payloads: dict[int, Any] = {}  # by token: what the worker has made and nobody has taken
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._inline_error = False
        self._final: LoaderMetrics | None = None
        self._named = settings.stream is not None
        self._closed = False
        self._async: AsyncCalls | None = None
        self._stream, first = reader.reserve(settings.stream)
        depth, most = _depths(reader, sampler, settings)
        enforced = settings.max_priority_drift
        # Uniform draws of a batch ahead are as good as any: nobody looks unless asked to.
        self._measured = isinstance(sampler, Prioritized) or enforced is not None
        record = native.LoaderSettings(
            settings.batch_size, self._stream, first, depth, most, enforced, self._measured, not self._works,
            int(settings.max_staging),
        )
        self._native = reader.loader(table, record, pinned_pool(self._device))
        self._format = reader.format_of(settings.batch_size)
        self._worker: threading.Thread | None = None
        if self._works and depth > 0:
            self._worker = threading.Thread(target=self._work, name=f"conduit-loader-{table.name}", daemon=True)
            self._worker.start()

    def next(self, timeout: float | None) -> Any:
        loader = self._native
        if self._inline_error:
            self._raise_what_ended_it()
        try:
            staging, token, discarded, number, lacking = loader.next(timeout)
        except StoreClosed:
            self._raise_what_ended_it()
            raise
        if discarded:
            with self._lock:
                for old in discarded:
                    self._payloads.pop(old, None)
        if staging is None:
            if lacking is None:  # no draw has failed
                raise SampleTimeout(
                    f"the next batch was not ready after {timeout} s: its preparation (prefetch="
                    f"{self._settings.prefetch!r}) takes longer. Raise timeout, or make transform faster"
                )
            raise self._reader.refused(self._settings.batch_size, timeout, lacking)
        if self._named:
            self._reader.advance(self._stream, number)
        if not self._works:
            return Batch(staging, self._format)
        if token:
            with self._lock:
                made = self._payloads.pop(token, None)
            if made is None:
                raise StoreClosed(_CLOSED)  # this moment
        else:
            try:
                made = self._made_of(staging)
            except BaseException:
                self._inline_error = True
                raise
        return self._handed(made, prepared=token != 0)

    async def next_async(self, timeout: float | None) -> Any:
        self._native.check()
        if self._async is None:
            from conduit.async_calls import AsyncCalls  # asyncio: what a bare import need not pay

            self._async = AsyncCalls(self.next)
        return await self._async.call(timeout)

    def metrics(self) -> LoaderMetrics:
        if self._final is not None:
            return self._final
        batches, redrawn, exposed, hidden, depth, ready, last, largest, total = self._native.metrics()
        if not self._measured:
            last = largest = total = math.nan
        return LoaderMetrics(
            batches, redrawn, exposed * 1e-9, hidden * 1e-9, depth, ready, last, largest,
            total / batches if batches else total, self._settings.max_priority_drift,
        )  # fmt: skip

    @property
    def closed(self) -> bool:
        return self._closed or self._native.closed

    def close(self) -> None:
        if not self._closed:
            with suppress(ConduitError):  # in a forked child there are none
                self._final = self.metrics()
        self._closed = True
        self._native.close()  # waits end, in every thread
        me = threading.current_thread()
        if self._worker is not None and self._worker is not me:
            self._worker.join()
        if self._async is not None:
            self._async.close()
        self._payloads.clear()
        close: Callable[[], None] | None = getattr(self._device, "close", None)
        if close is not None and self._final is not None:  # a forked child has no use of the device
            close()

    # ---- the preparation thread, where there is more to do than to draw

    def _work(self) -> None:
        loader = self._native
        try:
            while not self._closed:
                status, batch = loader.prepare(_SLICE_S)
                if status == _STOPPED:
                    return
                if batch is None:
                    continue
                try:
                    made = self._made_of(batch.staging)
                except BaseException:
                    batch.discard()  # the traceback keeps it, maybe for long
                    raise
                with self._lock:
                    self._payloads[batch.token] = made
                if not loader.push(batch):
                    with self._lock:
                        self._payloads.pop(batch.token, None)
                del batch, made
        except BaseException as error:
            self._end(error)

    def _made_of(self, staging: native.Staging) -> tuple[Any, Any]:
        """What the caller gets, and what its device needs at hand-over. Errors end the loader."""
        try:
            batch = Batch(staging, self._format)
            with self._making:
                if self._reader.relabelling is not None:
                    self._reader.relabelling.apply(batch)
                made: Any = batch if self._transform is None else self._transform(batch)
                if self._device is None:
                    return made, None
                return DeviceBatch.begin(made, self._device)
        except BaseException as error:
            self._end(error)
            raise

    def _handed(self, made: tuple[Any, Any], prepared: bool) -> Any:
        value, token = made
        if self._device is not None:
            DeviceBatch.finish(value, token, self._device)
        if not prepared:
            self._native.handed_later()
        return value

    def _end(self, error: BaseException) -> None:
        if self._error is None and not self._closed:
            self._error, self._trace = error, error.__traceback__
            self._native.fail()

    def _raise_what_ended_it(self) -> None:
        if self._error is not None and not self._closed:
            self._native.check()
            raise self._error.with_traceback(self._trace)


_STOPPED = 2  # PrepareStatus of the core


def _depths(reader: Reader, sampler: object, settings: LoaderSettings) -> tuple[int, int]:
    """How many batches to prepare ahead at first, and up to how many the core may go (0: as it is)."""
    size = reader.format_of(settings.batch_size).offsets[-1]  # of rows that vary in length, as planned
    size += math.ceil(settings.batch_size * sum(column.mean_bytes for column in reader.schema.ragged))
    fits = int(settings.max_staging) // max(size, 1)
    if isinstance(settings.prefetch, int):
        if settings.prefetch > fits:
            raise ConfigError(
                f"prefetch={settings.prefetch} batches of {size:,} bytes do not fit in max_staging of "
                f"{settings.max_staging:,} bytes: raise it, or prefetch {fits}"
            )
        return settings.prefetch, 0
    if isinstance(sampler, Prioritized) and not settings.max_priority_drift:
        # within a bound of 0 each batch drawn before an update would be thrown away
        return (min(1, fits) if settings.max_priority_drift is None else 0), 0
    most = min(_AUTO_DEPTH, fits)
    return min(2, most), most
