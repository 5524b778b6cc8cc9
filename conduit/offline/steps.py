"""Windows over the rows of one row group, for all rows at once.

A row's successor is the next step of its episode, in this row group or in the next one. n-step windows end at the
border of a row group as they do at a time limit: gamma^m, and bootstrapped. A step whose successor is in neither is
left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from conduit import windows
from conduit.exchange.columns import columns_of as stored_columns
from conduit.exchange.columns import indexable, rows_of
from conduit.exchange.frame import FINAL, NEXT, Frame
from conduit_store.arrays import Array
from conduit_store.errors import DtypeMismatch, EpisodeError
from conduit_store.schema import Column, Schema

__all__ = ["Group", "columns_of", "reduced", "windows_of"]

_NUMBER = np.dtype(np.int64)
_AT_ONCE = 4096  # rows of a row group among which episodes go on that have no step numbers


class Group(NamedTuple):
    """A row group: its rows, the `beginnings` of the one behind it (None: there is none), and what messages call it."""

    rows: pa.Table
    behind: pa.Table | None
    name: str


def columns_of(frame: Frame, group: Group) -> dict[str, Array]:
    """Return the rows as they are stored: arrays by column.

    Raises:
        DtypeMismatch: a null, with its row, or another type. ShapeMismatch: another shape.
    """
    for column in frame.schema.valued:
        if not column.nullable:
            _check_no_nulls(column, group.rows.column(column.name), group.name)
    found = stored_columns(frame.schema, group.rows)
    return {column.name: indexable(column, found[column.name]) for column in frame.schema}


def _check_no_nulls(column: Column, data: pa.ChunkedArray, name: str) -> None:
    if data.null_count:
        row = int(data.is_null().to_numpy().argmax())
        raise DtypeMismatch(f"row {row} of {name}: column {column.name!r} is null, and it is not nullable")


def _column(column: Column, data: pa.ChunkedArray, name: str) -> Array:
    _check_no_nulls(column, data, name)
    return indexable(column, rows_of(column, data, len(data)))


def windows_of(frame: Frame, group: Group, window: windows.Transition | windows.NStep) -> dict[str, Array]:
    """Return the windows of a row group's rows, in their order: the arrays of `Table.batch_schema`.

    Raises:
        EpisodeError: an end without its final observation. DtypeMismatch, ShapeMismatch: as `columns_of`.
    """
    arrays = columns_of(frame, group)
    after = _successors(frame, group, arrays["terminated"] | arrays["truncated"])
    known, following = _following(frame, group, arrays, after)
    return reduced(frame.schema, arrays, after, known, following, window, np.flatnonzero(known))


def reduced(
    schema: Schema,
    arrays: dict[str, Array],
    after: Array,
    known: Array,
    following: dict[str, Array],
    window: windows.Transition | windows.NStep,
    chosen: Array,
) -> dict[str, Array]:
    """Return the windows of the rows `chosen`, in that order: the arrays of `Table.batch_schema`.

    `after`: the step that comes after each row in its episode, -1 where there is none; windows end before one whose
    next observation is not `known`. `following`: the next observations, where known, by column of obs.
    """
    steps = window.n if isinstance(window, windows.NStep) else 1
    last = np.arange(len(after))
    length = np.ones(len(after), np.int32)
    rewards = arrays["reward"].astype(np.float64)
    # products and sums in the order of the core, for the same bits
    total, factor = rewards.copy(), np.full(len(after), window.gamma)
    for k in range(1, steps):
        onward = after[last]
        on = (onward >= 0) & (length == k)
        on[on] = known[onward[on]]
        last[on] = onward[on]
        length[on] += 1
        total[on] += factor[on] * rewards[last[on]]
        factor[on] *= window.gamma
    # Rows are copied only where they are not all, or where a window has several: the shuffle copies them anyhow.
    every = len(chosen) == len(after)
    last = last[chosen]
    ends = ("terminated", "truncated")
    copied = {name: steps > 1 if name in ends else False for name in arrays}
    made = {
        name: array if every and not copied[name] else array[last if copied[name] else chosen]
        for name, array in arrays.items()
    }
    if steps > 1:
        made["reward"] = total[chosen].astype(arrays["reward"].dtype)
    for column in schema.obs:
        made[NEXT + column.name] = following[column.name] if every and steps == 1 else following[column.name][last]
    made["discount"] = np.where(made["terminated"], 0.0, factor[chosen]).astype(np.float32)
    made["n_step"] = length[chosen]
    return made


def beginning_rows(frame: Frame, links: pa.Table, name: str) -> Array:
    """Return which rows of a row group are the first there of their episode: all that may follow one of another."""
    if frame.episode is None:  # one environment
        return np.arange(min(1, len(links)))
    numbers = _column(Column(frame.episode, _NUMBER), links.column(frame.episode), name)
    if frame.step is None:  # every episode may have begun before: those that are there at once, not those to come
        numbers = numbers[:_AT_ONCE]
    firsts = np.sort(np.unique(numbers, return_index=True)[1])
    if frame.step is not None:
        firsts = firsts[_column(Column(frame.step, _NUMBER), links.column(frame.step), name)[firsts] > 0]
    return firsts


def beginnings(frame: Frame, rows: pa.Table, name: str) -> pa.Table:
    """Return those rows, in memory of their own: their links, and their observations."""
    wanted = [link for link in (frame.episode, frame.step) if link is not None]
    found = rows.select([*wanted, *(column.name for column in frame.schema.obs)])
    return found.take(pa.array(beginning_rows(frame, rows, name))).combine_chunks()


def _successors(frame: Frame, group: Group, ended: Array) -> Array:
    """Return the row that follows each in its episode: n + i for row i of the group behind, -1 where there is none."""
    n = len(ended)
    final = FINAL + frame.schema.obs[0].name
    over = ended | group.rows.column(final).is_valid().to_numpy() if final in group.rows.column_names else ended
    parts = [group.rows] if group.behind is None else [group.rows, group.behind]
    total = sum(len(part) for part in parts)
    after = np.full(n, -1, np.int64)
    if frame.episode is None:  # one environment
        after[: min(n, total - 1)] = np.arange(1, min(n, total - 1) + 1)
    else:
        numbers = [
            np.concatenate([_column(Column(name, _NUMBER), part.column(name), group.name) for part in parts])
            for name in (frame.episode, frame.step)
            if name is not None
        ]
        order = np.lexsort(numbers[::-1])  # by episode, then step; else in the order of the rows
        one, other = order[:-1], order[1:]
        same = numbers[0][one] == numbers[0][other]
        if frame.step is not None:
            same &= numbers[1][one] + 1 == numbers[1][other]
        same &= one < n
        after[one[same]] = other[same]
    after[over] = -1
    return after


def _following(frame: Frame, group: Group, arrays: dict[str, Array], after: Array) -> tuple[Array, dict[str, Array]]:
    """Return which rows' next observations are known, and those: arrays like the columns of obs."""
    n = len(after)
    rows, behind = group.rows, group.behind
    known = after >= 0
    source = np.where(after < n, after, 0)
    later = np.flatnonzero(after >= n)  # whose successor is in the group behind
    found: dict[str, Array] = {}
    has_final = np.zeros(n, np.bool_)
    for final, column in frame.finals.items():
        found[column.name] = arrays[column.name].take(source, 0)
        if behind is not None and len(later):
            observed = _column(column, behind.column(column.name), group.name)
            found[column.name][later] = observed[after[later] - n]
        if final in rows.column_names:
            valid = rows.column(final).is_valid().to_numpy()
            at = np.flatnonzero(valid)
            found[column.name][at] = _column(column, rows.column(final).take(pa.array(at)), group.name)
            has_final = valid
        elif NEXT + column.name in rows.column_names:  # every row has its own
            found[column.name] = _column(column, rows.column(NEXT + column.name), group.name)
            has_final = np.ones(n, np.bool_)
    known |= has_final
    lost = (arrays["terminated"] | arrays["truncated"]) & ~known
    if lost.any() and not frame.own:
        raise EpisodeError(
            f"row {int(lost.argmax())} of {group.name} ends an episode and has no final observation: give columns "
            f"{', '.join(frame.finals)} (null elsewhere) or {', '.join(frame.following)}"
        )
    after[has_final & (arrays["terminated"] | arrays["truncated"])] = -1
    after[after >= n] = -1  # windows end at the border
    return known, found
