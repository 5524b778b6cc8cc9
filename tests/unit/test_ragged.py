"""`Ragged`: rows that vary in length, by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conduit import Column, ConfigError, DtypeMismatch, Ragged, Schema, ShapeMismatch, ValueOutOfRange
from tests.store_support import fresh_store

ROWS = [[0, 1, 2], [], [3], [4, 5]]


def packed(rows: Any = ROWS, dtype: str = "i4") -> Ragged:
    return Ragged.from_rows([np.array(row, dtype) for row in rows])


def test_rows_are_views_of_one_array() -> None:
    ragged = packed()
    assert len(ragged) == 4
    assert [list(row) for row in ragged] == ROWS
    assert list(ragged[-1]) == [4, 5]
    assert ragged.lengths.tolist() == [3, 0, 1, 2]
    assert ragged[0].base is not None
    assert ragged[0].dtype == np.int32
    with pytest.raises(IndexError):
        ragged[4]


def test_padded_rows_come_with_a_mask() -> None:
    array, mask = packed().padded(-1)
    assert array.tolist() == [[0, 1, 2], [-1, -1, -1], [3, -1, -1], [4, 5, -1]]
    assert mask.tolist() == [[True] * 3, [False] * 3, [True, False, False], [True, True, False]]
    array, mask = packed().padded(length=5)
    assert array.shape == mask.shape == (4, 5)
    assert array.sum() == 15
    with pytest.raises(ShapeMismatch, match="row 0 has 3 elements, length is 2"):
        packed().padded(length=2)
    again = Ragged.from_padded(*[packed().padded(-1)[0], [3, 0, 1, 2]])
    assert [list(row) for row in again] == ROWS


def test_padded_rows_keep_the_shape_of_their_elements() -> None:
    ragged = Ragged(np.arange(24, dtype=np.uint8).reshape(4, 2, 3), [0, 1, 4])
    array, mask = ragged.padded()
    assert array.shape == (2, 3, 2, 3)
    assert mask.sum() == 4
    np.testing.assert_array_equal(array[1], ragged[1])


def test_rows_without_any_element() -> None:
    empty = Ragged(np.empty((0, 3), np.float32), [0, 0, 0])
    array, mask = empty.padded()
    assert array.shape == (2, 0, 3)
    assert mask.shape == (2, 0)
    assert len(Ragged(np.empty(0, np.int32), [0])) == 0


def test_a_part_of_longer_values() -> None:
    """Offsets need not begin at 0, as in a slice of an Arrow array."""
    part = Ragged(np.arange(10), [2, 5, 5, 9])
    assert [row.tolist() for row in part] == [[2, 3, 4], [], [5, 6, 7, 8]]
    assert part.padded()[0].tolist() == [[2, 3, 4, 0], [0] * 4, [5, 6, 7, 8]]
    for chosen in ([2, 0], np.array([2, 0]), slice(None, None, -2)):
        assert [row.tolist() for row in part[chosen]] == [[5, 6, 7, 8], [2, 3, 4]]
    assert [row.tolist() for row in part[np.array([False, False, True])]] == [[5, 6, 7, 8]]
    assert len(part[1:1]) == 0


@pytest.mark.parametrize("layout", ["packed", "padded", "jagged"])
def test_torch_layouts(layout: str) -> None:
    torch = pytest.importorskip("torch")
    made = packed().to_torch(layout)
    if layout == "packed":
        assert made[0].tolist() == [0, 1, 2, 3, 4, 5]
        assert made[1].tolist() == [0, 3, 3, 4, 6]
    elif layout == "padded":
        assert made[0].shape == (4, 3)
        assert made[1].sum() == 6
        assert made[1].dtype == torch.bool
    else:
        assert made.layout == torch.jagged
        assert [row.tolist() for row in made.unbind()] == ROWS


def test_what_is_no_ragged() -> None:
    with pytest.raises(ShapeMismatch, match="ascend"):
        Ragged(np.arange(3), [0, 2, 1])
    with pytest.raises(ShapeMismatch, match="4 of 3 elements"):
        Ragged(np.arange(3), [0, 4])
    with pytest.raises(DtypeMismatch, match="float64"):
        Ragged(np.arange(3), [0.0, 3.0])
    with pytest.raises(ShapeMismatch):
        Ragged.from_padded(np.zeros((2, 3)), [1, 4])
    with pytest.raises(ShapeMismatch):
        Ragged.from_rows([])
    with pytest.raises(DtypeMismatch):
        Ragged.from_rows([np.zeros(1, np.float32), np.zeros(1, np.float64)])
    with pytest.raises(ConfigError, match="layout"):
        packed().to_torch("dense")


@pytest.mark.parametrize("offsets", [[0, 3, 5], [0, 2, 2, 5]])
def test_bytes_that_are_no_text(offsets: list[int]) -> None:
    """Also a character that two rows share."""
    given = Ragged(np.frombuffer("a\u00e9\u00e9".encode(), np.uint8), offsets, text="string")
    whole = offsets == [0, 3, 5]
    texts = Schema((Column("text", "string", mean_length=4),))
    with fresh_store() as store:
        table = store.create_table("t", texts, 10)
        if whole:
            table.extend({"text": given})
            assert list(table.rows(table.blocks()[0].keys)["text"]) == ["a\u00e9", "\u00e9"]
            bad = Ragged(np.array([97, 0xFF], np.uint8), [0, 1, 2], text="string")
            with pytest.raises(ValueOutOfRange, match="row 1 is no valid text"):
                table.extend({"text": bad})
        else:
            with pytest.raises(ValueOutOfRange, match="row 0 is no valid text"):
                table.extend({"text": given})


def test_text_of_what_is_none() -> None:
    for values, text in ((np.zeros(2, np.int64), "string"), (np.zeros(2, np.uint8), "foo")):
        with pytest.raises(DtypeMismatch, match="give 'string' or 'binary'"):
            Ragged(values, [0, 2], text=text)
    with pytest.raises(ConfigError, match="fill is -1"):
        Ragged(np.zeros(3, np.uint8), [0, 1, 3]).padded(fill=-1)


def test_jagged_tensors_of_a_part() -> None:
    pytest.importorskip("torch")
    part = Ragged(np.arange(10), [3, 5, 9]).to_torch("jagged")
    assert [row.tolist() for row in part.unbind()] == [[3, 4], [5, 6, 7, 8]]
    turned = Ragged(np.arange(4)[::-1], [0, 1, 4]).to_torch("packed")
    assert turned[0].tolist() == [3, 2, 1, 0]


def test_rows_of_several_steps() -> None:
    rows = Ragged._made(np.arange(6), np.array([0, 1, 1, 3, 6, 6, 6]), None, (2, 3))
    assert len(rows) == 2
    assert rows.lengths.tolist() == [[1, 0, 2], [3, 0, 0]]
    assert [[step.tolist() for step in row] for row in rows] == [[[0], [], [1, 2]], [[3, 4, 5], [], []]]
    assert rows[1, 0].tolist() == rows[-1][0].tolist() == [3, 4, 5]
    assert rows[0].shape == (3,)
    assert [step.tolist() for step in rows[:, 2]] == [[1, 2], []]
    assert rows[[1, 1, 0]].lengths.tolist() == [[3, 0, 0], [3, 0, 0], [1, 0, 2]]
    mask = np.array([[True, False, True], [True, False, False]])
    assert [step.tolist() for step in rows[mask]] == [[0], [1, 2], [3, 4, 5]]
    array, there = rows.padded(-1)
    assert array.tolist() == [[[0, -1, -1], [-1, -1, -1], [1, 2, -1]], [[3, 4, 5], [-1, -1, -1], [-1, -1, -1]]]
    assert (there == (array != -1)).all()
    assert repr(rows) == "<Ragged of 2 x 3 rows, int64 (None,), 6 elements>"
    with pytest.raises(ShapeMismatch, match="row 3 has 3 elements, length is 2"):
        rows.padded(length=2)
    for wrong in (2, (0, 3)):
        with pytest.raises(IndexError):
            rows[wrong]
