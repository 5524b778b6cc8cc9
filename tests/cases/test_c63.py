"""C63: data of no length crashed those who encode and decode it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from conduit import Column, Ragged, Schema, samplers
from tests.store_support import fresh_store, prioritized, schema
from tests.worker import worker

OF = Schema((Column("obs", "float32", (3,)), Column("tokens", "int32", (None,), mean_length=4)))
NOTHING = {"obs": np.zeros((0, 3), np.float32), "tokens": []}


def appended_and_counted(name: str) -> tuple[int, int]:
    """In a process that attaches: append no rows; what that returns, and how many there are."""
    from conduit import Store

    with Store.attach(name) as store:
        return store["t"].extend(NOTHING), len(store["t"])


def test_no_rows_change_nothing() -> None:
    with fresh_store() as store, worker() as other:
        table = store.create_table("t", OF, 10, sampler=samplers.Fifo())
        empties = [
            NOTHING, {**NOTHING, "tokens": Ragged(np.empty(0, np.int32), [0])}, OF.to_arrow().empty_table(),
            pa.table({"obs": pa.array([], pa.list_(pa.float32(), 3)), "tokens": pa.array([], pa.list_(pa.int32()))}),
        ]  # fmt: skip
        for empty in empties:
            assert table.extend(empty) == 0
        table.extend({"obs": np.ones((1, 3), np.float32), "tokens": [[1, 2]]})
        for empty in empties:
            assert table.extend(empty) == 0
        assert other.call(appended_and_counted, store.name) == (0, 1)
        assert len(table) == 1
        info = table.info()
        assert (info.appended, info.evicted) == (1, 0)


def test_an_empty_batch_has_shape_and_dtype() -> None:
    with fresh_store() as store:
        table = store.create_table("t", OF, 10)
        empty = table.rows(np.array([], np.uint64))
        assert (empty["obs"].shape, empty["obs"].dtype) == ((0, 3), np.float32)
        assert (len(empty["tokens"]), empty["tokens"].values.dtype) == (0, np.int32)
        assert empty.to_arrow().num_rows == 0
        torch = pytest.importorskip("torch")
        tensors = empty.torch()
        assert tensors["obs"].shape == (0, 3)
        assert tensors["tokens.offsets"].tolist() == [0]
        assert tensors["tokens"].dtype == torch.int32
        assert empty.torch(ragged="padded")["tokens"].shape == (0, 0)
        assert table.extend(empty.to_arrow()) == 0


def test_priorities_of_nothing() -> None:
    with fresh_store() as store:
        table = store.create_table("t", schema(x="f4"), 10, sampler=prioritized())
        table.extend({"x": [1.0]})
        result = table.update_priorities(np.array([], np.uint64), np.array([], np.float32))
        assert (result.applied, result.stale) == (0, 0)


def test_no_chunks_of_lists_of_tensors() -> None:
    """What an empty table gives as Arrow goes into a table again, whatever its columns hold."""
    of = Schema((
        Column("frames", "uint8", (None, 2, 2), mean_length=4), Column("s", "string", mean_length=4),
        Column("c", "category"), Column("goal", "float32", (2,), nullable=True),
    ))  # fmt: skip
    with fresh_store() as store:
        table = store.create_table("t", of, 10)
        assert table.extend(table.to_arrow().read_all()) == 0
        table.extend({"frames": [np.ones((1, 2, 2), np.uint8)], "s": ["a"], "c": ["b"], "goal": [None]})
        assert table.extend(table.to_arrow().read_all()) == 1


def test_rows_without_an_element() -> None:
    with fresh_store() as store:
        table = store.create_table("t", OF, 10, sampler=samplers.Fifo())
        table.extend({"obs": np.zeros((3, 3), np.float32), "tokens": [[], [], []]})
        batch = table.sample(3)
        assert batch["tokens"].lengths.tolist() == [0, 0, 0]
        assert batch.to_arrow().column("tokens").to_pylist() == [[], [], []]
        assert table.blocks()[0].to_arrow().column("tokens").to_pylist() == [[], [], []]
        again = store.create_table("again", OF, 10, sampler=samplers.Fifo())
        again.extend(batch.to_arrow())
        assert again.sample(3)["tokens"].lengths.tolist() == [0, 0, 0]


def test_a_queue_hands_out_nothing() -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", OF, 10)
        assert queue.extend(NOTHING) == 0
        empty = queue._consumers["default"].nothing() if queue._consumers else None
        queue.extend({"obs": np.zeros((1, 3), np.float32), "tokens": [[7]]})
        assert queue.sample(1, partial=True)["tokens"][0].tolist() == [7]
        empty = queue._consumers["default"].nothing()
        assert (empty["obs"].shape, len(empty["tokens"])) == ((0, 3), 0)
