"""Names that cannot be hashed, paths that no file system takes, numbers that are none, more views than there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import conduit
import conduit.offline
from conduit import (
    Column,
    ConfigError,
    Disk,
    Schema,
    Store,
    UnknownColumn,
    UnknownTable,
    checkpoints,
    samplers,
    windows,
)
from conduit.checkpoints.restoring import fill, spec_in
from conduit.devices import TorchDevice
from tests.queue_support import put, queue_in
from tests.store_support import fresh_store, plain_table


@pytest.mark.parametrize("n", ["x", 1.5, None, [2]], ids=repr)
def test_a_number_of_rows_that_is_none(n: Any) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(8)})
        with pytest.raises(ConfigError) as caught:
            table.sample(n)
        assert str(caught.value).startswith(f"sample({n!r}): give a number of rows from 1 to ")
        queue = queue_in(store, 8)
        put(queue, 1)
        with pytest.raises(ConfigError, match="rows"):
            queue.sample(n)


@pytest.mark.parametrize("name", [["x"], {}, {1}], ids=repr)
def test_names_that_cannot_be_hashed(name: Any) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(8)})
        for find in (store.__getitem__, store.table, store.queue):
            with pytest.raises(UnknownTable, match="no table"):
                find(name)
        queue = queue_in(store, 8)
        put(queue, 1)
        for ask in (queue.sample, queue.drain, queue.loader):
            with pytest.raises(ConfigError, match="no consumer"):
                ask(consumer=name)
        batch = table.sample(2)
        assert name not in batch
        assert "x" in batch
        for column in (batch.__getitem__, batch.decode, table.schema.column):
            with pytest.raises(UnknownColumn, match="no column"):
                column(name)


PATHS: list[tuple[Any, str]] = [
    ("a\0b", "zero character"), ("x" * 5_000, "5,000 bytes"), ("y" * 300 + ".parquet", "255 a name"), (5, "is 5: give"),
    (None, "is None"), (["a"], "give a str"),
]  # fmt: skip
USES: dict[str, Callable[[Store, Any], Any]] = {
    "export": lambda store, path: store["t"].export(path, "parquet"),
    "checkpoint": lambda store, path: store.checkpoint(path),
    "restore": lambda store, path: Store.restore(path, "never"),
    "offline": lambda store, path: conduit.offline.open(path),
    "verify": lambda store, path: checkpoints.verify(path),
    "spec_in": lambda store, path: spec_in(path, "t"),
    "fill": lambda store, path: fill(store["t"], path),
    "disk": lambda store, path: Disk(path, "1MiB"),
    "import": lambda store, path: store.import_table("u", path) if isinstance(path, str) else Disk(path, "1MiB"),
}


@pytest.mark.parametrize("use", USES)
def test_paths_that_no_file_system_takes(use: str) -> None:
    with fresh_store() as store:
        plain_table(store, 8)
        for path, says in PATHS:
            with pytest.raises(ConfigError, match=says):
                USES[use](store, path)
        assert store.tables() == ["t"]


def test_more_blocks_than_views() -> None:
    """`iter_blocks` has one at a time; `blocks` says so, and leaves none pinned."""
    with fresh_store() as store:
        table = plain_table(store, 500)
        table.extend({"x": np.arange(500)})
        blocks = table._native.live_blocks()
        assert len(blocks) > 10
        held = [table.block(blocks[0]) for _ in range(2_038)]
        with pytest.raises(conduit.CapacityError, match=r"2048 zero-copy views.*iter_blocks") as caught:
            table.blocks()
        assert str(caught.value).startswith(f"table 't' has {len(blocks)} blocks")
        held += [table.block(blocks[0]) for _ in range(8)]  # while the error is still there
        seen = [int(x) for block in table.iter_blocks() for x in block.to_arrow()["x"].to_numpy()]
        assert seen == list(range(500))
        held.clear()
        assert len(table.blocks()) == len(blocks)


class Copying(TorchDevice):
    """A device in the host's memory whose tensors are copies."""

    def __init__(self) -> None:
        super().__init__("cpu")

    def copy(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        return {name: tensor.clone() for name, tensor in tensors.items()}, None


STEPS = Schema((
    Column("obs", "f4"), Column("reward", "f4"), Column("terminated", "?"), Column("truncated", "?"),
    Column("task", "category"),
))  # fmt: skip


def sequences(store: Store) -> conduit.Table:
    """Two steps a sequence of five: the rest is padded."""
    table = store.create_table("t", STEPS, 64, window=windows.Sequence(5), sampler=samplers.Uniform())
    with table.writer() as writer:
        for at in range(8):
            step: dict[str, Any] = {"obs": at, "reward": 0.0, "terminated": at % 2 == 1, "truncated": False}
            writer.append(**step, task=f"task {at % 2}")
            if step["terminated"]:
                writer.end(np.float32(-1))
    return table


def test_places_behind_the_end_have_no_category() -> None:
    with fresh_store() as store:
        batch = sequences(store).sample(16)
        task = batch.decode("task")
        for row, mask in enumerate(batch["mask"]):
            known = [f"task {int(obs) % 2}" for obs in batch["obs"][row]]
            assert task[row].tolist() == [word if there else None for word, there in zip(known, mask, strict=True)]
        assert not batch["mask"].all()
        arrow = batch.to_arrow()
        arrow.validate(full=True)
        assert arrow["task"].to_pylist() == task.tolist()
        assert arrow["obs"].null_count == 0


def test_batches_on_a_device_say_what_is_null_and_have_strings() -> None:
    pytest.importorskip("torch")
    with fresh_store() as store:
        table = sequences(store)
        with table.loader(8, device=Copying(), stream=3) as loader:
            there = next(loader)
            same = table.rows(there.keys)
            assert there.decode("task").tolist() == same.decode("task").tolist()
            assert ["task"] not in there
            assert there.valid == {}
            with pytest.raises(ConfigError, match="no categories"):
                there.decode("obs")
            with pytest.raises(UnknownColumn):
                there.decode("nothing")
        kinds = Schema((Column("goal", "f4", nullable=True), Column("word", "category", nullable=True)))
        rows = store.create_table("rows", kinds, 8)
        rows.extend({"goal": [None, 1.0], "word": ["x", None]})
        with rows.loader(8, device=Copying(), stream=3) as loader:
            there = next(loader)
            same = rows.rows(there.keys)
            for name in ("goal", "word"):
                assert there.valid[name].tolist() == same.valid[name].tolist()
            assert there.decode("word").tolist() == same.decode("word").tolist()
