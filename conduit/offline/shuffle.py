"""Rows in random order: row groups in random order, through a buffer from which rows are drawn uniformly.

How good that is, with a buffer of B rows over row groups of G: the row groups come in a uniformly random order; a row
waits for a geometric time of mean B rows in the buffer, so rows of one group are spread over some B rows of the
epoch. Two rows of a batch are of the same group with a probability of about G / 2B, where a full shuffle has G / rows.
A buffer that holds everything gives a uniformly random permutation. Every row comes once in an epoch.

Which rows a batch has depends on the seed, the number of the epoch, the batch size and the files; not on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from conduit_store.arrays import Array
from conduit_store.schema import Schema

__all__ = ["Pool", "epoch"]


_TOGETHER = 8192  # rows taken out at a time, if batches are smaller


class Pool:
    """A bag of rows: `size` of at most `capacity`. Rows are put in, and random ones taken out."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self._holes: Array = np.zeros(0, np.int64)  # places of rows that were taken, among the first size + holes
        self._columns: dict[str, Array] = {
            column.name: np.empty(capacity, object)
            if column.ragged
            else np.empty((capacity, *column.shape), column.dtype)
            for column in schema
        }

    def clear(self) -> None:
        """Take out everything."""
        self.size, self._holes = 0, self._holes[:0]

    def put(self, rows: dict[str, Array], start: int) -> int:
        """Put in rows from `start` on, as many as there is room for; return how many."""
        given = len(next(iter(rows.values()))) - start
        into, self._holes = self._holes[:given], self._holes[given:]
        filled = len(into)
        begin = self.size + filled + len(self._holes)
        n = min(self.capacity - begin, given - filled)
        for name, array in self._columns.items():
            array[into] = rows[name][start : start + filled]
            array[begin : begin + n] = rows[name][start + filled : start + filled + n]
        self.size += filled + n
        return filled + n

    def take(self, n: int, random: np.random.Generator) -> dict[str, Array]:
        """Take out `n` different rows, each set of them equally likely, in random order."""
        if len(self._holes):
            self._close_up()
        chosen = random.choice(self.size, n, replace=False)
        self.size -= n
        self._holes = chosen
        return {name: array.take(chosen, 0) for name, array in self._columns.items()}

    def _close_up(self) -> None:
        """Move the last rows into the holes before them."""
        there = np.ones(self.size + len(self._holes), np.bool_)
        there[self._holes] = False
        moved = np.flatnonzero(there[self.size :]) + self.size
        holes = np.flatnonzero(~there[: self.size])
        for array in self._columns.values():
            array[holes] = array[moved]
        self._holes = self._holes[:0]


def epoch(
    pool: Pool,
    groups: int,
    read: Callable[[int], dict[str, Array]],
    threads: ThreadPoolExecutor,
    ahead: int,
    batch_size: int,
    random: np.random.Generator,
) -> Iterator[dict[str, Array]]:
    """Iterate over the batches of one epoch; the last has what is left.

    `read(i)` gives the rows of row group i, in a thread; `ahead` of them are read before their turn.
    """
    # Small batches are taken out several at a time, but never more than an eighth of the buffer.
    together = batch_size * max(1, min(_TOGETHER, pool.capacity // 8) // batch_size)
    order = iter(random.permutation(groups).tolist())
    coming: list[Future[dict[str, Array]]] = []
    pool.clear()
    rows: dict[str, Array] = {}
    used = length = 0
    try:
        while True:
            while pool.size < pool.capacity:
                while len(coming) < ahead and (group := next(order, None)) is not None:
                    coming.append(threads.submit(read, group))
                if used < length:
                    used += pool.put(rows, used)
                elif coming:
                    rows, used = coming.pop(0).result(), 0
                    length = len(next(iter(rows.values())))
                else:
                    break
            if pool.size == 0:
                return
            taken = pool.take(min(together, pool.size), random)
            n = len(next(iter(taken.values())))
            for start in range(0, n, batch_size):
                yield {name: array[start : start + batch_size] for name, array in taken.items()}
    finally:
        for future in coming:
            future.cancel()
