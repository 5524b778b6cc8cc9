"""Zero-copy views of blocks: what they show, how long they hold, and whom a writer blames for the space."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import AppendTimeout, BlockView, CapacityError, StaleKey, Store, Table
from conduit_store.arrow import to_numpy
from tests import store_actions
from tests.shm_support import holders_of, private_runtime_dir
from tests.store_support import episode, episodes, fresh_store, keys_of, plain_table, scalar_writer, schema
from tests.worker import forked, worker

BLOCK = 8


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


def test_blocks_are_the_live_rows_in_order() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4 * BLOCK)
        table.extend({"x": np.arange(30)})
        table.extend({"x": np.arange(30, 35)})
        views = table.blocks()
        assert [len(view) for view in views] == [5, 8, 8, 8, 3]
        assert np.concatenate([view.to_arrow()["x"].to_numpy() for view in views]).tolist() == list(range(3, 35))
        first = views[0]
        assert repr(first) == f"<BlockView {first.index}: rows 3 to 8>"
        assert (first.start, first.stop) == (3, 8)
        keys = np.concatenate([view.keys for view in views])
        assert keys.dtype == np.uint64
        assert table.rows(keys)["x"].tolist() == list(range(3, 35))
        again = table.block(first.index)
        assert isinstance(again, BlockView)
        assert again.keys.tolist() == first.keys.tolist()


def test_a_view_is_the_shared_memory_itself() -> None:
    with fresh_store() as store, Store.attach(store.name) as other:
        table = plain_table(store, 4 * BLOCK)
        table.extend({"x": np.arange(3)})
        view, again = table.blocks()[0].to_arrow()["x"], table.blocks()[0].to_arrow()["x"]
        assert address(view) == address(again)
        assert address(view) % 64 == 0
        # Another map of the same bytes shows a write at once: neither is a copy.
        elsewhere = other["t"].blocks()[0].to_arrow()["x"].to_numpy()
        offset = address(view) - table.block(table.blocks()[0].index)._address + table._native.data_offset
        os.pwrite(store._data_fd, np.int64(99).tobytes(), offset + table.blocks()[0].index * 64)
        assert view.to_numpy()[0] == elsewhere[0] == 99


def test_every_kind_of_column_is_an_arrow_array() -> None:
    made = schema(image=("u1", (2, 3)), flag="?", at="M8[us]", half="f2")
    given: dict[str, Any] = {
        "image": np.arange(30, dtype=np.uint8).reshape(5, 2, 3), "flag": np.arange(5) % 2 == 1,
        "at": np.arange(5).astype("M8[us]"), "half": np.arange(5).astype(np.float16),
    }  # fmt: skip
    with fresh_store() as store:
        table = store.create_table("t", made, BLOCK)
        table.extend(given)
        batch = table.blocks()[0].to_arrow()
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema.equals(made.to_arrow())
        batch.validate(full=True)
        for name, values in given.items():
            np.testing.assert_array_equal(to_numpy(name, batch[name]), values)
            np.testing.assert_array_equal(to_numpy(name, batch.slice(2, 2)[name]), values[2:4])


def test_blocks_of_episodes_hold_final_observations_too() -> None:
    with fresh_store() as store:
        table = episodes(store, 100)
        with scalar_writer(table) as writer:
            episode(writer, [0, 1, 2], [1, 1, 1], "terminated", 3)
        batch = table.blocks()[0].to_arrow()
        assert batch["obs"].to_pylist() == [0, 1, 2, 3]
        assert len(table) == 3


def test_a_view_shows_the_moment_it_was_made() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4 * BLOCK)
        table.extend({"x": np.arange(3)})
        view = table.blocks()[0]
        table.extend({"x": np.arange(3, 6)})
        assert len(view) == 3
        assert view.to_arrow()["x"].to_pylist() == [0, 1, 2]
        assert len(table.blocks()[0]) == 6


@pytest.mark.parametrize("kept", ["view", "batch", "slice", "column", "numpy", "buffer"])
def test_any_part_of_a_view_holds_its_block(kept: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 4 * BLOCK, max_writers=1)
        table.extend({"x": np.arange(BLOCK)})
        (view,) = table.blocks()
        batch = view.to_arrow()
        held: Any = {
            "view": view, "batch": batch, "slice": batch.slice(2, 3), "column": batch["x"],
            "numpy": batch["x"].to_numpy()[1:], "buffer": batch["x"].buffers()[1],
        }[kept]  # fmt: skip
        index = view.index
        del view, batch
        gc.collect()
        assert table.info().blocks_pinned == 1
        for number in range(30):
            table.extend({"x": np.full(BLOCK, -number)})
        with pytest.raises(StaleKey):
            table.block(index)
        if kept == "view":
            assert held.to_arrow()["x"].to_pylist() == list(range(BLOCK))
        elif kept == "numpy":
            assert held.tolist() == list(range(1, BLOCK))
        del held
        gc.collect()
        assert table.info().blocks_pinned == 0
        table.verify()


def test_a_view_outlives_table_and_store() -> None:
    with private_runtime_dir():
        store = Store.create("view", "16MiB")
        table = plain_table(store, 1000)
        table.extend({"x": np.arange(1000)})
        views = table.blocks()
        store.close()
        del store, table
        gc.collect()
        arrays = [view.to_arrow()["x"].to_numpy() for view in views]
        del views
        gc.collect()
        assert np.concatenate(arrays).tolist() == list(range(1000))
        assert holders_of("conduit-view-data") > 0
        arrays.clear()
        gc.collect()
        assert holders_of("conduit-view-") == 0


def test_another_process_sees_the_same_rows_and_keys() -> None:
    with fresh_store() as store, worker() as other:
        table = plain_table(store, 100)
        table.extend({"x": np.arange(70)})
        assert other.call(store_actions.pin, store.name) == len(table.blocks())
        assert other.call(store_actions.look) == list(range(70))
        keys = keys_of(table)
        assert other.call(store_actions.value_of, store.name, int(keys[33])) == 33
        other.call(store_actions.unpin)
        other.call(store_actions.drop_all)


def crowd(table: Table, holder: int) -> None:
    """Fill the table until a writer finds no space, and see whom it names."""
    message = ""
    for _ in range(100):
        try:
            table.extend({"x": np.ones(BLOCK, int)}, timeout=0.05)
        except AppendTimeout as error:
            message = str(error)
            break
    for text in ("table 't' within 0.05 s", "pinned by zero-copy views", f"(pid {holder})", "Release views sooner"):
        assert text in message


def test_the_holder_of_views_is_named_whoever_it_is() -> None:
    with fresh_store() as store, worker() as other:
        table = plain_table(store, 4 * BLOCK, max_writers=1)
        table.extend({"x": np.zeros(4 * BLOCK, int)})
        other.call(store_actions.pin, store.name)
        crowd(table, other.pid)
        other.call(store_actions.unpin)
        table.extend({"x": np.zeros(4 * BLOCK, int)})
        views = table.blocks()
        crowd(table, os.getpid())
        views.clear()
        table.extend({"x": np.ones(4 * BLOCK, int)})
        table.verify()


def test_views_inherited_by_a_forked_child_belong_to_the_parent() -> None:
    with fresh_store() as store:
        table = plain_table(store, 4 * BLOCK, max_writers=1)
        table.extend({"x": np.arange(BLOCK)})
        views = table.blocks()

        def child() -> list[int]:
            seen: list[int] = views[0].to_arrow()["x"].to_pylist()
            views.clear()  # gives back nothing: the pin is the parent's
            gc.collect()
            return seen

        assert forked(child) == list(range(BLOCK))
        assert table.info().blocks_pinned == 1
        for _ in range(10):
            table.extend({"x": np.ones(BLOCK, int)})
        assert views[0].to_arrow()["x"].to_pylist() == list(range(BLOCK))


def test_the_largest_number_of_views() -> None:
    with fresh_store() as store:
        table = plain_table(store, BLOCK)
        table.extend({"x": np.arange(3)})
        index = table.blocks()[0].index
        views = [table.block(index) for _ in range(2048)]
        with pytest.raises(CapacityError, match="already holds 2048 zero-copy views of blocks: drop some"):
            table.block(index)
        views.pop()
        assert len(table.block(index)) == 3


@pytest.mark.parametrize("index", [5, 10_000, 2**32 - 1])
def test_blocks_without_live_rows(index: int) -> None:
    with fresh_store() as store:
        table = plain_table(store, BLOCK)
        table.extend({"x": np.arange(3)})
        with pytest.raises(StaleKey, match=f"block {index} of table 't' holds no live row"):
            table.block(index)
        assert table.info().blocks_pinned == 0
