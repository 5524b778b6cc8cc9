"""Episodic tables against a model, operation by operation (hypothesis, stateful)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from conduit import EpisodeError, VectorWriter, Writer
from tests.property.table_machine import PRIORITIES, SETTINGS, TableMachine
from tests.property.table_model import Row

ENDS = st.sampled_from(["", "", "", "terminated", "truncated"])
REWARDS = st.integers(-8, 8)


class OneStep(TableMachine):
    steps = 1

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[int, list[bool]] = {}  # by id of the model's writer, for each environment

    @rule(num_envs=st.sampled_from([0, 0, 2, 3, 11]))
    def open_writer(self, num_envs: int) -> None:
        """0: a writer for one environment; else a vector writer, which ends episodes by `end`."""
        if len(self.writers) < 4:
            real = self.table.writer(num_envs, autoreset="disabled") if num_envs else self.table.writer()
            model = self.model.writer(max(num_envs, 1))
            self.writers.append((real, model))
            self.ended[id(model)] = [False] * max(num_envs, 1)

    @precondition(lambda self: self.writers)
    @rule(
        which=st.integers(0, 99), steps=st.integers(1, 6), end=ENDS, env=st.integers(0, 10), reward=REWARDS,
        priority=st.none() | PRIORITIES,
    )  # fmt: skip
    def append(self, which: int, steps: int, end: str, env: int, reward: int, priority: float | None) -> None:
        """Append some steps; with the last of them the episode of one environment may end."""
        real, model = self.writers[which % len(self.writers)]
        ended = self.ended[id(model)]
        priority = priority if self.prioritized else None
        for step in range(steps):
            rows = [Row(next(self.serial), float(reward + i)) for i in range(len(ended))]
            if step == steps - 1:
                rows[env % len(rows)].end = end
            if any(ended):
                with pytest.raises(EpisodeError):
                    self._give(real, rows, priority)
                return
            self._give(real, rows, priority)
            for i, row in enumerate(rows):
                row.raw = None if priority is None else np.float32(priority)
                ended[i] = bool(row.end)
            self.model.append(model, list(enumerate(rows)))

    def _give(self, real: Writer | VectorWriter, rows: list[Row], priority: float | None) -> None:
        columns = self._columns(rows)
        if isinstance(real, VectorWriter):
            real.append(**columns, priorities=None if priority is None else np.full(len(rows), priority))
        else:
            real.append(**{name: column[0] for name, column in columns.items()}, priority=priority)

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 99), more=st.integers(0, 2**11))
    def end(self, which: int, more: int) -> None:
        """Close the ended episodes, and by the bits of `more` some that are running."""
        real, model = self.writers[which % len(self.writers)]
        ended = self.ended[id(model)]
        running = [bool(episode.rows) for episode in model.episodes]
        mask = [e or (r and bool(more >> env & 1)) for env, (e, r) in enumerate(zip(ended, running, strict=True))]
        finals = [Row(next(self.serial), final=True) for _ in mask]
        if isinstance(real, VectorWriter):
            real.end(np.array([row.obs for row in finals]), np.array(mask))
        elif mask[0]:
            real.end(finals[0].obs)
        for env in np.flatnonzero(mask):
            ended[env] = False
        self.model.append(model, [(int(env), finals[env]) for env in np.flatnonzero(mask)])

    @rule(n=st.integers(0, 12), given=st.booleans(), data=st.data())
    def extend(self, n: int, given: bool, data: st.DataObject) -> None:
        n = min(n, self.model.capacity)
        steps = [Row(next(self.serial), float(i), data.draw(ENDS)) for i in range(n)]
        finals = [Row(next(self.serial), final=True) for _ in range(n)]
        priorities = None
        if given and self.prioritized:
            priorities = np.array(data.draw(st.lists(PRIORITIES, min_size=n, max_size=n)), np.float32)
            for row, priority in zip(steps, priorities, strict=True):
                row.raw = priority
        columns = self._columns(steps) | {"next_obs": np.array([row.obs for row in finals], np.int64)}
        assert self.table.extend(columns, priorities=priorities) == n
        rows: list[tuple[int, Row]] = []
        for step, final in zip(steps, finals, strict=True):
            rows += [(0, step), (0, final)] if step.end else [(0, step)]
        self.model.append(self.extender, rows)

    def _columns(self, rows: list[Row]) -> dict[str, Any]:
        obs = np.array([row.obs for row in rows], np.int64)
        return {
            "obs": obs,
            "action": obs,
            "x": obs,
            "reward": np.array([row.reward for row in rows], np.float32),
            "terminated": np.array([row.end == "terminated" for row in rows], bool),
            "truncated": np.array([row.end == "truncated" for row in rows], bool),
        }


class ThreeSteps(OneStep):
    steps = 3


class UniformFiveSteps(OneStep):
    steps = 5
    prioritized = False


TestOneStep = OneStep.TestCase
TestThreeSteps = ThreeSteps.TestCase
TestUniformFiveSteps = UniformFiveSteps.TestCase
TestOneStep.settings = TestThreeSteps.settings = TestUniformFiveSteps.settings = SETTINGS
