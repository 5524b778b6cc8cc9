"""Rows of a checkpoint for a table of another shape: another capacity, other columns, another limiter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from conduit import limiting
from conduit.checkpoints.index import BLOCK
from conduit.checkpoints.reading import SavedTable
from conduit.disk import Disk
from conduit.limiters import Limiter, SampleToInsertRatio
from conduit.spec import TableSpec
from conduit_store.arrays import Array
from conduit_store.column import Column
from conduit_store.errors import CheckpointError, ConfigError
from conduit_store.native import native
from conduit_store.nulls import is_null, zero
from conduit_store.schema import Schema
from conduit_store.values import as_row

__all__ = ["Changes", "Shape", "changed_spec", "changed_state", "same_shape"]

_FINAL = 4  # layout.hpp, kFinal
_USED_UP = 1 << 31
_NO_ROW = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be different of a table when it is restored; None leaves a thing as it was saved.

    `max_size`: of a smaller table's rows the newest stay; where rows vary in length, as many as there is memory for.
    Somewhat fewer, where episodes are much shorter than `mean_episode_length`: their final observations take rows too.
    `limiter`: another one, or other numbers; counts go on where both are a SampleToInsertRatio. `schema`: with columns
    added (each in `defaults`, one row's value, None where it is nullable), left out, made nullable, or of a dtype that
    holds every value of the old one. `disk`: another one, or False to have all rows in memory. Keys of a table of
    another shape are new, and old ones stale.

    Example:
        >>> Changes(max_size=2_000_000, limiter=conduit.limiters.MinSize(10_000))
    """

    max_size: int | None = None
    limiter: Limiter | None = None
    schema: Schema | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    disk: Disk | Literal[False] | None = None


def changed_spec(saved: SavedTable, changes: Changes) -> TableSpec:
    """Return the settings of the table to be made.

    Raises:
        ConfigError: they contradict each other, or a column cannot become what is asked.
    """
    spec = saved.spec
    given: dict[str, Any] = {}
    if changes.max_size is not None:
        given["max_size"] = changes.max_size
    if changes.limiter is not None:
        given["limiter"] = changes.limiter
    if changes.schema is not None:
        _check_columns(spec, changes)
        given["schema"] = _with_categories(spec.schema, changes.schema, changes.defaults)
    elif changes.defaults:
        raise ConfigError(f"defaults {sorted(changes.defaults)} of table {spec.name!r} go with a schema that adds them")
    if changes.disk is not None:
        given["disk"] = changes.disk or None
    return replace(spec, messages=None, **given) if given else spec


def _check_columns(spec: TableSpec, changes: Changes) -> None:
    assert changes.schema is not None
    for column in changes.schema.columns:
        if column.name not in spec.schema:
            if column.values_name is not None:
                continue
            if column.name not in changes.defaults:
                raise ConfigError(
                    f"column {column.name!r} is not in the checkpoint of table {spec.name!r}: give its value for the "
                    "rows that are there in `defaults`"
                )
            continue
        before = spec.schema.column(column.name)
        if before.nullable and not column.nullable:
            raise ConfigError(
                f"column {column.name!r} of table {spec.name!r} is nullable, and its nulls cannot become values: keep "
                "it so"
            )
        if before.categorical != column.categorical:
            raise ConfigError(
                f"column {column.name!r} of table {spec.name!r} is {before.dtype_name}, and cannot become "
                f"{column.dtype_name}"
            )
        same = before.shape == column.shape and before.text == column.text
        if not same or not np.can_cast(before.dtype, column.dtype, "safe"):
            raise ConfigError(
                f"column {column.name!r} of table {spec.name!r} is {before.dtype} {before.shape}, and cannot become "
                f"{column.dtype} {column.shape} without loss"
            )
    unknown = [name for name in changes.defaults if name not in changes.schema or name in spec.schema]
    if unknown:
        raise ConfigError(f"defaults {unknown} of table {spec.name!r} name no column that is added")


def _with_categories(before: Schema, after: Schema, defaults: Mapping[str, Any]) -> Schema:
    """Numbers keep their meaning: categories begin with those that the rows were saved with, then come new ones."""
    values: dict[str, tuple[str, ...]] = {}
    for column in after:
        if column.categorical:
            known = before.column(column.name).values if column.name in before else ()
            added = (*column.values, *((defaults[column.name],) if defaults.get(column.name) is not None else ()))
            values[column.name] = tuple(dict.fromkeys((*known, *added)))
    return after.with_values(values)


def same_shape(saved: SavedTable, spec: TableSpec) -> bool:
    """Whether every row can go back to its very place."""
    if spec.queue is not None and spec.max_size < saved.spec.max_size:
        return False  # a table gives up the oldest rows that are too many; of a queue nothing is dropped: see Shape
    layout = spec.block_layout()
    shape = (saved.record.rows_per_block, saved.record.n_blocks)
    same = layout == saved.spec.block_layout() if spec.schema.ragged else True  # planned for other lengths
    return (layout.rows, layout.blocks) == shape and spec.schema == saved.spec.schema and same


