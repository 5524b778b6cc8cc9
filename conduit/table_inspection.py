"""A look into a table: zero-copy views of its blocks, counts, histograms, and whether all of it is consistent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from conduit.blocks import BlockView
from conduit.histogram import Histogram, histogram
from conduit.metrics import TableMetrics
from conduit.table_handle import TableHandle
from conduit_store.errors import CapacityError, ConduitError, ConfigError, StaleKey

__all__ = ["TableInspection"]


class TableInspection(TableHandle):
    """The methods of `Table` that show what is in it."""

    def blocks(self) -> list[BlockView]:
        """Return the blocks that hold live rows, oldest first, each pinned. See `block`.

        A process may have 2,048 views of blocks at a time. Of tables of more blocks `iter_blocks` has one at a time.

        Raises:
            CapacityError: more than the views that this process may still take; none is kept.
            ConfigError: the table's remover takes rows out one by one, and so it has no blocks of several rows.
        """
        views: list[BlockView] = []
        try:
            views.extend(self.iter_blocks())
        except CapacityError as error:
            views.clear()  # which the error would keep
            count = len(self._native.live_blocks())
            raise CapacityError(
                f"table {self.name!r} has {count:,} blocks, and {error}. Iterate over table.iter_blocks(), which pins "
                "one at a time"
            ) from error
        return views

    def iter_blocks(self) -> Iterator[BlockView]:
        """Iterate over the blocks that held live rows at the call, oldest first; each is pinned when its turn comes.

        A view lets go of its block when it and all made from it are gone. Blocks that are evicted before their turn are
        left out.

        Raises:
            ConfigError: as in `blocks`.
        """
        self._check_blocks()
        return self._pinned(self._native.live_blocks())

    def block(self, index: int) -> BlockView:
        """Return block `index`, pinned: its bytes stay in place until the view and all made from it are gone.

        A pinned block is not reused; a writer that finds no other waits, and then says who holds it.

        Raises:
            StaleKey: the block holds no live row. ConfigError: as in `blocks`.
        """
        self._check_blocks()
        return BlockView(index, self.schema, self._layout, self._native.pin_block(index), self._categories)

    def info(self, *, window: str | None = None) -> TableMetrics:
        """Return the table's counts, times and sizes.

        `window`: of which ready rows and priorities are told, as in `sample`; all else is of the table as a whole.

        Raises:
            UnknownWindow: says which there are.
        """
        core = self._native
        told, tier = core.info(self._view(window).index), core.tier() if self._disk is not None else None
        return TableMetrics.from_native(
            self.name, self.max_size, self._spec.limiter, core.data_bytes, core.control_bytes, told, tier
        )

    def histogram(self, what: str, *, bins: int | Sequence[float] = 20, window: str | None = None) -> Histogram:
        """Return how a number is spread over the live rows: `counts` int64 (bins,), `edges` float64 (bins + 1,).

        `what`: "priority" as given (of `window`, as in `sample`), "age" (rows appended since, in eviction order),
        "times_sampled" (where the table counts it), or a column of single numbers. `bins`: how many equal ones between
        the least and the largest, or their edges.
        Rows whose number is not finite are left out: a priority that was not given is not known before the row's
        window is complete. Final observations are no rows. A copy of the numbers is made: the table's lock is held
        for some milliseconds a million rows, all else holds up nobody.

        Example:
            >>> counts, edges = table.histogram("age", bins=10)

        Raises:
            UnknownColumn: says what there is. UnknownWindow: says which there are.
            ConfigError: a column of arrays, priorities or counts that the table does not keep, bins that are not
                allowed.
        """
        return histogram(self._native, self._spec, what, bins, self._view(window))

    def verify(self) -> None:
        """Recompute everything that is derived (leaves, sums, counts) and compare. Takes milliseconds a million rows.

        Raises:
            ConduitError: what disagrees.
        """
        wrong = self._native.verify()
        if wrong:
            raise ConduitError(f"table {self.name!r} is not consistent: {'; '.join(wrong)}")

    def describe(self) -> str:
        """Return one line: rows, bytes, blocks."""
        layout, core = self._layout, self._native
        varies = bool(self.schema.ragged)
        most = "up to " if varies else ""
        blocks = f"{layout.blocks:,} blocks of {most}{layout.rows:,} rows ({layout.block_bytes / 1024:,.0f} KiB)"
        return (
            f"table {self.name!r}: {self.max_size:,} rows of {self.schema.row_bytes:,} bytes"
            f"{' in the mean' if varies else ''} in "
            f"{f'{layout.blocks:,} slots' if self._spec.slots else blocks}: "
            f"{core.data_bytes / 2**20:,.1f} MiB of rows, {core.control_bytes / 2**20:,.1f} MiB of index"
        )

    def _pinned(self, blocks: list[int]) -> Iterator[BlockView]:
        for index in blocks:
            with contextlib.suppress(StaleKey):  # its last row was evicted meanwhile
                yield self.block(index)

    def _check_blocks(self) -> None:
        if self._spec.slots:
            raise ConfigError(
                f"table {self.name!r} takes rows out one by one ({self._spec.remover}), and so has no zero-copy "
                "blocks. Use table.rows(keys), which copies, or removers.Fifo()"
            )
