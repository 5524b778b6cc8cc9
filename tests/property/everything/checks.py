"""Batches and tables held against the model: every row of every column."""

from __future__ import annotations

from typing import Any

import numpy as np

from conduit import Batch, StaleKey, Table, windows
from conduit_store.arrow import to_numpy
from tests.property.everything.model import Model, kind_of
from tests.property.everything.shapes import SPAN, Columns, Shape, Window, action_of, reward_of, tokens_of


def first_step(window: Window, row: Columns) -> int:
    """The number of the step that was drawn, by a row of a batch."""
    match window:
        case windows.FrameStack():
            return int(row["obs/a"][-1])
        case windows.Sequence() | windows.Episode():
            return int(row["obs/a"][kind_of(window).before])
        case _:
            return int(row["obs/a"])


def rows_of(batch: Batch) -> list[Columns]:
    columns = {name: batch[name] for name in batch.names}
    return [{name: column[j] for name, column in columns.items()} for j in range(len(batch))]


class Checks:
    def __init__(self, shape: Shape, model: Model) -> None:
        self._shape, self._model = shape, model
        self._categories: tuple[str, ...] = ()

    def table(self, table: Table) -> None:
        """Its own invariants hold; the rows that can be drawn are those of the model, and each is whole."""
        table.verify()
        live = self.live(table)
        numbers = set(live.values())
        steps = [number for number in numbers if self._model.is_step(number)]
        assert len(table) == len(steps) <= table.max_size, (len(table), len(steps), table.max_size)
        for name, window in self._shape.windows.items():
            for key, number in live.items():
                try:
                    batch = table.rows(np.array([key], np.uint64), window=name)
                except StaleKey:
                    batch = None
                drawable = self._model.drawable(window, number, numbers)
                assert (batch is not None) == drawable, self._about(window, number, f"the model: {drawable=}")
                if batch is not None:
                    self.batch(table, name, batch)

    def live(self, table: Table) -> dict[int, int]:
        """The numbers of all rows that are there, by their keys; also of final observations, and of spent rows."""
        found: dict[int, int] = {}
        for block in table.blocks():
            numbers = to_numpy("obs/a", block.to_arrow().column("obs/a")).tolist()
            found.update(zip(block.keys.tolist(), numbers, strict=True))
        assert len(set(found.values())) == len(found)
        return found

    def batch(self, table: Table, name: str, batch: Batch) -> None:
        window = self._shape.windows[name]
        self._categories = table.categories("action") if self._shape.categories else ()
        for row in rows_of(batch):
            number = first_step(window, row)
            try:
                self._row(window, row, number)
            except AssertionError as error:
                error.add_note(self._about(window, number, str(row)))
                raise

    def _about(self, window: Window, number: int, more: str) -> str:
        return f"{window}\nstep {number} of {self._model.find(number)[0]}\n{more}"

    def _row(self, window: Window, row: Columns, number: int) -> None:
        if isinstance(window, windows.Row):
            episode, step = self._model.find(number)
            assert step < episode.steps, "a final observation, drawn as a row"
            self._observation(row, "obs", number)
            self._step(row, number)
            assert row["reward"] == reward_of(number)
            self._flags(row, number)
        elif isinstance(window, windows.Sequence | windows.Episode):
            self._sequence(window, row, number)
        else:
            self._transition(window, row, number)

    def _transition(
        self, window: windows.NStep | windows.Transition | windows.FrameStack, row: Columns, number: int
    ) -> None:
        m = self._model.extent(window, number)
        assert int(row["n_step"]) == m, f"the model: {m} steps"
        self._reached(window, number, m)
        self._step(row, number)
        reward = sum(window.gamma**k * float(reward_of(number + k)) for k in range(m))
        assert abs(float(row["reward"]) - reward) < 1e-4 * max(1, abs(reward)), reward
        self._flags(row, number + m - 1)
        discount = 0.0 if row["terminated"] else window.gamma**m
        assert abs(float(row["discount"]) - discount) < 1e-6, discount
        for name, last in (("obs", number), ("next_obs", number + m)):
            if not isinstance(window, windows.FrameStack):
                self._observation(row, name, last)
                continue
            first = number - self._model.find(number)[1]  # of the episode
            for place, frame in enumerate(range(last - window.k + 1, last + 1)):
                if frame >= first or window.pad == "repeat":
                    self._observation(row, name, max(frame, first), place)
                else:
                    self._zeros(row, [column for column in row if column.startswith(f"{name}/")], place)

    def _sequence(self, window: windows.Sequence | windows.Episode, row: Columns, number: int) -> None:
        kind, step = kind_of(window), self._model.find(number)[1]
        length = self._model.extent(window, number)
        assert int(row["length"]) == length, f"the model: {length} steps"
        self._reached(window, number, length)
        whole = {"action", "reward", "terminated", "truncated", "adv", "adv:valid", "tok"} & row.keys()
        whole |= {name for name in row if name.startswith("obs/")}
        for place in range(kind.before + kind.reach):
            there = place >= kind.before - step and place < kind.before + length
            assert bool(row["mask"][place]) == there, place
            if not there:
                self._zeros(row, whole, place)
                continue
            at = number - kind.before + place
            self._observation(row, "obs", at, place)
            self._step(row, at, place)
            assert row["reward"][place] == reward_of(at), place
            self._flags(row, at, place)
        if kind.next_obs:
            self._observation(row, "next_obs", number + length)

    def _reached(self, window: Window, number: int, extent: int) -> None:
        """A window is short only where its episode is over, and begins only where it may."""
        kind, (episode, step) = kind_of(window), self._model.find(number)
        assert 1 <= extent <= kind.reach
        assert step < episode.steps, "a final observation"
        assert step % kind.period == 0, step
        assert episode.over or (extent == kind.reach and not kind.whole), extent
        assert not kind.strict or (extent == kind.reach and step >= kind.before), extent

    # ---- columns; `place` where they hold several steps

    def _observation(self, row: Columns, name: str, number: int, place: int | None = None) -> None:
        for column, value in self._shape.observation(number).items():
            assert np.array_equal(_at(row[f"{name}/{column}"], place), value), (f"{name}/{column}", number)

    def _step(self, row: Columns, number: int, place: int | None = None) -> None:
        """The columns that belong to one step in every window."""
        action = int(_at(row["action"], place))
        if self._shape.categories:
            assert self._categories[action] == action_of(number), (action, number)
        else:
            assert action == number % SPAN, (action, number)
        if self._shape.nullable:
            advantage = self._model.advantage(number)
            assert bool(_at(row["adv:valid"], place)) == (advantage is not None), (advantage, number)
            assert _at(row["adv"], place) == (advantage or 0), (advantage, number)
        if self._shape.ragged:
            assert np.array_equal(_at(row["tok"], place), tokens_of(number)), number

    def _flags(self, row: Columns, number: int, place: int | None = None) -> None:
        episode, step = self._model.find(number)
        for which in ("terminated", "truncated"):
            assert bool(_at(row[which], place)) == episode.flag(step, which), (which, number)

    def _zeros(self, row: Columns, names: Any, place: int) -> None:
        for name in names:
            value = row[name][place]  # where it varies in length, it has no elements
            assert not (len(value) if name in ("tok", "obs/text", "next_obs/text") else np.any(value)), (name, place)


def _at(value: Any, place: int | None) -> Any:
    return value if place is None else value[place]
