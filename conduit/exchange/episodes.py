"""Whole episodes from steps that come mixed, and back: what Minari, RLlib and TorchRL have in their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from conduit.exchange.columns import arrow_columns, arrow_rows, columns_of, indexable, rows_of
from conduit.exchange.frame import FINAL, STEPS, Frame
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError
from conduit_store.ragged_values import as_ragged
from conduit_store.schema import Column, Schema
from conduit_store.values import example_array

__all__ = [
    "Episode", "Episodes", "check_episodic", "column_of", "episode_of", "objects", "stacked", "tables_of", "told_by",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Episode:
    """Rows are as `indexable` makes them. `columns`: (T, ...) of every column; `final`: what the last step led to,
    (1, ...) of every obs column; `ended`: whether it is over, else there is more of it that is not known; `first`: the
    number of its first step, above 0 where those before it are not there."""

    columns: dict[str, Array]
    final: dict[str, Array]
    ended: bool = True
    first: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def steps(self) -> Array:
        """The numbers of its steps, int64 (T,)."""
        return np.arange(self.first, self.first + len(self))

    def observations(self, name: str) -> Array:
        """Return a column of observations with the final one: (T + 1, ...)."""
        return np.concatenate([self.columns[name], self.final[name]])


class Episodes:
    """Collects steps until their episode has its final observation.

    Episodes that never end are kept to the last, which takes memory; of these the last step is left out, and its
    observation is the final one: what that step led to is not known.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._open: dict[int, tuple[int, list[dict[str, Array]]]] = {}  # number of the first step, and parts
        self.rows = 0  # of the episodes that were given out

    def add(self, piece: pa.Table) -> Iterator[Episode]:
        """Take steps; iterate over the episodes that are complete."""
        frame = self._frame
        assert frame.episode is not None
        assert frame.step is not None
        numbers: Array = piece.column(frame.episode).to_numpy()
        order = np.argsort(numbers, kind="stable")
        steps = piece.column(frame.step).to_numpy()[order]
        first = next(iter(frame.finals))
        has_final = piece.column(first).is_valid().to_numpy()[order]
        found = columns_of(frame.schema, piece)
        columns = {column.name: indexable(column, found[column.name])[order] for column in frame.schema}
        ends = np.flatnonzero(has_final)
        chosen = pa.array(order[ends])
        finals = {
            column.name: indexable(column, rows_of(column, piece.column(name).take(chosen)))
            for name, column in frame.finals.items()
        }
        starts = np.flatnonzero(np.diff(numbers[order], prepend=numbers[order][:1] - 1)) if len(order) else order
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            number = int(numbers[order[start]])
            _, parts = self._open.setdefault(number, (int(steps[start]), []))
            # copies: a slice would keep the whole piece while its episode runs
            parts.append({name: array[start:stop].copy() for name, array in columns.items()})
            if has_final[stop - 1]:
                at = int(np.searchsorted(ends, stop - 1))
                yield self._made(*self._open.pop(number), {name: array[at : at + 1] for name, array in finals.items()})

    def rest(self) -> Iterator[Episode]:
        """Iterate over those that have not ended, as far as what each step led to is known."""
        for first, parts in self._open.values():
            whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            final = {column.name: whole[column.name][-1:] for column in self._frame.schema.obs}
            cut = {name: array[:-1] for name, array in whole.items()}
            if len(next(iter(cut.values()))):
                yield self._made(first, [cut], final, ended=False)
        self._open.clear()

    def _made(
        self, first: int, parts: list[dict[str, Array]], final: dict[str, Array], *, ended: bool = True
    ) -> Episode:
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        made = Episode(whole, final, ended, first)
        self.rows += len(made)
        return made


def stacked(name: str, steps: Any) -> Array:
    """Return a value a step as one array: of objects where they vary in length, or are text or bytes.

    Raises:
        DtypeMismatch, ShapeMismatch: what no column holds.
    """
    kinds = {type(step) for step in steps} if isinstance(steps, list | tuple) or steps.dtype.kind in "OU" else set()
    if not (kinds and kinds <= {str, np.str_, bytes}):
        if not kinds:
            return example_array(name, steps)
        arrays = [np.asarray(step) for step in steps]
        if len({array.shape for array in arrays}) == 1:
            return example_array(name, np.stack(arrays))
        steps = arrays
    made = np.empty(len(steps), object)
    for at, step in enumerate(steps):
        made[at] = step
    return made


