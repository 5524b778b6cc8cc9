"""Windows of every kind against their definitions in plain Python: random episodes, cuts, writers and evictions.

The model knows each episode's rows, which of them are live, and what a window is; it asks nothing of the table's
inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit import Ragged, StaleKey, Table, Writer, windows
from tests.store_support import EPISODIC, fresh_store, keys_of, scalar_writer

WRITERS = 3


@dataclass(eq=False)
class Episode:
    rows: list[int] = field(default_factory=list)  # obs of its steps
    end: str = ""  # of the last step
    final: int | None = None
    cut: bool = False  # its writer has gone


class Model:
    """What a table holds, and what each of its rows is as a window; None where it cannot be drawn."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.live: set[int] = set()

    def every(self) -> dict[int, tuple[Episode, int]]:
        return {obs: (e, i) for e in self.episodes for i, obs in enumerate(e.rows) if obs in self.live}

    def following(self, e: Episode, i: int) -> list[int]:
        """Observations after step i, the final one too."""
        return e.rows[i + 1 :] + ([e.final] if e.final is not None else [])

    def steps(
        self, e: Episode, i: int, most: int, *, whole: bool = False, strict: bool = False, last: bool = False
    ) -> int | None:
        """How many steps a window of up to `most` has from step i on."""
        after = self.following(e, i)
        have = len(e.rows) - i if last else len(after)
        ended = e.final is not None or (e.cut and have > 0)
        if have >= most and not whole:
            return most
        return min(have, most) if ended and not strict else None

    def history(self, e: Episode, i: int, n: int, *, strict: bool = False) -> list[int] | None:
        """The live rows before step i, up to n of them; None where the table lacks what the window needs."""
        if strict and i < n:
            return None
        before = e.rows[max(0, i - n) : i]
        return before if set(before) <= self.live else None


def sequence(m: Model, e: Episode, i: int, w: windows.Sequence | windows.Episode) -> dict[str, Any] | None:
    burn, length, period, strict, whole = 0, 0, 1, False, False
    if isinstance(w, windows.Episode):
        length = period = w.max_length
        whole = True
    else:
        burn, length, period, strict = w.burn_in, w.length, w.period, w.strict
    before = m.history(e, i, burn, strict=strict)
    n = m.steps(e, i, length, whole=whole, strict=strict, last=not w.next_obs)
    if i % period or before is None or n is None:
        return None
    places = [0] * (burn - len(before)) + before + e.rows[i : i + n] + [0] * (length - n)
    found: dict[str, Any] = {
        "obs": places,
        "mask": [x != 0 for x in places],
        "terminated": [x != 0 and x == e.rows[-1] and e.end == "terminated" for x in places],
        "truncated": [x != 0 and x == e.rows[-1] and e.end == "truncated" for x in places],
        "reward": [x % 7 for x in places],
        "action": before[0] if before else e.rows[i],
        "length": n,
    }
    return found | ({"next_obs": m.following(e, i)[n - 1]} if w.next_obs else {})


def stack(m: Model, e: Episode, i: int, w: windows.FrameStack) -> dict[str, Any] | None:
    before = m.history(e, i, w.k - 1)
    n = m.steps(e, i, w.n)
    if before is None or n is None:
        return None

    def frames(last: int) -> list[int]:
        every = [*e.rows, *([e.final] if e.final is not None else [])][max(0, last - w.k + 1) : last + 1]
        return [every[0] if w.pad == "repeat" else 0] * (w.k - len(every)) + every

    ends = i + n == len(e.rows) and e.end == "terminated"
    reward = sum(0.5**k * (e.rows[i + k] % 7) for k in range(n))
    return {
        "obs": frames(i), "next_obs": frames(i + n), "n_step": n, "reward": reward, "discount": 0 if ends else 0.5**n,
    }  # fmt: skip


def window_of(m: Model, e: Episode, i: int, w: Any) -> dict[str, Any] | None:
    return stack(m, e, i, w) if isinstance(w, windows.FrameStack) else sequence(m, e, i, w)


