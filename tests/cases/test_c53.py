"""C53: writing into a sampled array changed the store. Policy: batches are private; zero-copy views are read-only."""

from __future__ import annotations

import numpy as np
import pytest

from tests import store_actions
from tests.store_support import contents, fresh_store, plain_table
from tests.worker import worker


def test_a_batch_is_private_to_its_receiver() -> None:
    with fresh_store() as store, worker() as other:
        table = plain_table(store, 10)
        table.extend({"x": np.arange(10)})
        before = contents(table)
        batch, again = table.sample(10), table.sample(10)
        key, value, second = int(batch.keys[0]), int(batch["x"][0]), again["x"].copy()
        batch["x"][0] = 99
        assert batch["x"][0] == 99
        batch.torch()["x"][1:] = 77
        assert batch["x"].tolist() == [99] + [77] * 9
        np.testing.assert_array_equal(again["x"], second)
        assert other.call(store_actions.value_of, store.name, key) == value
        assert contents(table) == before


def test_a_view_is_read_only() -> None:
    with fresh_store() as store:
        table = plain_table(store, 10)
        table.extend({"x": np.arange(10)})
        view = np.asarray(table.blocks()[0].to_arrow().column("x"))
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 99
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
