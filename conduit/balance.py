"""Rows of different lengths, shared out so that every part has about the same in all."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit.values import whole_number
from conduit_store.errors import ConfigError, ShapeMismatch

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["balance"]


def balance(lengths: Any, parts: int) -> list[npt.NDArray[np.intp]]:
    """Divide rows among `parts` so that the largest and the smallest sum of lengths differ little.

    `lengths`: numbers of shape (n,), not negative. Returns, for each part, the ascending indices of its rows; each
    row is in one part. Parts may have different numbers of rows, and none where there are fewer rows than parts.
    Takes about a microsecond a row and part.

    N. Karmarkar and R. M. Karp, "The differencing method of set partitioning", 1982: the two partial divisions that
    differ most in themselves are merged, the heaviest part of one with the lightest of the other.

    Raises:
        ConfigError: parts less than 1, a length that is negative or not finite.
        ShapeMismatch: lengths that are not one number a row.

    Example:
        >>> [part.tolist() for part in conduit.balance([8, 7, 6, 5, 4], 2)]
        [[1, 3, 4], [0, 2]]
    """
    parts = whole_number("parts", parts, 1, 1 << 20)
    sums = np.asarray(lengths)
    if sums.ndim != 1 or sums.dtype.kind not in "iuf":
        raise ShapeMismatch(f"lengths are {sums.dtype} of shape {sums.shape}: give one number a row, shape (n,)")
    good = np.isfinite(sums) & (sums >= 0)
    if not good.all():
        raise ConfigError(f"lengths[{int(np.argmin(good))}] is {sums[np.argmin(good)]}: give finite numbers from 0")
    # A division: (minus its difference, serial, sums, members), sums descending. The serial keeps ties in order.
    heap: list[tuple[float, int, list[float], list[list[int]]]] = [
        (-length, row, [length] + [0.0] * (parts - 1), [[row]] + [[] for _ in range(parts - 1)])
        for row, length in enumerate(sums.tolist())
    ]
    heapq.heapify(heap)
    serial = len(heap)
    while len(heap) > 1:
        _, _, one, members = heapq.heappop(heap)
        _, _, other, others = heapq.heappop(heap)
        merged = sorted(
            ((a + b, x + y) for a, b, x, y in zip(one, reversed(other), members, reversed(others), strict=True)),
            key=lambda part: -part[0],
        )
        totals = [total for total, _ in merged]
        heapq.heappush(heap, (totals[-1] - totals[0], serial, totals, [rows for _, rows in merged]))
        serial += 1
    divided = heap[0][3] if heap else [[] for _ in range(parts)]
    return [np.array(sorted(rows), np.intp) for rows in divided]
