"""Windows of several rows that vary in length, against the model of windows of rows that do not.

What varies follows from an observation's number and a salt, so the model's numbers say what each place must hold.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit import Column, Disk, Schema, Table, windows
from conduit_store.native import native
from tests.disk_support import with_least_memory
from tests.property.test_windows_model import EPISODES, OPERATIONS, SEQUENCES, STACKS, Play, listed
from tests.store_support import fresh_store

CODECS = [name for name in ("lz4", "zstd") if native.has_codec(name)]
SCHEMA = Schema(
    (
        Column("obs/id", "int64"),
        Column("obs/words", "string", mean_length=4),
        Column("action", "int64"),
        Column("tokens", "int32", (None,), mean_length=4),
        Column("frames", "uint8", (None, 2, 2), mean_length=2, nullable=True),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("truncated", "bool"),
    )
)


class VaryingPlay(Play):
    """Rows of each length, now and then one of more than a block holds; a number of 0 is a place without a step."""

    obs = "obs/id"

    def __init__(self, table: Table, salt: int) -> None:
        super().__init__(table)
        self.salt = salt

    def chance(self, number: int) -> int:
        return (number + self.salt) * 2_654_435_761 >> 7

    def words(self, number: int) -> str:
        return "é" * (self.chance(number) % 4) if number else ""

    def tokens(self, number: int) -> list[int]:
        length = 500 if self.chance(number) % 53 == 0 else self.chance(number) % 9
        return list(range(number, number + length)) if number else []

    def frames(self, number: int) -> list[Any] | None:
        """A list of images, null now and then."""
        kind = self.chance(number) % 5
        return [[[number % 251] * 2] * 2] * kind if number and kind < 4 else None

    def observation(self, number: int) -> dict[str, Any]:
        return {"id": number, "words": self.words(number)}

    def others(self, number: int) -> dict[str, Any]:
        frames = self.frames(number)
        return {
            "tokens": np.array(self.tokens(number), np.int32),
            "frames": None if frames is None else np.array(frames, np.uint8).reshape(-1, 2, 2),
        }

    def columns(self, window: Any, expected: dict[str, Any]) -> dict[str, Any]:
        obs, whole = expected["obs"], {name: value for name, value in expected.items() if "obs" not in name}
        whole |= {"obs/id": obs, "obs/words": [*map(self.words, obs)]}
        if isinstance(window, windows.FrameStack):
            steps: Any = obs[-1]
            whole |= {"tokens": self.tokens(steps), "frames": self.frames(steps) or []}
            whole |= {"frames:valid": self.frames(steps) is not None}
        else:
            whole["tokens"] = self.tokens(expected["action"]) if "tokens" in window.state else [*map(self.tokens, obs)]
            whole |= {"frames": [self.frames(x) or [] for x in obs]}
            whole |= {"frames:valid": [self.frames(x) is not None for x in obs]}
        if "next_obs" in expected:
            after = expected["next_obs"]
            words = [*map(self.words, after)] if isinstance(after, list) else self.words(after)
            whole |= {"next_obs/id": after, "next_obs/words": words}
        return whole


def check_forms(table: Table, name: str) -> None:
    """A batch says the same packed, padded and as Arrow lists, and a loader's batch the same as the table."""
    batch = table.sample(5, window=name)
    for column in ("obs/words", "tokens", "frames"):
        rows = batch[column]
        array, mask = rows.padded()
        assert array.shape[: mask.ndim] == mask.shape
        assert np.array_equal(array[mask], rows.values)
        assert np.array_equal(mask.sum(-1), rows.lengths)
        if column != "frames":
            assert batch.to_arrow().column(column).to_pylist() == listed(rows)
    with table.loader(5, window=name, prefetch=2) as loader:
        loaded = loader.next()
    again = table.rows(loaded.keys, window=name)
    for column in batch.names:
        assert listed(loaded[column]) == listed(again[column])


@settings(max_examples=40, deadline=None)
@given(
    first=SEQUENCES, second=st.one_of(EPISODES, SEQUENCES), third=STACKS, size=st.integers(10, 60),
    on_disk=st.sampled_from(["", "disk", *CODECS]), salt=st.integers(0, 1 << 20), state=st.booleans(),
    operations=OPERATIONS,
)  # fmt: skip
def test_windows_have_rows_of_each_length(
    first: windows.Sequence, second: Any, third: windows.FrameStack, size: int, on_disk: str, salt: int, state: bool,
    operations: list[tuple[int, int, str]],
) -> None:  # fmt: skip
    names = ("action", "tokens") if state else ("action",)
    views = {
        "first": windows.Sequence(first.length, first.burn_in, first.period, first.strict, names, first.next_obs),
        "second": second, "third": third,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, fresh_store() as store:

        def create(disk: Disk | None) -> Table:
            return store.create_table(
                "t", SCHEMA, size, window=views, max_writers=4, mean_episode_length=4.0, disk=disk
            )

        compression = on_disk if on_disk in CODECS else None
        table = with_least_memory(Path(folder), create, compression) if on_disk else create(None)
        play = VaryingPlay(table, salt)
        for turn, operation in enumerate(operations):
            play.run(*operation)
            if turn % 3 == 2:
                play.compare(views)
        play.compare(views)
        for name in views:
            if table.info(window=name).ready_rows:
                check_forms(table, name)
