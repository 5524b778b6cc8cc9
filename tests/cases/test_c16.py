"""C16: a batch larger than the table crashed or emptied it. Policy: CapacityError before anything is written."""

from __future__ import annotations

import numpy as np
import pytest

from conduit import CapacityError
from tests.store_support import column_of, fresh_store, plain_table, unchanged


@pytest.mark.parametrize("n", [5, 9, 10])
def test_more_rows_than_capacity_in_one_call(n: int) -> None:
    with fresh_store() as store:
        table = plain_table(store, 4)
        table.extend({"x": np.arange(2)})
        with unchanged(table), pytest.raises(CapacityError, match=f"{n} rows in one call, table 't' holds 4"):
            table.extend({"x": np.arange(n)})
        assert table.extend({"x": np.arange(10, 14)}) == 4
        assert column_of(table).tolist() == [10, 11, 12, 13]
