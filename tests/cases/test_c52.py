"""C52: an attaching process took the number of rows from the size of the segment."""

from __future__ import annotations

import numpy as np

from tests import store_actions
from tests.store_support import fresh_store, schema
from tests.worker import worker


def test_fifteen_bytes_are_three_rows_in_every_process() -> None:
    with fresh_store() as store, worker() as other:
        table = store.create_table("t", schema(x=("u1", (5,))), 3)
        values = np.arange(15, dtype=np.uint8).reshape(3, 5)
        table.extend({"x": values})
        seen = other.call(store_actions.five_bytes, store.name)
        assert seen == {"rows": 3, "max_size": 3, "row_bytes": 5, "bytes": values.tobytes(), "row_3": "StaleKey"}
        assert seen == store_actions.five_bytes(store.name)
        store_actions.drop_all()
