"""C45: closing a store while arrays pointed into it failed, leaked or crashed. Policy: such arrays stay valid."""

from __future__ import annotations

import gc

import numpy as np

from conduit import Store
from tests.shm_support import holders_of, private_runtime_dir
from tests.store_support import plain_table


def test_an_array_outlives_everything_and_takes_the_memory_with_it() -> None:
    with private_runtime_dir():
        store = Store.create("c45", "16MiB")
        table = plain_table(store, 1000)
        table.extend({"x": np.arange(1000)})
        arrays = [np.asarray(block.to_arrow().column("x")) for block in table.blocks()]
        store.close()
        del table, store
        gc.collect()
        assert sum(int(array.sum()) for array in arrays) == 499_500
        assert holders_of("conduit-c45-data") > 0
        del arrays
        gc.collect()
        assert holders_of("conduit-c45-") == 0


def test_a_sampled_batch_outlives_the_store() -> None:
    with private_runtime_dir():
        store = Store.create("c45", "16MiB")
        table = plain_table(store, 1000)
        table.extend({"x": np.arange(1000)})
        batch = table.sample(100)
        before = batch["x"].copy()
        store.close()
        del table, store
        gc.collect()
        assert holders_of("conduit-c45-") == 0
        np.testing.assert_array_equal(batch["x"], before)
        assert len(batch.keys) == 100
