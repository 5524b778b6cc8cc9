"""What the tests of import and export share: tables with known rows, and what of a table must survive."""

from __future__ import annotations

from typing import Any

import numpy as np

from conduit import Column, Schema, StaleKey, Store, Table, samplers, windows
from tests.store_support import keys_of, vector_writer

STEPS = Schema(
    (
        Column("obs", np.dtype("f4"), (3,)),
        Column("action", np.dtype("i8")),
        Column("reward", np.dtype("f4")),
        Column("terminated", np.dtype("?")),
        Column("truncated", np.dtype("?")),
        Column("mask", np.dtype("?"), (2, 2)),
    )
)
NESTED = Schema(
    (
        Column("obs/image", np.dtype("u1"), (2, 3)),
        Column("obs/speed", np.dtype("f8")),
        Column("action", np.dtype("f4"), (2,)),
        Column("reward", np.dtype("f8")),
        Column("terminated", np.dtype("?")),
        Column("truncated", np.dtype("?")),
    )
)
SETTINGS: dict[str, Any] = {"window": windows.NStep(3, 0.9), "sampler": samplers.Prioritized(1.0)}
EVERY_DTYPE = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
TIMES = tuple(f"{kind}8[{unit}]" for kind in "Mm" for unit in ("s", "ms", "us", "ns"))


def random_values(column: Column, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Any bytes are a value of any dtype but bool: NaNs, infinities and NaTs with their payloads among them."""
    if column.dtype.kind == "b":
        return rng.random((n, *column.shape)) < 0.5
    if column.dtype.kind == "M":  # that other units can hold as well, and NaT
        whole = rng.integers(-(2**53), 2**53, (n, *column.shape))
        return np.where(rng.random(whole.shape) < 0.1, np.iinfo("i8").min, whole).view(column.dtype)
    data = rng.bytes(n * column.row_bytes)
    return np.frombuffer(data, column.dtype).reshape(n, *column.shape)


def steps_table(
    store: Store, name: str = "t", *, schema: Schema = STEPS, num_envs: int = 3, steps: int = 40, seed: int = 0,
    max_size: int = 5_000, **options: Any,
) -> Table:  # fmt: skip
    """A table with episodes of several environments side by side, some of them running when their writer closes."""
    rng = np.random.default_rng(seed)
    table = store.create_table(name, schema, max_size, mean_episode_length=3, **{**SETTINGS, **options})
    with vector_writer(table, num_envs, autoreset="disabled") as writer:
        for _ in range(steps):
            columns = {column.name: random_values(column, num_envs, rng) for column in schema}
            columns["reward"] = rng.integers(-9, 9, num_envs).astype(schema.column("reward").dtype)
            for flag in ("terminated", "truncated"):
                columns[flag] = rng.random(num_envs) < 0.1
            obs = {column.name: _finite(columns[column.name], rng) for column in schema.obs}
            priorities = rng.random(num_envs) if table.spec.prioritized else None
            writer.append(**{**columns, **obs}, priorities=priorities)
            final = {c.name.removeprefix("obs/"): random_values(c, num_envs, rng) for c in schema.obs}
            ended = columns["terminated"] | columns["truncated"]
            stopped = ended | (rng.random(num_envs) < 0.05)  # some are ended by end() alone
            writer.end(final if "obs" not in schema else final["obs"], stopped)
    return table


def _finite(values: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.random(values.shape).astype(values.dtype) if values.dtype.kind == "f" else values


def windows_of_rows(table: Table, *, priorities: bool = True) -> list[tuple[bytes, ...]]:
    """Every window that can be drawn, byte for byte, with the priority of its row; in no order."""
    found = []
    for key in keys_of(table):
        try:
            batch = table.rows(np.array([key]))
        except StaleKey:
            continue
        window = tuple(array.tobytes() for _, array in batch.items())
        known = priorities and table.spec.prioritized
        found.append((*window, table.priorities(batch.keys).tobytes() if known else b""))
    return sorted(found)


def file_of(format: str) -> str:
    """A name that tells the format."""
    names = {"parquet": "x.parquet", "arrow": "x.arrow", "arrow-stream": "x.arrows", "numpy": "x.npz"}
    return names.get(format, format.replace("parquet folder", "parts"))
