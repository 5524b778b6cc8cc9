"""What the tests of tables share: small schemas, a store of a test's own, and a look at what a table holds."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from conduit import Column, Schema, StaleKey, Store, Table, Writer, samplers, windows
from conduit.writer import VectorWriter
from conduit_store.arrow import to_numpy
from tests.shm_support import private_runtime_dir

Array = npt.NDArray[Any]
_numbers = itertools.count()


def schema(**columns: Any) -> Schema:
    """`schema(x="i8", obs=("f4", (2,)))`."""
    made = []
    for name, kind in columns.items():
        dtype, shape = kind if isinstance(kind, tuple) else (kind, ())
        made.append(Column(name.replace("__", "/"), np.dtype(dtype), shape))
    return Schema(tuple(made))


PLAIN = schema(x="i8")
EPISODIC = schema(obs="i8", action="i8", reward="f4", terminated="?", truncated="?")


@contextmanager
def fresh_store(host_memory: str | int = "16MiB", **options: Any) -> Iterator[Store]:
    """A store in a runtime directory of its own."""
    with private_runtime_dir(), Store.create(f"test-{os.getpid()}-{next(_numbers)}", host_memory, **options) as store:
        yield store


def plain_table(store: Store, max_size: int, name: str = "t", **options: Any) -> Table:
    return store.create_table(name, PLAIN, max_size, **options)


def prioritized(alpha: float = 1.0, beta: float = 1.0, eps: float = 0.0) -> samplers.Prioritized:
    return samplers.Prioritized(alpha, beta, eps)


def episodes(store: Store, max_size: int, n: int = 1, gamma: float = 0.9, name: str = "t", **options: Any) -> Table:
    return store.create_table(name, EPISODIC, max_size, window=windows.NStep(n, gamma), **options)


def scalar_writer(table: Table, **options: Any) -> Writer:
    writer = table.writer(**options)
    assert isinstance(writer, Writer)
    return writer


def vector_writer(table: Table, num_envs: int, **options: Any) -> VectorWriter:
    writer = table.writer(num_envs, **options)
    assert isinstance(writer, VectorWriter)
    return writer


def step(writer: Writer, obs: int, reward: float = 0.0, end: str = "", priority: float | None = None) -> None:
    """Append one step of EPISODIC; `end` is "", "terminated" or "truncated"."""
    writer.append(
        obs=obs,
        action=obs,
        reward=reward,
        terminated=end == "terminated",
        truncated=end == "truncated",
        priority=priority,
    )


def episode(writer: Writer, obs: Sequence[int], rewards: Sequence[float], end: str, final_obs: int) -> None:
    """Append a whole episode."""
    for i, (o, r) in enumerate(zip(obs, rewards, strict=True)):
        step(writer, o, r, end if i == len(obs) - 1 else "")
    writer.end(final_obs)


def keys_of(table: Table) -> npt.NDArray[np.uint64]:
    """Keys of all live rows in eviction order, final observations too."""
    found = [block.keys for block in table.blocks()]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def column_of(table: Table, name: str = "x") -> Array:
    """A column of all live rows in eviction order, final observations too."""
    found = [to_numpy(name, block.to_arrow().column(name)) for block in table.blocks()]
    return np.concatenate(found) if found else np.empty(0, table.schema.column(name).dtype)


def windows_of(table: Table) -> dict[int, dict[str, Any]]:
    """Every window that can be drawn, by the obs it begins with."""
    found: dict[int, dict[str, Any]] = {}
    for key in keys_of(table):
        try:
            batch = table.rows(np.array([key]))
        except StaleKey:
            continue
        found[int(batch["obs"][0])] = {name: array[0].item() for name, array in batch.items()}
    return found


def contents(table: Table) -> str:
    """A digest of every live row, its key and its priority."""
    digest = hashlib.sha256()
    for block in table.blocks():
        digest.update(block.keys.tobytes())
        digest.update(table.priorities(block.keys).tobytes())
        for name, column in zip(table.schema.names, block.to_arrow().columns, strict=True):
            digest.update(to_numpy(name, column).tobytes())
    return digest.hexdigest()


def counts(table: Table) -> dict[str, Any]:
    """What `info` says, times aside."""
    return {name: value for name, value in table.info()._asdict().items() if not name.endswith("_s")}


@contextmanager
def unchanged(table: Table) -> Iterator[None]:
    """Fails if the block changes a row, a priority or a count of the table."""
    before = contents(table), counts(table)
    yield
    assert (contents(table), counts(table)) == before
    table.verify()


def in_sigma(count: float, n: int, p: float, sigmas: float = 5.0) -> bool:
    """Whether `count` of `n` draws is within some sigmas of probability `p`."""
    return abs(count - n * p) <= sigmas * np.sqrt(n * p * (1 - p)) + 1e-9
