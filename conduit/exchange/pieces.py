"""Pieces of a size that is good to write and read, from pieces as they come."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from conduit_store.schema import Schema

__all__ = ["Batches", "piece_rows"]

_ROWS = 65_536
_BYTES = 32 << 20


def piece_rows(schema: Schema) -> int:
    """Return how many rows make a piece: at most 65,536, and 32 MiB of them."""
    planned = schema.row_bytes + sum(column.mean_bytes for column in schema.ragged)
    return max(1, min(_ROWS, int(_BYTES // planned)))


class Batches:
    """Cuts what comes into tables of `rows` rows each, so that memory stays bounded whatever comes."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.rows = 0  # taken so far
        self._waiting: list[pa.Table] = []
        self._count = 0

    def add(self, piece: pa.Table) -> Iterator[pa.Table]:
        """Take a piece; iterate over the tables that are full."""
        self._waiting.append(piece)
        self._count += len(piece)
        self.rows += len(piece)
        while self._count >= self._rows:
            yield self._take(self._rows)

    def rest(self) -> Iterator[pa.Table]:
        """Iterate over what is left: one table, or none."""
        if self._count:
            yield self._take(self._count)

    def _take(self, n: int) -> pa.Table:
        whole = pa.concat_tables(self._waiting)
        taken, left = whole.slice(0, n), whole.slice(n)
        self._waiting = [left] if len(left) else []
        self._count = len(left)
        return taken.combine_chunks()
