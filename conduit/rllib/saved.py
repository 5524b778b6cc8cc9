"""A table's rows as plain arrays, and back: what an algorithm's checkpoint holds of its replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from conduit import rows
from conduit.table import Table
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError

__all__ = ["append_saved", "saved_rows"]

_NO_KEY = np.uint64(2**64 - 1)  # what the core says where no row follows
_PIECE = 4096  # rows of one append
_TIMEOUT = 60.0  # seconds that an append may wait for space


def saved_rows(table: Table) -> dict[str, Any]:
    """Return every live row, oldest first: columns, flags, priorities, and which row follows which.

    `follows` int64 (n,): the position of the row after each row of its episode, -1 where there is none. Rows appended
    meanwhile may be missing; take it while nobody writes. Needs pyarrow.
    """
    from conduit_store.arrow import record_batch_columns

    columns: dict[str, list[Array]] = {name: [] for name in table.schema.names}
    keys: list[Array] = []
    for block in table.blocks():
        batch = block.to_arrow()
        for name, values in record_batch_columns(batch, table.schema).items():
            columns[name].append(values)
        keys.append(block.keys)
    if not keys:
        return {"columns": {}, "flags": np.zeros(0, np.uint8), "follows": np.zeros(0, np.int64), "priorities": None}
    all_keys = np.concatenate(keys)
    _, flags, following = table._native.links(all_keys, len(all_keys))
    order = np.argsort(all_keys)
    next_keys = np.frombuffer(following, np.uint64)
    place = np.searchsorted(all_keys, next_keys, sorter=order)
    found = order[np.minimum(place, len(order) - 1)]
    follows = np.where((next_keys != _NO_KEY) & (all_keys[found] == next_keys), found, -1)
    return {
        "columns": {name: np.concatenate(parts) for name, parts in columns.items()},
        "flags": np.frombuffer(flags, np.uint8) & np.uint8(rows.TERMINATED | rows.TRUNCATED | rows.FINAL),
        "follows": follows,
        "priorities": table.priorities(all_keys),
    }


def append_saved(table: Table, saved: Mapping[str, Any]) -> None:
    """Append what `saved_rows` returned to an empty table, episodes linked as they were.

    Of a smaller table's rows only the newest stay. An episode that was going on is over: its last steps, whose windows
    are not complete, are never drawn.

    Raises:
        ConfigError: the rows have other columns than the table.
    """
    columns = saved["columns"]
    if not columns:
        return
    if set(columns) != set(table.schema.names):
        raise ConfigError(f"saved rows have columns {sorted(columns)}, table {table.name!r} {list(table.schema.names)}")
    chains, count = _chains(saved["follows"], saved["flags"])
    given = saved["priorities"]
    prioritized = table.spec.views[0].prioritized and given is not None
    priorities = _known(np.asarray(given)) if prioritized else None
    writer = rows.native_writer(table._native, table.spec, count)
    try:
        n = len(chains)
        for start in range(0, n, _PIECE):
            piece = slice(start, min(n, start + _PIECE))
            rows.append(
                writer,
                table.spec,
                piece.stop - start,
                [rows.buffer(np.ascontiguousarray(columns[name][piece])) for name in table.schema.names],
                flags=np.ascontiguousarray(saved["flags"][piece]),
                priorities=None if priorities is None else np.ascontiguousarray(priorities[piece]),
                chains=chains[piece],
                timeout=_TIMEOUT,
            )
    finally:
        writer.close()


def _chains(follows: Array, flags: Array) -> tuple[Array, int]:
    """A chain for each row, the same along an episode, and how many there are.

    A chain is used again behind an episode's final observation; one that stops short of it is not: the core would
    link its last step to whatever came next.
    """
    final = (flags & rows.FINAL) != 0
    chains = np.full(len(follows), -1, np.int32)
    free: list[int] = []
    count = 0
    for i, after in enumerate(follows.tolist()):
        chain = int(chains[i])
        if chain < 0:
            if free:
                chain = free.pop()
            else:
                chain = count
                count += 1
            chains[i] = chain
        if after >= 0:
            chains[after] = chain
        elif final[i]:
            free.append(chain)
    return chains, max(count, 1)


def _known(priorities: Array) -> Array:
    """Rows whose default was not fixed yet get the largest there is."""
    unknown = np.isnan(priorities)
    largest = np.nanmax(priorities) if not unknown.all() else 1.0
    return np.where(unknown, largest, priorities).astype(np.float32)
