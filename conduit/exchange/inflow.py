"""Arrow tables of steps into a table: episodes linked again, final observations where they belong."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit import rows
from conduit.closing import Closing
from conduit.exchange.columns import nullable_rows_of, rows_of
from conduit.exchange.frame import FINAL, NEXT, PRIORITY, STEPS, Frame
from conduit.values import seconds
from conduit_store.arrays import Array
from conduit_store.errors import ConfigError, DtypeMismatch, EpisodeError, PriorityError, SchemaError
from conduit_store.schema import Column

if TYPE_CHECKING:
    from conduit.table import Table

__all__ = ["Inflow"]

_CHAINS = 1024  # episodes that may be open at a time
_CUT_AT_ONCE = 64  # of them, where there are more
_PIECE = 65_536  # rows handed to the core at a time, so that Ctrl-C is heard


class Inflow(Closing):
    """Appends Arrow tables, one after the other, in the order of their rows.

    Rows of one episode must come in order, those of different ones may be mixed; the first of an episode that is there
    has the number that its `step` says, so windows with a period lie where they lay. An episode is over with a row that
    has a final observation. One that stops without it is cut: its last step has no successor and is never drawn, as if
    its writer had closed there. Where more than 1,024 episodes are open at a time, the one that rested longest is cut.
    Closed at the end, or by whoever meets an error; what is in the table then stays.
    """

    def __init__(self, table: Table, frame: Frame, source: object, timeout: float | None) -> None:
        self._table = table
        self._frame = frame
        self._source = source
        self._timeout = seconds(timeout)
        self._episodic = table.spec.episodic
        if self._episodic and not frame.episodic:
            raise ConfigError(f"{source} has no steps of episodes, table {table.name!r} has. See Schema.is_episodic")
        self._native = rows.native_writer(
            table._native, table.spec, _CHAINS if self._episodic else 1, table._categories
        )
        self._open: OrderedDict[int, tuple[int, int]] = OrderedDict()  # episode -> chain, number of its last row
        self._free = list(range(_CHAINS))[::-1]
        self._unfinished: list[int] = []  # chains whose episode has ended without a final observation
        self.rows = 0

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._native.closed

    def close(self) -> None:
        """Close the writer. Episodes that have not ended are cut there."""
        self._native.close()

    def append(self, data: pa.Table) -> None:
        """Append all rows of `data`.

        Raises:
            DtypeMismatch: a null, with its row, or a type that the column does not hold. ShapeMismatch: as it says.
            EpisodeError: rows of an episode in another order, an end without its final observation, or a step that is
                no number of a step.
            PriorityError: not finite or negative. AppendTimeout, LockTimeout: as of `extend`.
        """
        n = len(data)
        if n == 0:
            return
        arrays: dict[str, Any] = {}
        for column in self._frame.schema.valued:
            arrays |= self._with_validity(column, data)
        priorities = self._priorities(data)
        if not self._episodic:
            self._push(n, [arrays[name] for name in self._table.schema.names], None, priorities, None, None)
        else:
            self._append_steps(data, arrays, priorities)
        self.rows += n

    def _with_validity(self, column: Column, data: pa.Table) -> dict[str, Any]:
        """A column and, of a nullable one, its validity."""
        values = data.column(column.name)
        if not column.nullable:
            return {column.name: self._column(column, values)}
        name = column.validity.name
        told = data.column(name) if name in data.column_names else None
        with self._located(len(data)):
            rows, valid = nullable_rows_of(column, values, told, self._rows_of)
        return {column.name: rows, name: valid}

    def _column(self, column: Column, data: pa.ChunkedArray) -> Any:
        if data.null_count:
            row = self.rows + int(data.is_null().to_numpy().argmax())
            raise DtypeMismatch(
                f"row {row} of {self._source}: column {column.name!r} is null. Fill or drop such rows first, or "
                "import into a table where it is nullable"
            )
        with self._located(len(data)):
            return self._rows_of(column, data, len(data))

    def _rows_of(self, column: Column, data: pa.ChunkedArray, n: int | None) -> Any:
        of = self._table._categories.get(column.name)
        return rows_of(column, data, n) if of is None else of.encode(data, n)

    @contextlib.contextmanager
    def _located(self, n: int) -> Iterator[None]:
        try:
            yield
        except SchemaError as error:
            raise type(error)(f"{self._source}, rows {self.rows} to {self.rows + n}: {error}") from error

    def _priorities(self, data: pa.Table) -> Array | None:
        if not self._table.spec.prioritized or PRIORITY not in data.column_names:
            return None
        given = data.column(PRIORITY)
        values: Array = given.cast(pa.float32()).to_numpy().copy()
        known = given.is_valid().to_numpy()
        bad = np.flatnonzero(known & ~((values >= 0) & np.isfinite(values)))
        if len(bad):
            raise PriorityError(
                f"row {self.rows + int(bad[0])} of {self._source}: priority {values[bad[0]]}; it must be finite and "
                "not negative"
            )
        return values  # null became NaN, which the core takes as: not given

    # ---- episodes

    def _append_steps(self, data: pa.Table, arrays: dict[str, Array], priorities: Array | None) -> None:
        n = len(data)
        ended = arrays["terminated"].astype(np.uint8) * rows.TERMINATED
        ended |= arrays["truncated"].astype(np.uint8) * rows.TRUNCATED
        finals, has_final = self._finals(data, ended)
        episode = self._numbers(data, self._frame.episode)
        if not self._frame.own and (lacking := np.flatnonzero((ended != 0) & ~has_final)).size:
            raise EpisodeError(
                f"row {self.rows + int(lacking[0])} of {self._source} ends an episode and has no final observation: "
                f"give columns {', '.join(self._frame.finals)} (null elsewhere) or {', '.join(self._frame.following)}"
            )
        # A final observation is a row behind the step that led to it.
        at = np.flatnonzero(has_final) + 1
        flags = np.insert(ended, at, rows.FINAL)
        columns = []
        for column in self._table.schema:
            last = finals[column.name] if column.name in finals else rows.blank(column, len(at))
            columns.append(rows.inserted(column, arrays[column.name], at, last))
        if priorities is not None:
            priorities = np.insert(priorities, at, np.float32(0))
        place = np.arange(n + 1)
        place[1:] += np.cumsum(has_final)  # of each step among all rows
        step = self._numbers(data, self._frame.step)
        steps = None if step is None else np.insert(self._checked_steps(step), at, 0).astype(np.uint32)
        first = 0
        while first < n:
            chains, end = self._chains(episode, step, ended, has_final, first)
            of_rows = np.repeat(chains, 1 + has_final[first:end])
            piece = slice(int(place[first]), int(place[end]))
            given, numbers = (None if a is None else a[piece] for a in (priorities, steps))
            self._push(len(of_rows), [column[piece] for column in columns], flags[piece], given, of_rows, numbers)
            self._cut(more=end < n)
            first = end

    def _finals(self, data: pa.Table, ended: Array) -> tuple[dict[str, Array], Array]:
        """Return the final observations that there are, by obs column, and of which rows (bool) they are."""
        names = data.column_names
        if all(name in names for name in self._frame.finals):
            valid = [data.column(name).is_valid().to_numpy() for name in self._frame.finals]
            has_final = valid[0]
            for name, other in zip(self._frame.finals, valid, strict=True):
                if (odd := np.flatnonzero(other != has_final)).size:
                    raise EpisodeError(
                        f"row {self.rows + int(odd[0])} of {self._source}: of {', '.join(self._frame.finals)} only "
                        f"some are null ({name}). Give all of a final observation, or none"
                    )
            prefix = FINAL
        elif all(name in names for name in self._frame.following):
            has_final, prefix = ended != 0, NEXT
        else:
            return {}, np.zeros(len(data), np.bool_)
        chosen = pa.array(np.flatnonzero(has_final))
        found = {
            column.name: self._column(column, data.column(prefix + column.name).take(chosen))
            for column in self._frame.schema.obs
        }
        return found, has_final

    def _numbers(self, data: pa.Table, name: str | None) -> Array | None:
        if name is None:
            return None
        numbers: Array = self._column(Column(name, np.dtype(np.int64)), data.column(name))
        return numbers

    def _checked_steps(self, step: Array) -> Array:
        if (odd := np.flatnonzero((step < 0) | (step >= STEPS))).size:
            at = int(odd[0])
            raise EpisodeError(
                f"row {self.rows + at} of {self._source}: {self._frame.step} is {step[at]}; steps of an episode are "
                f"numbered from 0, up to {STEPS - 1:,}"
            )
        return step

    def _chains(
        self, episode: Array | None, step: Array | None, ended: Array, has_final: Array, begin: int
    ) -> tuple[Array, int]:
        """Return the writer's chain for each row from `begin` on, and where it ends because no chain is free.

        Rows after an episode's end with the same number begin another one.
        """
        n = len(ended)
        over = (ended != 0) | has_final
        chains = np.zeros(n, np.int32)
        changes = over[:-1] if episode is None else over[:-1] | (episode[1:] != episode[:-1])
        starts = begin + np.array([0, *(np.flatnonzero(changes[begin:]) + 1)])
        for first, end in zip(starts.tolist(), [*starts[1:].tolist(), n], strict=True):
            number = 0 if episode is None else int(episode[first])
            if number in self._open and step is not None and step[first] == 0:
                self._unfinished.append(self._open.pop(number)[0])  # of another export, with numbers of its own
            if number not in self._open and not self._free:
                return chains[begin:first], first
            chain, last = self._open.pop(number, (-1, -1))
            if step is not None:
                self._check_order(step[first:end], last, number, first)
            if chain < 0:
                chain = self._free.pop()
            chains[first:end] = chain
            if has_final[end - 1]:
                self._free.append(chain)
            elif over[end - 1]:
                self._unfinished.append(chain)
            else:
                self._open[number] = chain, -1 if step is None else int(step[end - 1])
        return chains[begin:], n

    def _cut(self, more: bool) -> None:
        """Free the chains of episodes that ended without a final observation; and, if there are `more` rows than
        chains, of those that rested longest."""
        if more and not self._unfinished:
            oldest = [self._open.popitem(last=False)[1][0] for _ in range(min(_CUT_AT_ONCE, len(self._open)))]
            self._unfinished += oldest
        for chain in self._unfinished:
            self._native.cut(chain)
        self._free += self._unfinished
        self._unfinished = []

    def _check_order(self, step: Array, before: int, number: int, first: int) -> None:
        expected = np.arange(len(step)) + (before + 1 if before >= 0 else int(step[0]))
        if (odd := np.flatnonzero(step != expected)).size:
            at = int(odd[0])
            raise EpisodeError(
                f"row {self.rows + first + at} of {self._source}: step {step[at]} of episode {number} comes where "
                f"{expected[at]} is due. Sort the rows by {self._frame.episode}, {self._frame.step}"
            )

    def _push(
        self, n: int, columns: list[Any], flags: Array | None, priorities: Array | None, chains: Array | None,
        steps: Array | None,
    ) -> None:  # fmt: skip
        for start in range(0, n, _PIECE):
            piece = slice(start, start + _PIECE)
            given = [None if a is None else a[piece] for a in (flags, priorities, chains, steps)]
            taken = columns if n <= _PIECE else [column[piece] for column in columns]
            rows.append(
                self._native, self._table.spec, min(n - start, _PIECE), [rows.buffer(column) for column in taken],
                flags=given[0], priorities=given[1], chains=given[2], steps=given[3], timeout=self._timeout,
            )  # fmt: skip
