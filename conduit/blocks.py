"""Zero-copy views of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from conduit.categories import Categories
from conduit_store.layout import BlockLayout
from conduit_store.native import native
from conduit_store.schema import Schema

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["BlockView"]

_SLOT_BITS = 28


class BlockView:
    """The live rows of one block at the moment of the call, pinned. Read-only.

    For episodes a block also holds the final observations, as rows whose other columns mean nothing.
    """

    __slots__ = (
        "_address",
        "_categories",
        "_layout",
        "_pin",
        "_schema",
        "_starts",
        "generation",
        "index",
        "start",
        "stop",
    )

    def __init__(
        self,
        index: int,
        schema: Schema,
        layout: BlockLayout,
        pinned: tuple[native.Pin, int, int, int, int, list[int]],
        categories: Mapping[str, Categories],
    ) -> None:
        self.index = index
        self._schema = schema
        self._layout = layout
        self._categories = categories
        self._pin, self.start, self.stop, self.generation, self._address, self._starts = pinned

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def keys(self) -> npt.NDArray[np.uint64]:
        """Keys of the rows, uint64."""
        first = self.index * self._layout.rows
        slots = np.arange(first + self.start, first + self.stop, dtype=np.uint64)
        return slots | np.uint64(self.generation << _SLOT_BITS)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows as an Arrow record batch over shared memory.

        Mutable columns are copied as they are now; of nullable ones, which rows are null is copied into bits. Valid and
        unchanged for as long as the batch, a slice or a NumPy view of it lives, also after the store was closed or this
        view has gone. A block that lies compressed on disk is copied as a whole.

        Raises:
            MissingExtra: pyarrow is not installed. DiskError: a compressed block cannot be read.
        """
        from conduit_store.arrow import block_to_arrow

        address, owner = (self._address, self._pin) if self._address else self._pin.unpacked()
        return block_to_arrow(
            self._schema,
            self._layout,
            address,
            self.start,
            self.stop,
            owner,
            self._starts,
            shared=True,
            categories=self._categories,
        )

    def __repr__(self) -> str:
        return f"<BlockView {self.index}: rows {self.start} to {self.stop}>"
