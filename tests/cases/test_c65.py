"""C65: strides were ignored, so that transposed and broadcast input was stored in the wrong order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.store_support import fresh_store, scalar_writer, schema

MATRIX = np.array([[0, 1, 2], [3, 4, 5]])
CASES = {
    "transposed": (MATRIX.T, [[0, 3], [1, 4], [2, 5]]),
    "broadcast": (np.broadcast_to(np.arange(3), (5, 3)), [[0, 1, 2]] * 5),
    "reversed": (np.arange(5)[::-1], [4, 3, 2, 1, 0]),
    "every other": (np.arange(10)[::2], [0, 2, 4, 6, 8]),
    "fortran": (np.asfortranarray(MATRIX), MATRIX.tolist()),
    "big endian": (np.array([1, -2, 2**31 - 1], ">i4"), [1, -2, 2**31 - 1]),
    "read-only": (np.frombuffer(b"\1\2\3", np.uint8), [1, 2, 3]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["extend", "append"])
def test_rows_come_back_in_their_logical_order(case: str, way: str) -> None:
    values: npt.NDArray[Any] = CASES[case][0]
    with fresh_store() as store:
        native = values.dtype.newbyteorder("=")
        table = store.create_table("t", schema(x=(native.str, values.shape[1:]), n="i8"), 10)
        if way == "extend":
            table.extend({"x": values, "n": np.arange(len(values))})
        else:
            with scalar_writer(table) as writer:
                for n, row in enumerate(values):
                    writer.append(x=row, n=n)
        batch = table.sample(64)
        assert set(batch["n"]) == set(range(len(values)))
        np.testing.assert_array_equal(batch["x"], np.asarray(CASES[case][1])[batch["n"]])
        assert batch["x"].dtype == native
