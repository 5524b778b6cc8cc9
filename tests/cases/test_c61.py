"""C61: a null row in a sliced nested column shifted every later row. Columns hold no nulls: refused, with the row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from conduit import Column, DtypeMismatch, Schema
from tests.store_support import fresh_store, schema

ROWS = [[0, 0], [1, 2], [3, 4], None, [7, 8]]
KINDS = {
    "fixed": pa.list_(pa.int32(), 2),
    "list": pa.list_(pa.int32()),
    "large": pa.large_list(pa.int32()),
    "view": pa.list_view(pa.int32()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_null_row_is_named_and_the_others_go_in(kind: str, chunked: bool) -> None:
    of = schema(x=("i4", (2,))) if kind == "fixed" else Schema((Column("x", "int32", (None,), mean_length=2),))
    array = pa.array(ROWS, KINDS[kind]).slice(1, 3)
    column = pa.chunked_array([array.slice(0, 1), array.slice(1)]) if chunked else array
    with fresh_store() as store:
        table = store.create_table("t", of, 10)
        with pytest.raises(DtypeMismatch, match="row 2 is "):
            table.extend(pa.table({"x": column}))
        assert len(table) == 0
        table.extend(pa.table({"x": column.slice(0, 2)}))
        assert sorted(row.tolist() for row in table.rows(table.blocks()[0].keys)["x"]) == [[1, 2], [3, 4]]
        with pytest.raises(DtypeMismatch, match="row 0 is "):
            table.extend(pa.table({"x": pa.array([None, None], KINDS[kind])}))
        assert len(table) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_null_element_is_named_by_its_row(kind: str) -> None:
    of = schema(x=("i4", (2,))) if kind == "fixed" else Schema((Column("x", "int32", (None,), mean_length=2),))
    array = pa.array([[0, 0], [1, 2], [3, None]], KINDS[kind]).slice(1)
    with fresh_store() as store:
        table = store.create_table("t", of, 10)
        with pytest.raises(DtypeMismatch, match="row 1 is "):
            table.extend(pa.table({"x": array}))
        assert len(table) == 0
