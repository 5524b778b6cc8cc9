"""What the tests of checkpoints share: a store saved and restored, and what processes of their own do with one."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from conduit import Store
from tests.store_support import fresh_store, plain_table, schema

_numbers = itertools.count()
THRICE = schema(a="i8", b="i8", c=("i8", (16,)))  # a row's serial number in three columns


@contextmanager
def restored(folder: Path, **options: Any) -> Iterator[Store]:
    with Store.restore(folder, f"restored-{next(_numbers)}", "16MiB", **options) as store:
        for name in store.tables():
            store._table(name).verify()
        yield store


def digest(folder: Path) -> str:
    """Of all files of a folder, names and bytes."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


# ---- in other processes


def two_draws(folder: str, prefetch: int | None) -> list[list[int]]:
    """Restores the store and draws two batches of four, by `sample` or by a loader."""
    with fresh_store(), Store.restore(folder, "elsewhere", "16MiB") as store:
        if prefetch is None:
            return [store["t"].sample(4)["x"].tolist() for _ in range(2)]
        with store["t"].loader(4, prefetch=prefetch) as loader:
            return [loader.next()["x"].tolist() for _ in range(2)]


def append_and_save(folder: str, rows: int) -> dict[str, Any]:
    """Restores the store, appends rows without priorities, saves it again; returns what the table then says."""
    with fresh_store(), Store.restore(folder, "elsewhere", "16MiB") as store:
        table = store["t"]
        before = drawable(table)
        table.extend({"x": np.arange(4, 4 + rows)})
        store.checkpoint(folder)
        return {"before": before, "after": drawable(table)}


def drawable(table: Any) -> dict[str, list[float]]:
    """Rows, slots, raw priorities and probabilities of a prioritized table of alpha 0.6, in order."""
    block = table.blocks()
    keys = np.concatenate([view.keys for view in block])
    raw = table.priorities(keys)
    batch = table.sample(200)
    known = dict(zip(batch.keys.tolist(), batch.probabilities.tolist(), strict=True))
    return {
        "keys": keys.tolist(),
        "raw": raw.tolist(),
        "probabilities": [known.get(key, float("nan")) for key in keys.tolist()],
    }


def append_serials(store: str, first: int = 0) -> None:
    """Appends rows that carry their serial number, at full speed, until killed."""
    with Store.attach(store) as other:
        table, n = other["t"], first
        while True:
            table.extend(serials(n, 7))
            n += 7


def set_priorities(store: str) -> None:
    """Draws rows and gives each the priority that its number calls for, until killed."""
    with Store.attach(store) as other:
        table = other["t"]
        while True:
            batch = table.sample(64)
            table.update_priorities(batch.keys, priority_of(batch["a"]))


def priority_of(serial: Any) -> Any:
    return (1 + serial % 7).astype("f4")


def serials(first: int, n: int) -> dict[str, Any]:
    values = np.arange(first, first + n)
    return {"a": values, "b": values, "c": np.repeat(values[:, None], 16, axis=1)}


def filled(store: Store, rows: int, max_size: int = 1_000) -> Any:
    table = plain_table(store, max_size)
    table.extend({"x": np.arange(rows)})
    return table
