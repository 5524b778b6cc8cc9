"""Tables chosen by chance: their columns, windows, samplers and where their rows lie; and the rows to put into them.

Every observation has a number: SPAN times that of its episode, and its place in it. The number says what every column
of its step holds, so that whatever comes out of a table can be checked without keeping what went in.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from conduit import Column, Disk, Schema, Store, Table, samplers, windows
from conduit_store.native import native
from tests.disk_support import with_least_memory

SPAN = 1_000  # more than any episode has steps
CODECS = [name for name in ("lz4", "zstd") if native.has_codec(name)]
WRITERS = 5  # at a time, at most: one for arrays, one for environments that step together, the others step by step
Array = npt.NDArray[Any]
Columns = dict[str, Any]
Window = windows.Row | windows.Transition | windows.NStep | windows.FrameStack | windows.Sequence | windows.Episode


def reward_of(number: int) -> np.float32:
    return np.float32(((number * 37) % 101) / 8 - 3)


def advantage_of(number: int) -> float | None:
    return None if number % 3 == 0 else float(number % 977)


def action_of(number: int) -> str:
    return f"a{(number // SPAN + number % SPAN) % 5}"


def tokens_of(number: int) -> Array:
    """From 0 to 6 of them."""
    return np.arange((number * 13) % 7, dtype=np.int32) + number


def text_of(number: int) -> str:
    return "é" * (number % 3) + str(number) * (number % 4 > 0)


@dataclass(frozen=True)
class Shape:
    """What a table is created with. Which of the columns that not every table has are there: its four flags."""

    categories: bool  # actions are strings, else numbers
    image: bool
    nullable: bool  # advantages, which are mutable too
    ragged: bool  # tokens, a row of each length, and text that is observed
    schema: Schema = field(repr=False)
    max_size: int
    windows: dict[str, Window]
    samplers: dict[str, samplers.Sampler]
    mean_episode_length: int
    max_times_sampled: int | None
    on_disk: bool
    compression: str | None  # there

    def create(self, store: Store, folder: Path, seed: int) -> Table:
        """Create the table; with rows on disk it gets the least memory that it may have."""
        if not self.on_disk:
            return self._create(store, None, seed)
        return with_least_memory(folder, lambda disk: self._create(store, disk, seed), self.compression)

    def _create(self, store: Store, disk: Disk | None, seed: int) -> Table:
        return store.create_table(
            "t", self.schema, self.max_size, window=self.windows, sampler=self.samplers, max_writers=WRITERS, disk=disk,
            mean_episode_length=self.mean_episode_length, max_times_sampled=self.max_times_sampled, seed=seed,
        )  # fmt: skip

    # ---- rows

    def observation(self, number: int) -> Columns:
        obs: Columns = {"a": np.int64(number), "b": np.full(3, number % 1009, np.float32)}
        if self.image:
            obs["img"] = np.full((4, 4), number % 251, np.uint8)
        if self.ragged:
            obs["text"] = text_of(number)
        return obs

    def row(self, number: int, end: str) -> Columns:
        """A step; `end` is "", "terminated" or "truncated"."""
        row: Columns = {
            "obs": self.observation(number),
            "action": action_of(number) if self.categories else np.int16(number % SPAN),
            "reward": float(reward_of(number)), "terminated": end == "terminated", "truncated": end == "truncated",
        }  # fmt: skip
        if self.nullable:
            row["adv"] = advantage_of(number)
        if self.ragged:
            row["tok"] = tokens_of(number)
        return row

    def observations(self, numbers: Sequence[int]) -> Columns:
        return _stacked([self.observation(number) for number in numbers])

    def columns(self, rows: Sequence[Columns], masked: bool) -> Columns:
        """Rows as arrays. Nulls are None in a list, or with `masked` zeros with a mask."""
        made: Columns = {"obs": _stacked([row["obs"] for row in rows])}
        for name in rows[0].keys() - {"obs"}:
            values = [row[name] for row in rows]
            if name == "tok" or (name == "action" and self.categories) or (name == "adv" and not masked):
                made[name] = values
            elif name == "adv":
                made[name] = np.array([value or 0 for value in values], np.float32)
                made["adv:valid"] = np.array([value is not None for value in values])
            elif name == "reward":
                made[name] = np.array(values, self.schema.column(name).dtype)
            else:
                made[name] = np.stack([np.asarray(value) for value in values])
        return made


def random_shape(chance: random.Random) -> Shape:
    ragged = chance.random() < 0.4
    categories, nullable, image = chance.random() < 0.5, chance.random() < 0.5, chance.random() < 0.6
    columns = [
        Column("obs/a", "int64"), Column("obs/b", "float32", (3,)),
        Column("action", "category", max_values=8) if categories else Column("action", "int16"),
        Column("reward", chance.choice(["float32", "float64"])),
        Column("terminated", "bool"), Column("truncated", "bool"),
    ]  # fmt: skip
    if image:
        columns.append(Column("obs/img", "uint8", (4, 4)))
    if nullable:
        columns.append(Column("adv", "float32", mutable=True, nullable=True))
    if ragged:
        columns += [Column("tok", "int32", (None,), mean_length=4), Column("obs/text", "string", mean_length=3)]
    chance.shuffle(columns)
    on_disk = chance.random() < 0.5
    max_size = chance.choice([60, 200, 500] if on_disk else [7, 20, 60, 200, 500])
    chosen = _random_windows(chance, max_size)
    max_times_sampled = chance.choice([None, None, 1, 2, 5])
    return Shape(
        categories, image, nullable, ragged, Schema(tuple(columns)), max_size, chosen,
        {name: _random_sampler(chance, max_times_sampled is None) for name in chosen},
        chance.choice([2, 8, 25]), max_times_sampled, on_disk,
        chance.choice([None, *CODECS]) if on_disk and not nullable else None,
    )  # fmt: skip


def _stacked(observations: Sequence[Columns]) -> Columns:
    return {
        name: [obs[name] for obs in observations] if name == "text" else np.stack([obs[name] for obs in observations])
        for name in observations[0]
    }


def _random_windows(chance: random.Random, max_size: int) -> dict[str, Window]:
    """n-step windows, and up to three others."""
    pool: dict[str, Window] = {"row": windows.Row(), "transition": windows.Transition(0.9)}
    sequence = windows.Sequence(
        chance.choice([1, 3, 5]), burn_in=chance.choice([0, 2]), period=chance.choice([1, 2]),
        strict=chance.random() < 0.3, next_obs=chance.random() < 0.7,
    )  # fmt: skip
    if not sequence.strict or sequence.length + sequence.burn_in <= max_size:
        pool["sequence"] = sequence
    pool["stack"] = windows.FrameStack(
        chance.choice([1, 2, 4]), n=chance.choice([1, 3]), gamma=0.9, pad=chance.choice(["repeat", "zeros"])
    )
    pool["episode"] = windows.Episode(chance.choice([2, 6]), next_obs=chance.random() < 0.7)
    others = chance.sample(sorted(pool), min(len(pool), chance.choice([1, 2, 3])))
    steps = windows.NStep(chance.choice([1, 2, 3, 5]), chance.choice([0.0, 0.5, 0.9, 1.0]))
    return {"n-step": steps, **{name: pool[name] for name in others}}


def _random_sampler(chance: random.Random, stratified: bool) -> samplers.Sampler:
    """`stratified`: whether it may be; a table that counts how often rows were drawn does not allow it."""
    choices: list[samplers.Sampler] = [
        samplers.Uniform(), samplers.WithoutReplacement(), samplers.Fifo(), samplers.Lifo(),
        samplers.Prioritized(alpha=chance.choice([0, 0.6, 1, 2.0]), eps=chance.choice([0, 1e-3])),
        samplers.Prioritized(normaliser="table", stratified=stratified), samplers.Uniform(stratified=stratified),
    ]  # fmt: skip
    return chance.choice(choices)