def changed_state(saved: SavedTable, spec: TableSpec, changes: Changes) -> dict[str, Any]:
    """Return the core's numbers with another limiter's, if there is one."""
    state = {**saved.record.state}
    if changes.limiter is None:
        return state
    settings = native.Settings()
    limiting.put(spec.limiter, spec.max_times_sampled, settings)
    limits, counts = dict(state["limits"]), state["counts"]
    old_ratio, inserts = limits["ratio"], counts["steps_folded"] - limits["inserts_before"]
    limits.update(min_size=settings.min_size, ratio=settings.ratio, capacity=settings.capacity)
    limits["error_buffer"] = None if math.isinf(settings.error_buffer) else settings.error_buffer
    if isinstance(spec.limiter, SampleToInsertRatio):
        if isinstance(saved.spec.limiter, SampleToInsertRatio):
            limits["shift"] += inserts * (old_ratio - settings.ratio)  # a new ratio is for the inserts to come
        else:
            limits.update(inserts_before=counts["steps_folded"], shift=0.0)
    state["limits"] = limits
    return state


class Shape:
    """Where the rows of a saved table go in a table of another shape: the newest, one after the other from block 0 on.

    Raises:
        CheckpointError: a queue with more rows that are not acknowledged than it is to hold.
    """

    def __init__(self, saved: SavedTable, rows: dict[str, Array], spec: TableSpec) -> None:
        layout = spec.block_layout()
        keys = saved.keys
        n = len(keys)
        steps = (rows["flags"] & _FINAL) == 0
        if "times_sampled" in rows:
            steps &= (rows["times_sampled"] & np.uint32(_USED_UP)) == 0
        if spec.queue is not None:
            waiting = np.zeros(n, bool)
            for consumer in spec.queue.consumers:
                waiting |= rows[f"delivery:{consumer}"] != _NO_ROW
            steps = waiting
        newer = np.cumsum(steps[::-1])[::-1]  # of each row: live rows from it on
        keep = np.flatnonzero((newer <= spec.max_size) & (np.arange(n) >= n - self._room(spec, n)))
        if spec.slots:
            keep = keep[steps[keep]]
        if spec.queue is not None and int(steps[keep].sum()) < int(steps.sum()):
            raise CheckpointError(
                f"queue {spec.name!r} of the checkpoint holds {int(steps.sum()):,} rows that nobody has acknowledged, "
                f"and is to hold {spec.max_size:,}: nothing of a queue is dropped. Give it a larger max_size"
            )
        self.keep = keep
        self._old_slots = (keys & np.uint64((1 << 28) - 1)).astype(np.int64)
        self.blocks = self._blocks(saved, layout.rows, layout.blocks)
        self.slots = self._slots(layout.rows)
        self.new_slot = np.full(saved.record.n_blocks * saved.rows_per_block, -1, np.int64)
        self.new_slot[self._old_slots[keep]] = self.slots
        self.rows = {name: np.ascontiguousarray(values[keep]) for name, values in rows.items()}
        if "previous" in self.rows:
            self.rows["previous"] = self._previous(self.rows["previous"])

    def _room(self, spec: TableSpec, n: int) -> int:
        """For how many of `n` rows there is room, the newest."""
        layout = spec.block_layout()
        return (layout.blocks - (1 if spec.slots else min(spec.max_writers, layout.blocks - 1))) * layout.rows

    def _slots(self, rows: int) -> Array:
        """Where the rows that are kept go."""
        return np.arange(len(self.keep))

    def _blocks(self, saved: SavedTable, rows: int, n_blocks: int) -> Array:
        blocks = np.zeros(n_blocks, BLOCK)
        used = -(-len(self.keep) // rows)
        blocks["block"] = np.arange(n_blocks)
        # above every generation there has been: an old key never names a row of today
        blocks["generation"] = (int(saved.blocks["generation"].max(initial=0)) + 1) & ((1 << 36) - 1)
        blocks["birth"][:used] = np.arange(1, used + 1)
        blocks["count"][:used] = rows
        blocks["sealed"][:used] = 1
        if used and len(self.keep) % rows:
            blocks["count"][used - 1] = len(self.keep) % rows
            blocks["sealed"][used - 1] = 0  # goes on where it stops
        return blocks

    def _previous(self, old: Array) -> Array:
        """Predecessors by their new place; none where it is not kept, or its place has had another row since."""
        known = old < len(self.new_slot)
        new = np.where(known, self.new_slot[np.where(known, old, 0)], -1)
        found: Array = np.where((new >= 0) & (new < self.slots), new, _NO_ROW).astype(np.uint32)
        return found

    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the core's numbers, as of a table whose blocks have been given out anew."""
        births = int((self.blocks["birth"] > 0).sum())
        return {**state, "counts": {**state["counts"], "births": births}}


def default_rows(column: Column, defaults: Mapping[str, Any], n: int) -> Array:
    """Return n rows of the value that an added column is given; what becomes nullable has had values until now.

    Raises:
        SchemaError: the value does not fit the column.
    """
    if (of := column.values_name) is not None:
        value: Any = of not in defaults or not is_null(defaults[of])
    else:
        value = defaults[column.name]
        value = column.values.index(value) if column.categorical and value in column.values else value
    if column.nullable and is_null(value):
        value = zero(column)
    row = np.asarray(as_row(column, value))
    repeated: Array = np.ascontiguousarray(np.broadcast_to(row, (n, *column.shape)), column.dtype)
    return repeated
