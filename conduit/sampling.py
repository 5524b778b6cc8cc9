"""Reading from a table: what a window's batch looks like, random streams, samplers for each thread."""

from __future__ import annotations

import operator
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
from conduit_store.column import shown
from conduit_store.errors import CapacityError, ConduitError, ConfigError, StaleKey
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
        spec: TableSpec,
        view: View,
        categories: Mapping[str, Categories],
    ) -> None:
        self.view = view
        self._name = spec.name
        self._max_size = spec.max_size
        self._most = spec.max_size if view.distinct else _MAX_ROWS
        self._limiter = spec.limiter
        self.counted = spec.max_times_sampled is not None
        self._plan, self.schema = plan_of(spec.schema, view)
        self.relabelling = Relabelling(view, spec.name) if isinstance(view.window, Hindsight) else None
        self._reader = native.Reader(core, self._plan, Batch)
        self._formats = Formats(self.schema, categories, drawn=True)

    def sample(self, n: int, timeout: float | None, stream: int | None) -> Batch:
        if n.__class__ is not int:
            try:
                n = operator.index(n)
            except TypeError:
                raise ConfigError(f"sample({shown(n)}): give a number of rows from 1 to {_MAX_ROWS:,}") from None
        if not 1 <= n <= self._most:
            if not 1 <= n <= _MAX_ROWS:
                raise ConfigError(f"sample({n}): give a number of rows from 1 to {_MAX_ROWS:,}")
            self.check_batch(n)
        timeout = seconds(timeout)
        if stream is not None:
            stream = _OWN_STREAMS | whole_number("stream", stream, 0, _OWN_STREAMS - 1)
        relabelling = self.relabelling
        if relabelling is not None:
            relabelling.prepare()  # before anything is drawn
        layout = self._formats.found.get(n) or self._formats.of(n, self._reader.offsets)
        made = self._reader.sample(n, layout, stream, timeout)
        if made.__class__ is not Batch:
            raise self.refused(n, timeout, made)
        batch: Batch = made
        if relabelling is not None:
            relabelling.apply(batch)
        return batch

    # ---- for loaders: streams are counted here, so that a stream goes on whoever draws from it next

    def reserve(self, stream: int | None) -> tuple[int, int]:
        """Return the core's number of a stream, a new one if None, and of the first batch to draw from it."""
        return self._reader.reserve(None if stream is None else _OWN_STREAMS | stream)

    def advance(self, stream: int, batch: int) -> None:
        """The next batch of `stream`, if nobody is further."""
        self._reader.advance(stream, batch)

    def loader(
        self, core: native.Table, settings: native.LoaderSettings, pool: native.StagingPool | None
    ) -> native.Loader:
        return native.Loader(core, self._plan, settings, pool)

    def format_of(self, n: int) -> BatchFormat:
        return self._formats.of(n, self._reader.offsets)

    def close(self) -> None:
        """Let go of the store; calls that are waiting raise StoreClosed."""
        self._reader.close()

    def read(self, keys: npt.NDArray[np.uint64]) -> Batch:
        made, position = self._reader.read(keys, len(keys), self.format_of(len(keys)))
        if made is None:
            raise StaleKey(
                f"key {int(keys[position])} at position {position} of {len(keys)} names no row that is live and "
                f"complete in table {self._name!r}: it was evicted, or its window is not there yet"
            )
        read: Batch = made
        return read

    def refused(self, n: int, timeout: float | None, state: native.SampleState) -> ConduitError:
        return limiting.sample_refused(self._limiter, self._name, self.view.window, n, timeout, state)

    def check_batch(self, n: int) -> None:
        """Raise CapacityError where a batch of n rows can never be: each row at most once, and so many are not held."""
        if n > self._most:
            raise CapacityError(
                f"a batch of {n:,} rows, each once ({self.view.sampler}), can never be drawn from table "
                f"{self._name!r}, which holds {self._max_size:,} at most. Draw fewer"
            )
