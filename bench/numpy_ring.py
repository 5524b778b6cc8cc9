"""The baseline: what one writes by hand in an afternoon. NumPy columns and a NumPy sum tree, one process, no checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.driver import Append
from bench.workloads import Rows, Workload

ALPHA, BETA = 0.6, 0.4


class NumpyRing:
    """Ring of columns. The tree is one float64 array: node i has children 2i and 2i+1, leaves start at `leaves`."""

    start_method = "spawn"

    def __init__(self, workload: Workload, capacity: int, prioritized: bool, shared: bool) -> None:
        if shared:
            raise ValueError("no other process can see the NumPy ring")
        self.columns = {k: np.empty((capacity, *shape), dtype) for k, (shape, dtype) in workload.columns.items()}
        self.capacity, self.prioritized = capacity, prioritized
        self.head = self.size = 0
        self.rng = np.random.default_rng(0)
        self.leaves = 1 << (capacity - 1).bit_length()
        self.tree = np.zeros(2 * self.leaves if prioritized else 0)
        self.largest = 1.0

    def encode(self, rows: Rows, priorities: Any | None) -> Any:
        return rows if priorities is None else (rows, priorities)

    def appender(self, batch: int, own_priorities: bool) -> Append:
        if own_priorities:
            return lambda part: self._append(part[0], part[1])
        return lambda part: self._append(part, None)

    def _append(self, rows: Rows, priorities: npt.NDArray[Any] | None) -> None:
        n = len(rows["reward"])
        first = min(n, self.capacity - self.head)
        value: Any = self.largest**ALPHA if priorities is None else priorities**ALPHA
        if priorities is not None:
            self.largest = max(self.largest, float(priorities.max()))
        for at, start, stop in ((self.head, 0, first), (0, first, n)):
            if stop > start:
                for name, column in self.columns.items():
                    column[at : at + stop - start] = rows[name][start:stop]
                if self.prioritized:
                    self._set_range(at, at + stop - start, value if priorities is None else value[start:stop])
        self.head = (self.head + n) % self.capacity
        self.size = min(self.capacity, self.size + n)

    def _set_range(self, start: int, stop: int, value: Any) -> None:
        tree, low, high = self.tree, start + self.leaves, stop - 1 + self.leaves
        tree[low : high + 1] = value
        while low > 1:
            low, high = low >> 1, high >> 1
            np.add(tree[2 * low : 2 * high + 1 : 2], tree[2 * low + 1 : 2 * high + 2 : 2], out=tree[low : high + 1])

    def sample(self, n: int) -> tuple[dict[str, Any], Any]:
        if not self.prioritized:
            rows = self.rng.integers(0, self.size, n)
            return {k: torch.from_numpy(v.take(rows, 0)) for k, v in self.columns.items()}, rows
        tree, mass, node = self.tree, self.rng.random(n) * self.tree[1], np.ones(n, np.int64)
        while node[0] < self.leaves:
            node *= 2
            left = tree[node]
            right = mass >= left
            mass -= left * right
            node += right
        rows = np.minimum(node - self.leaves, self.size - 1)
        weights = (tree[node] * (self.size / tree[1])) ** -BETA
        tensors = {k: torch.from_numpy(v.take(rows, 0)) for k, v in self.columns.items()}
        tensors["weights"] = torch.from_numpy((weights / weights.max()).astype(np.float32))
        return tensors, rows

    def update(self, handle: Any, priorities: Any) -> object:
        tree, node = self.tree, handle + self.leaves
        tree[node] = priorities**ALPHA
        while node[0] > 1:
            node = node >> 1
            tree[node] = tree[2 * node] + tree[2 * node + 1]
        self.largest = max(self.largest, float(priorities.max()))
        return None

    def close(self) -> None:
        self.columns.clear()
