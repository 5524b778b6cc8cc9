"""C59: columns were silently stored as float32 or float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conduit import DtypeMismatch, ValueOutOfRange
from tests.store_support import fresh_store, scalar_writer, schema, unchanged

WIDE = schema(image=("u1", (84, 84, 4)), count="i8", value="f8", half="f2", flag="?", small="i1")
ROW: dict[str, Any] = {
    "image": np.arange(84 * 84 * 4, dtype=np.uint32).astype(np.uint8).reshape(84, 84, 4),
    "count": 2**40 + 1,
    "value": 0.1,
    "half": np.float16(65504),
    "flag": True,
    "small": -128,
}


def test_every_dtype_comes_back_bit_for_bit() -> None:
    with fresh_store() as store:
        table = store.create_table("t", WIDE, 8)
        with scalar_writer(table) as writer:
            writer.append(**ROW)
        table.extend({name: np.asarray(value, WIDE.column(name).dtype)[None] for name, value in ROW.items()})
        batch = table.sample(8)
        for column in WIDE:
            assert batch[column.name].dtype == column.dtype
            expected = np.asarray(ROW[column.name], column.dtype)
            assert all(row.tobytes() == expected.tobytes() for row in batch[column.name])
        assert batch["count"][0] == 1099511627777
        assert batch["image"].nbytes == 8 * 28_224
        assert WIDE.column("image").row_bytes == 28_224


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("small", 300, ValueOutOfRange),
        ("small", np.int64(1), DtypeMismatch),
        ("count", 2**63, ValueOutOfRange),
        ("count", 1.0, DtypeMismatch),
        ("count", np.uint64(1), DtypeMismatch),
        ("half", 1e6, ValueOutOfRange),
        ("half", np.float32(1), DtypeMismatch),
        ("value", np.int64(1), DtypeMismatch),
        ("flag", 1, DtypeMismatch),
        ("image", np.zeros((84, 84, 4), np.float32), DtypeMismatch),
        ("image", np.zeros((84, 84, 4), np.int64), DtypeMismatch),
    ],
)
def test_what_would_lose_information_is_refused(column: str, value: object, error: type[Exception]) -> None:
    with fresh_store() as store:
        table = store.create_table("t", WIDE, 8)
        with scalar_writer(table) as writer:
            writer.append(**ROW)
            with unchanged(table), pytest.raises(error, match=f"column '{column}'"):
                writer.append(**{**ROW, column: value})
