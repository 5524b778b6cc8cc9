"""Whole arrays into a table: `table.extend`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conduit import rows
from conduit.values import as_priorities, seconds
from conduit_store.arrays import Array
from conduit_store.errors import CapacityError, EpisodeError, SchemaError
from conduit_store.native import native
from conduit_store.schema import Column, Schema

if TYPE_CHECKING:
    from conduit.table_handle import TableHandle

__all__ = ["Extender"]


class Extender:
    """The writer behind one process's calls of `table.extend`. Threads take turns."""

    def __init__(self, table: TableHandle) -> None:
        self._table = table
        self._writer: native.Writer | None = None
        self._forks = 0
        self._owed: list[Any] | None = None  # a final observation that found no space after its step had
        self._lock = threading.Lock()
        schema = table.schema
        self._nested = any("/" in name for name in schema.names)
        # next_obs columns are looked at where an episode ends; in the table itself there are none
        self._next = {f"next_{c.name}": replace(c, name=f"next_{c.name}") for c in schema.obs}
        self._next = self._next if table.spec.episodic else {}
        # the core takes columns as they are given, where they are arrays of just the right dtypes
        self._plain = not self._nested and not table.spec.episodic

    def extend(self, columns: Any, priorities: Any, timeout: float | None, *, keys: bool = False) -> Any:
        """Append; returns how many rows went in, or their keys."""
        schema = self._table.schema
        if priorities is not None and not self._table.spec.prioritized:
            raise rows.not_prioritized(self._table.name)
        timeout = seconds(timeout)
        if self._plain and type(columns) is dict:
            with self._lock:
                writer = self._native()
                if (put := writer.append_columns(columns, priorities, timeout)) is not None:
                    done, n = put
                    if done < n:
                        raise rows.timed_out(writer, self._table.spec, timeout, done, n)
                    return rows.last_keys(writer) if keys else n
        given = self._columns(columns)
        following = {name: given.pop(name) for name in self._next if name in given}
        rows.check_names(given, schema)
        made, n = rows.as_columns(schema, given, self._table._categories)
        arrays: list[Any] = list(made.values())
        if n > self._table.max_size:
            raise CapacityError(
                f"{n:,} rows in one call, table {self._table.name!r} holds {self._table.max_size:,}: nothing was "
                "appended. Raise max_size or append in parts"
            )
        weights = None if priorities is None else as_priorities(priorities, n)
        if n == 0:
            return np.zeros(0, np.uint64) if keys else 0
        if not self._table.spec.episodic:
            with self._lock:
                buffers = [rows.buffer(a) for a in arrays]
                writer = self._native()
                rows.append(writer, self._table.spec, n, buffers, priorities=weights, timeout=timeout)
                return rows.last_keys(writer) if keys else n
        arrays, weights, flags = self._with_finals(arrays, weights, following, n)
        with self._lock:
            flags = self._extend_episodes(arrays, weights, flags, n, timeout)
            assert self._writer is not None
            return rows.last_keys(self._writer)[flags != rows.FINAL] if keys else n

    def _extend_episodes(
        self, arrays: list[Any], weights: Array | None, flags: Array, n: int, timeout: float | None
    ) -> Array:
        """Append `n` steps and the final observations among them; returns the flags of all rows that went in.

        Where it stops between a step that ends its episode and the observation after it, that one is owed: it goes in
        before whatever comes next.
        """
        writer = self._native()
        if self._owed is not None:
            columns = self._table.schema.columns
            arrays = [rows.joined(c, [owed, new]) for c, owed, new in zip(columns, self._owed, arrays, strict=True)]
            flags = np.concatenate([np.array([rows.FINAL], np.uint8), flags])
            weights = None if weights is None else np.concatenate([np.zeros(1, np.float32), weights])
        buffers = [rows.buffer(array) for array in arrays]
        done = writer.append_rows(len(flags), buffers, flags, weights, None, timeout, False)
        if done > 0 or self._owed is None:
            owing = done < len(flags) and flags[done] == rows.FINAL
            self._owed = [rows.kept(array[done : done + 1]) for array in arrays] if owing else None
        if done < len(flags):
            steps = int(np.count_nonzero(flags[:done] != rows.FINAL))
            raise rows.timed_out(writer, self._table.spec, timeout, steps, n)
        return flags

    @property
    def blocked(self) -> tuple[bool, int]:
        """Of a queue, after an append that timed out: see `rows.blocked`."""
        return rows.blocked(self._writer) if self._writer is not None else (False, 0)

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.close()

    def _native(self) -> native.Writer:
        attachment = self._table._store._native
        if self._writer is None or self._forks != attachment.forks:
            self._table._start_movers()
            self._writer = rows.native_writer(self._table._native, self._table.spec, 1, self._table._categories)
            self._forks = attachment.forks
            self._owed = None
        return self._writer

    def _columns(self, columns: Any) -> dict[str, Any]:
        if type(columns) is dict and not self._nested:
            return dict(columns) if self._next else columns
        if hasattr(columns, "to_batches") or hasattr(columns, "to_struct_array"):  # an Arrow table or record batch
            return self._arrow_columns(columns)
        if hasattr(columns, "items"):
            mapping = columns if isinstance(columns, Mapping) else {str(k): v for k, v in columns.items()}
            return Schema.flatten(mapping) if self._nested else dict(mapping)
        raise SchemaError(
            f"extend() got a {type(columns).__name__}: give a mapping of columns, an Arrow table or a TensorDict"
        )

    def _arrow_columns(self, data: Any) -> dict[str, Any]:
        from conduit_store.arrow import record_batch_columns

        following = [name for name in data.schema.names if name in self._next]
        stored = data.select([name for name in data.schema.names if name not in self._next])
        return {
            **record_batch_columns(stored, self._table.schema),
            **{name: self._following(self._next[name], data.column(name)) for name in following},
        }

    @staticmethod
    def _following(column: Column, data: Any) -> Any:
        from conduit_store.arrow import to_numpy

        return data if column.ragged or column.categorical else to_numpy(column.name, data)

    def _with_finals(
        self, arrays: list[Any], weights: Array | None, following: dict[str, Any], n: int
    ) -> tuple[list[Any], Array | None, Array]:
        """Put a row with the final observation behind each step that ends an episode."""
        schema = self._table.schema
        named = dict(zip(schema.names, arrays, strict=True))
        flags = (
            named["terminated"].astype(np.uint8) * rows.TERMINATED
            | named["truncated"].astype(np.uint8) * rows.TRUNCATED
        )
        ends = np.flatnonzero(flags)
        if not len(ends):
            return arrays, weights, flags
        missing = [name for name in self._next if name not in following]
        if missing:
            raise EpisodeError(
                f"row {ends[0]} of {n} ends an episode and {', '.join(missing)} is missing: the observation that the "
                "step led to cannot be found elsewhere. Nothing was appended"
            )
        finals = Schema(tuple(self._next.values()))
        categories = {f"next_{name}": of for name, of in self._table._categories.items()}
        known, _ = rows.as_columns(finals, following, categories, n)
        result: list[Any] = []
        for column, array in zip(schema.columns, arrays, strict=True):
            if column in schema.obs:
                after = known[f"next_{column.name}"]
                after = [after[end] for end in ends.tolist()] if isinstance(after, list) else after[ends]
            else:
                after = rows.blank(column, len(ends))
            result.append(rows.inserted(column, array, ends + 1, after))
        flags = np.insert(flags, ends + 1, rows.FINAL)
        if weights is not None:
            weights = np.insert(weights, ends + 1, np.float32(0))
        return result, weights, flags
