"""Rows on their way into a queue: the policy versions they carry, and what is said when there is no room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from conduit.queue_settings import POLICY_VERSION
from conduit.values import whole_number
from conduit_store.errors import AppendTimeout, ConfigError, MissingColumn

if TYPE_CHECKING:
    from conduit.queue import Queue

__all__ = ["full", "policy_version", "with_versions"]

_VERSIONS = 1 << 62


def policy_version(version: Any) -> int:
    """Return the version, checked.

    Raises:
        ConfigError: no whole number, or a huge one.
    """
    return whole_number("policy_version", version, -_VERSIONS, _VERSIONS)


def with_versions(queue: Queue, columns: Any, version: Any) -> Any:
    """Return the columns with the version of each row among them, as `Queue.extend` was given it."""
    if queue.settings.max_staleness is None:
        raise ConfigError(f"queue {queue.name!r} keeps no policy versions: create it with max_staleness=")
    arrow = hasattr(columns, "to_batches") or hasattr(columns, "to_struct_array")
    if not arrow and not hasattr(columns, "items"):
        return columns  # refused, with what it is, by whoever takes it
    names = columns.schema.names if arrow else columns
    if version is None:
        if POLICY_VERSION not in names:
            raise MissingColumn(f"queue {queue.name!r} has max_staleness: give policy_version= with the rows")
        return columns
    if POLICY_VERSION in names:
        raise ConfigError(f"{POLICY_VERSION} is given twice: as an argument and among the columns")
    if arrow:
        import pyarrow as pa

        return columns.append_column(POLICY_VERSION, pa.array(_each(version, columns.num_rows)))
    given = dict(columns.items())
    n = _rows_of(given)
    return {**given, POLICY_VERSION: _each(version, n)}


def full(queue: Queue, timeout: float | None, blocked: bool, in_memory: int) -> AppendTimeout:
    """Return the error of an append that found no room. `blocked`, `in_memory`: see `rows.blocked`."""
    disk = queue.spec.disk
    if in_memory and disk is not None:
        return AppendTimeout(
            f"no block of memory came free for queue {queue.name!r} within {timeout} s: {disk.folder} is slower "
            f"than appends are, or the {in_memory} blocks in memory are pinned or open. Nothing was appended. Wait "
            "longer, append fewer rows at a time, or give the queue more host_memory"
        )
    rows, holders = len(queue), queue._native.lease_holders()
    out = ", ".join(f"{n} of them are out with pid {pid}" for pid, n in holders)
    if blocked:
        return AppendTimeout(
            f"no free block in queue {queue.name!r} within {timeout} s: {rows} unacknowledged rows lie in all blocks"
            f"{f', {out}' if out else ''}. Nothing was appended. Acknowledge old rows, give incomplete groups up "
            "(drop_incomplete), or raise max_size or max_writers"
        )
    return AppendTimeout(
        f"no room in queue {queue.name!r} within {timeout} s: {rows} of {queue.max_size} rows are not acknowledged"
        f"{f', {out}' if out else ', none of them delivered'}. Nothing was appended. Check that consumers of "
        f"{', '.join(queue.consumers)} run and acknowledge, or raise max_size"
    )


def _each(version: Any, n: int) -> Any:
    given = np.asarray(version)
    return given if given.ndim else np.full(n, policy_version(given.item()))


def _rows_of(columns: dict[str, Any]) -> int:
    """How many rows the columns have, as the first says that is no nested mapping."""
    for value in columns.values():
        if hasattr(value, "items") and not hasattr(value, "shape"):
            return _rows_of(dict(value.items()))
        return len(value) if hasattr(value, "__len__") else 0
    return 0