def column_of(name: str, rows: Array) -> Column:
    """Return the column that holds what `stacked` has made."""
    if rows.dtype != object:
        return Column(name, rows.dtype, rows.shape[1:])
    first = rows[0]
    if isinstance(first, str | bytes):
        return Column(name, "string" if isinstance(first, str) else "binary")
    return Column(name, first.dtype, (None, *first.shape[1:]))


def objects(column: Column, rows: Array) -> list[Any]:
    """Return `indexable` rows one by one, as `stacked` takes them: text as str, binary as bytes."""
    if column.text is None:
        return list(rows)
    return [row.tobytes().decode() if column.text == "string" else row.tobytes() for row in rows]


def told_by(known: Schema, wanted: Schema) -> Schema:
    """Return the columns that are `known` from one episode; those whose rows vary in length as `wanted` says: rows of
    one episode may happen to be equally long."""
    return Schema(
        tuple(wanted.column(c.name) if c.name in wanted and wanted.column(c.name).ragged else c for c in known.valued)
    )


def episode_of(frame: Frame, arrays: Mapping[str, Array], n: int, first: int = 0) -> Episode:
    """Return an episode of `n` steps from whole arrays; those of observations have one row more, the final one.
    `first`: the number of its first step.

    Raises:
        ValueError: a column is not there, or has another dtype, shape or number of rows, or `first` is no number of a
            step. For use within `reading`.
        DtypeMismatch, ShapeMismatch, ValueOutOfRange: of rows that vary in length.
    """
    if not 0 <= first < STEPS:
        raise ValueError(f"its first step is {first}, steps are numbered from 0, up to {STEPS - 1:,}")
    columns: dict[str, Array] = {}
    final: dict[str, Array] = {}
    for column in frame.schema:
        if column.name not in arrays:
            raise ValueError(f"an episode has no {column.name}, it has {', '.join(arrays)}")
        array = arrays[column.name]
        expected = n + (column in frame.schema.obs)
        if column.ragged:
            array = indexable(column, as_ragged(column, array, expected))
        elif array.dtype != column.dtype or array.shape != (expected, *column.shape):
            raise ValueError(f"{column.name} is {array.dtype} of shape {array.shape}, {expected} of {column} were due")
        if expected > n:
            final[column.name] = array[-1:]
        columns[column.name] = array[:n]
    return Episode(columns, final, first=first)


def tables_of(
    frame: Frame, episodes: Iterable[tuple[int, Episode]], columns: list[str], rows: int
) -> Iterator[pa.Table]:
    """Iterate over numbered episodes as tables of `columns`, of whole episodes and about `rows` rows each."""
    waiting: list[tuple[int, Episode]] = []
    count = 0
    for number, episode in episodes:
        waiting.append((number, episode))
        count += len(episode)
        if count >= rows:
            yield _table_of(frame, waiting).select(columns)
            waiting, count = [], 0
    if waiting:
        yield _table_of(frame, waiting).select(columns)


def _table_of(frame: Frame, known: list[tuple[int, Episode]]) -> pa.Table:
    """Return episodes, with their numbers, as one table of the frame's form."""
    schema = frame.to_arrow()
    lengths = np.array([len(episode) for _, episode in known])
    nulls = np.ones(lengths.sum(), np.bool_)
    nulls[np.cumsum(lengths) - 1] = False
    at = pa.array(np.where(nulls, 0, np.cumsum(~nulls) - 1), mask=nulls)  # the final observation of each step
    arrays: dict[str, pa.Array] = {
        frame.episode or "": pa.array(np.repeat([number for number, _ in known], lengths), pa.int64()),
        frame.step or "": pa.array(np.concatenate([episode.steps for _, episode in known])),
    }
    names = frame.schema.names
    arrays |= arrow_columns(
        frame.schema, {name: np.concatenate([episode.columns[name] for _, episode in known]) for name in names}
    )
    for column in frame.schema.obs:
        finals = np.concatenate([episode.final[column.name] for _, episode in known])
        arrays[FINAL + column.name] = arrow_rows(column, finals).take(at)
    return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)


def check_episodic(frame: Frame, format: str, refused: str = "") -> None:
    """Refuse rows that are no steps of episodes, and columns of dtypes whose kind is among `refused`; "c" is
    categories.

    Raises:
        ConfigError: with what else to use.
    """
    if frame.episode is None:
        raise ConfigError(f"{format} has episodes, and this table keeps rows as they are. Export to 'parquet'")
    for column in frame.schema:
        if column.categorical and "c" in refused:
            raise ConfigError(f"{format} has no categories, as of column {column.name!r}. Export to 'parquet'")
        if column.dtype.kind in refused:
            raise ConfigError(f"{format} has no {column.dtype}, as of column {column.name!r}. Export to 'parquet'")
