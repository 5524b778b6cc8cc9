"""What tests ask other processes to do with a store, by name. What they hold stays until `drop_all`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from conduit import Store, Table
from tests.store_support import PLAIN, column_of, schema

_held: dict[str, Any] = {}


def attached(name: str, read_only: bool = False) -> Store:
    store = _held.get(name)
    if store is None or store.closed:
        store = _held[name] = Store.attach(name, read_only=read_only)
    return store  # type: ignore[no-any-return]


def table_of(name: str) -> Table:
    return attached(name)["t"]


def create(name: str, rows: int, host_memory: str = "16MiB") -> int:
    """Create a store with a full table of `rows` rows, x = 0, 1, ...; the process id."""
    store = _held[name] = Store.create(name, host_memory)
    store.create_table("t", PLAIN, rows).extend({"x": np.arange(rows)})
    return os.getpid()


def append(name: str, values: list[int]) -> None:
    """Append rows one by one, through a writer of its own."""
    with table_of(name).writer() as writer:
        for value in values:
            writer.append(x=value)


def sample(name: str, n: int) -> list[int]:
    drawn: list[int] = table_of(name).sample(n)["x"].tolist()
    return drawn


def total(name: str) -> tuple[int, int]:
    """How many rows there are, and the sum of their x."""
    table = table_of(name)
    return len(table), int(column_of(table).sum())


def value_of(name: str, key: int) -> int:
    return int(table_of(name).rows([key])["x"][0])


def pin(name: str) -> int:
    """Keep zero-copy views of all blocks; how many."""
    _held["views"] = [np.asarray(block.to_arrow().column("x")) for block in table_of(name).blocks()]
    return len(_held["views"])


def look() -> list[int]:
    """What the views that are kept read now."""
    seen: list[int] = np.concatenate(_held["views"]).tolist()
    return seen


def unpin() -> None:
    del _held["views"]


def drop_all() -> None:
    """Close and forget everything."""
    for held in _held.values():
        if isinstance(held, Store):
            held.close()
    _held.clear()


def fill_torn(name: str, rows: int) -> None:
    """Append rows of 1,000 floats, all equal to the number of the row."""
    table = attached(name)["torn"]
    number = 0
    with table.writer() as writer:
        for number in range(rows):
            writer.append(number=number, x=np.full(1000, number, np.float32))


def draw_windows(name: str, batches: int) -> list[int]:
    """Draw from the episodes of table "episodes"; which first steps were drawn."""
    seen: set[int] = set()
    table = attached(name)["episodes"]
    for _ in range(batches):
        seen.update(table.sample(32)["obs"].tolist())
    return sorted(seen)


def five_bytes(name: str) -> dict[str, Any]:
    """What an attached process says of the table of C52."""
    table = table_of(name)
    block = table.blocks()[0]
    return {
        "rows": len(table),
        "max_size": table.max_size,
        "row_bytes": table.schema.row_bytes,
        "bytes": np.asarray(block.to_arrow().column("x").storage.flatten()).tobytes(),
        "row_3": _error_of(lambda: table.rows([int(block.keys[-1]) + 1])),
    }


def _error_of(action: Any) -> str:
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "no error"


TORN = schema(number="i8", x=("f4", (1000,)))