STATE = ("action",)
SEQUENCES = st.builds(
    windows.Sequence,
    length=st.integers(1, 6), burn_in=st.integers(0, 4), period=st.integers(1, 4), strict=st.booleans(),
    state=st.just(STATE), next_obs=st.booleans(),
)  # fmt: skip
EPISODES = st.builds(windows.Episode, st.integers(1, 7), state=st.just(STATE), next_obs=st.booleans())
STACKS = st.builds(
    windows.FrameStack,
    k=st.integers(1, 4),
    n=st.integers(1, 3),
    gamma=st.just(0.5),
    pad=st.sampled_from(["repeat", "zeros"]),
)
ENDS = st.sampled_from(["", "", "terminated", "truncated", "end", "close"])
OPERATIONS = st.lists(
    st.tuples(st.integers(0, WRITERS - 1), st.integers(1, 9), ENDS),
    min_size=1, max_size=25,
)  # fmt: skip


class Play:
    """Writers of one table, and the model beside them."""

    obs = "obs"  # the column with the numbers of observations

    def __init__(self, table: Table) -> None:
        self.table, self.model = table, Model()
        self.writers: list[Writer | None] = [None] * WRITERS
        self.running: list[Episode | None] = [None] * WRITERS
        self.serial = 0

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def observation(self, number: int) -> Any:
        return number

    def others(self, number: int) -> dict[str, Any]:
        """What a step has beside what all tables have."""
        return {}

    def columns(self, window: Any, expected: dict[str, Any]) -> dict[str, Any]:
        """The columns of a batch that the model's window is."""
        return expected

    def run(self, which: int, steps: int, end: str) -> None:
        writer = self.writers[which]
        if writer is None:
            writer = self.writers[which] = scalar_writer(self.table)
        episode = self.running[which]
        if episode is None:
            episode = self.running[which] = Episode()
            self.model.episodes.append(episode)
        for k in range(steps):
            obs = self.number()
            episode.rows.append(obs)
            last = end if k == steps - 1 and end in ("terminated", "truncated") else ""
            writer.append(
                obs=self.observation(obs), action=obs, reward=obs % 7, terminated=last == "terminated",
                truncated=last == "truncated", **self.others(obs),
            )  # fmt: skip
        if end == "close":
            writer.close()
            episode.cut = True
            self.writers[which] = self.running[which] = None
        elif end:
            episode.end = end if end != "end" else ""
            episode.final = self.number()
            writer.end(self.observation(episode.final))
            self.running[which] = None

    def compare(self, views: dict[str, Any]) -> None:
        table, model = self.table, self.model
        table.verify()
        keys = keys_of(table)
        blocks = [
            (int(obs), key)
            for view in table.blocks()
            for obs, key in zip(self._numbers(view), view.keys, strict=True)
        ]
        assert len(blocks) == len(keys)
        finals = {e.final for e in model.episodes}
        model.live = {obs for obs, _ in blocks} - finals
        assert len(model.live) == len(table) <= table.max_size
        for name, window in views.items():
            ready = 0
            for obs, (episode, i) in model.every().items():
                expected = window_of(model, episode, i, window)
                key = next(key for x, key in blocks if x == obs)
                try:
                    batch = table.rows(np.array([key]), window=name)
                except StaleKey:
                    assert expected is None, (name, window, obs)
                    continue
                assert expected is not None, (name, window, obs)
                ready += 1
                whole = self.columns(window, expected)
                got = {column: listed(batch[column][0]) for column in whole}
                assert got == whole, (name, window)
            info = table.info(window=name)
            assert (info.ready_rows, info.total_priority) == (ready, ready)
            if ready:
                drawn = table.sample(16, window=name)
                assert (drawn.probabilities == 1 / ready).all()


    def _numbers(self, view: Any) -> Any:
        from conduit_store.arrow import to_numpy

        return to_numpy(self.obs, view.to_arrow().column(self.obs))


def listed(value: Any) -> Any:
    """A value of a batch as Python's own, lists of lists."""
    if isinstance(value, Ragged):
        return [listed(row) for row in value]
    return value if isinstance(value, str) else value.tolist()


@settings(max_examples=60, deadline=None)
@given(
    first=SEQUENCES, second=st.one_of(EPISODES, SEQUENCES), third=STACKS, size=st.integers(10, 60),
    operations=OPERATIONS,
)  # fmt: skip
def test_windows_are_what_they_say(
    first: windows.Sequence, second: Any, third: windows.FrameStack, size: int, operations: list[tuple[int, int, str]]
) -> None:
    views = {"first": first, "second": second, "third": third}
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, size, window=views, mean_episode_length=4.0)
        play = Play(table)
        for turn, operation in enumerate(operations):
            play.run(*operation)
            if turn % 3 == 2:
                play.compare(views)
        play.compare(views)
