"""Tables whose rows vary in length: in, out, and what is refused."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conduit import (
    CapacityError,
    Column,
    ConfigError,
    DtypeMismatch,
    MissingColumn,
    Ragged,
    Schema,
    SchemaError,
    ShapeMismatch,
    Table,
    UnknownColumn,
    ValueOutOfRange,
    removers,
    samplers,
    windows,
)
from tests.store_support import fresh_store, scalar_writer
from tests.varying import SCHEMA, columns, faults, row

TOKENS = Schema((Column("x", "int64"), Column("tokens", "int32", (None,), mean_length=8)))


def stored(table: Table) -> list[int]:
    """Serials of the live rows, in eviction order, from the zero-copy blocks."""
    serials: list[int] = []
    for view in table.blocks():
        batch = view.to_arrow()
        batch.validate(full=True)
        found = {name: batch.column(name).to_pylist() for name in SCHEMA.names}
        for name in ("tokens", "frames"):
            dtype, inner = SCHEMA.column(name).dtype, SCHEMA.column(name).shape[1:]
            found[name] = [np.array(value, dtype).reshape(-1, *inner) for value in found[name]]
        assert faults(found) == []
        serials += found["serial"]
    return serials


def test_rows_come_back_as_they_went_in() -> None:
    chance = np.random.default_rng(1)
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100, max_writers=1)
        with scalar_writer(table) as writer:
            for serial in range(150):
                writer.append(**row(serial, int(chance.integers(0, 40))))
        table.extend(columns(range(150, 250), chance.integers(0, 40, 100)))
        table.verify()
        assert stored(table)[-50:] == list(range(200, 250))
        batch = table.sample(64)
        assert faults(batch) == []
        again = table.rows(batch.keys)
        assert faults(again) == []
        assert again["serial"].tolist() == batch["serial"].tolist()
        assert faults(table.loader(16).next()) == []


def test_memory_at_capacity_and_the_rows_that_fit() -> None:
    chance = np.random.default_rng(2)
    schema = Schema((Column("x", "float32"), Column("tokens", "int32", (None,), mean_length=64)))
    with fresh_store("64MiB") as store:
        table = store.create_table("t", schema, 20_000, max_writers=1)
        for _ in range(3):
            lengths = chance.integers(0, 129, 20_000)
            values = np.zeros(int(lengths.sum()), np.int32)
            tokens = Ragged(values, np.append(0, np.cumsum(lengths)))
            table.extend({"x": np.zeros(20_000, np.float32), "tokens": tokens})
        assert len(table) > 19_900
        assert table._native.data_bytes < 1.05 * 20_000 * (4 + 8 + 64 * 4)


def test_blocks_seal_when_one_column_is_full_and_the_next_are_divided_anew() -> None:
    schema = Schema((Column("a", "uint8", (None,), mean_length=10), Column("b", "uint8", (None,), mean_length=10)))
    with fresh_store() as store:
        table = store.create_table("t", schema, 1_000, max_writers=1)
        # as many bytes as were said, and elsewhere
        a, b = [np.zeros(19, np.uint8)] * 1_000, [np.zeros(1, np.uint8)] * 1_000
        table.extend({"a": a, "b": b})
        table.extend({"a": a, "b": b})
        assert len(table) > 970


@pytest.mark.parametrize("length", [3_000, 9_000])
def test_a_row_that_no_block_could_hold(length: int) -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 500, max_writers=2)
        assert table.spec.block_layout().block_bytes < length * 4
        table.extend(columns(range(500), [20] * 500))
        with scalar_writer(table) as writer:
            writer.append(**row(500, length))
            writer.append(**row(501, 3))
        table.extend(columns([502, 503, 504], [5, length, 6]))
        table.verify()
        serials = stored(table)
        assert serials[-5:] == [500, 501, 502, 503, 504] or set(serials[-5:]) == {500, 501, 502, 503, 504}
        keys = np.concatenate([view.keys for view in table.blocks()])
        assert faults(table.rows(keys)) == []
        for serial in range(505, 1_500, 50):
            table.extend(columns(range(serial, serial + 50), [20] * 50))
        table.verify()
        assert len(stored(table)) > 450  # the long rows have gone, and their memory is of use again
        assert table.info().blocks_open < table.spec.block_layout().blocks


def test_a_row_that_the_table_could_never_hold() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 50, max_writers=1)
        table.extend(columns([1, 2], [3, 4]))
        with pytest.raises(CapacityError, match=r"row 1 of 2 has 4,?000,?\d+ bytes .* could hold [\d,]+ if"):
            table.extend(columns([3, 4], [5, 1_000_000]))
        with scalar_writer(table) as writer, pytest.raises(CapacityError):
            writer.append(**row(5, 1_000_000))
        assert stored(table) == [1, 2]


def test_delivery_does_not_depend_on_the_lengths() -> None:
    with fresh_store() as store:
        table = store.create_table("t", TOKENS, 10, sampler=samplers.Fifo())
        table.extend({"tokens": [np.arange(3, dtype=np.int32)], "x": [0]})
        one = table.sample(1)["tokens"]
        assert isinstance(one, Ragged)
        assert len(one) == 1
        assert one.lengths.tolist() == [3]
        table.extend({"tokens": [np.arange(3, dtype=np.int32)] * 3, "x": [1, 2, 3]})
        same = table.sample(4)["tokens"]
        assert isinstance(same, Ragged)
        assert same.lengths.tolist() == [3] * 4


def test_torch_layouts_are_the_caller_s_choice() -> None:
    torch = pytest.importorskip("torch")
    with fresh_store() as store:
        table = store.create_table("t", TOKENS, 10, sampler=samplers.Fifo())
        table.extend({"tokens": [[1, 2, 3], [], [4]], "x": [0, 1, 2]})
        batch = table.sample(3)
        tensors = batch.torch()
        assert tensors["tokens"].tolist() == [1, 2, 3, 4]
        assert tensors["tokens.offsets"].tolist() == [0, 3, 3, 4]
        assert tensors["x"].tolist() == [0, 1, 2]
        assert "weights" in tensors
        padded = batch.torch(ragged="padded")
        assert padded["tokens"].tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
        assert padded["tokens.mask"].sum() == 4
        jagged = batch.torch(ragged="jagged", without={"x"})
        assert jagged["tokens"].layout == torch.jagged
        assert "x" not in jagged
        assert [row.tolist() for row in jagged["tokens"].unbind()] == [[1, 2, 3], [], [4]]
        with pytest.raises(ConfigError, match="layout"):
            batch.torch(ragged="dense")


def forms() -> dict[str, Any]:
    rows = [[1, 2, 3], [], [4]]
    arrays = [np.array(r, np.int32) for r in rows]
    return {
        "lists": rows,
        "arrays": arrays,
        "narrower arrays": [a.astype(np.int16) for a in arrays],
        "ragged": Ragged.from_rows(arrays),
        "a part": Ragged(np.array([9, 1, 2, 3, 4, 9], np.int32), [1, 4, 4, 5]),
        "padded": Ragged.from_padded(np.array([[1, 2, 3], [9, 9, 9], [4, 9, 9]], np.int32), [3, 0, 1]),
        "strided": [np.array([1, 0, 2, 0, 3], np.int32)[::2], *arrays[1:]],
        "big endian": [a.astype(">i4") for a in arrays],
    }


@pytest.mark.parametrize("form", forms())
def test_forms_that_extend_takes(form: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", TOKENS, 10, sampler=samplers.Fifo())
        table.extend({"tokens": forms()[form], "x": [0, 1, 2]})
        found = table.sample(3)["tokens"]
        assert [row.tolist() for row in found] == [[1, 2, 3], [], [4]]
        assert found.values.dtype == np.int32


def test_torch_and_equal_rows_as_input() -> None:
    torch = pytest.importorskip("torch")
    rows = [torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([4], dtype=torch.int32)]
    given = {
        "tensors": rows,
        "strided": torch.nested.nested_tensor(rows),
        "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
    }
    with fresh_store() as store:
        for name, value in given.items():
            table = store.create_table(name, TOKENS, 10, sampler=samplers.Fifo())
            table.extend({"tokens": value, "x": [0, 1]})
            assert [row.tolist() for row in table.sample(2)["tokens"]] == [[1, 2, 3], [4]], name
        equal = np.arange(6, dtype=np.int32).reshape(2, 3)
        for name, value in {"array": equal, "tensor": torch.from_numpy(equal)}.items():
            table = store.create_table(name, TOKENS, 10, sampler=samplers.Fifo())
            table.extend({"tokens": value, "x": [2, 3]})
            assert [row.tolist() for row in table.sample(2)["tokens"]] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [
        ([[1], None], DtypeMismatch, "row 1"),
        ([[1], [2**40]], ValueOutOfRange, "row 1 of 2"),
        ([np.zeros(1, np.int32), np.zeros(1, np.int64)], DtypeMismatch, "row 1 of 2.*int64"),
        ([np.zeros(1, np.int32), np.zeros((1, 1), np.int32)], ShapeMismatch, "row 1 of 2"),
        ([[1]], ShapeMismatch, "1 rows, others have 2"),
        (np.zeros(2, np.int32), ShapeMismatch, "vary in length"),
        (["a", "b"], DtypeMismatch, "row 0 of 2"),
        (Ragged(np.frombuffer(b"ab", np.uint8), [0, 1, 2], text="string"), DtypeMismatch, "string"),
    ],
)
def test_refused_rows_leave_nothing(value: Any, error: type[Exception], match: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", TOKENS, 10)
        with pytest.raises(error, match=match):
            table.extend({"x": np.arange(2), "tokens": value})
        with scalar_writer(table) as writer:
            with pytest.raises((DtypeMismatch, ShapeMismatch, ValueOutOfRange)):
                writer.append(x=1, tokens=np.zeros((2, 2), np.int32))
            with pytest.raises(MissingColumn):
                writer.append(x=1)
        assert len(table) == 0


def test_text_is_refused_where_it_is_none() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 10)
        good = row(1, 3)
        for name, value in (("text", b"x"), ("raw", "x"), ("text", None), ("text", "\ud800"), ("text", 7)):
            with scalar_writer(table) as writer, pytest.raises((DtypeMismatch, ValueOutOfRange), match=name):
                writer.append(**{**good, name: value})
            with pytest.raises((DtypeMismatch, ValueOutOfRange), match=name):
                table.extend({**{n: [v] for n, v in good.items()}, name: [value]})
        assert len(table) == 0


def test_columns_say_what_they_are() -> None:
    column = Column("tokens", "int32", (None, 2), mean_length=5)
    assert column.ragged
    assert column.shape == (None, 2)
    assert column.element_bytes == 8
    assert column.mean_bytes == 40
    assert column == Column("tokens", "int32", (None, 2))
    assert not Column("x", "f4", (2,)).ragged
    text = Column("prompt", "string")
    assert (text.text, text.dtype, text.shape) == ("string", np.uint8, (None,))
    assert text != Column("prompt", "binary")
    assert replace(text, name="x") == Column("x", "string")
    with pytest.raises(DtypeMismatch, match="text="):
        Column("x", "float32", (None,), text="string")
    for made in (column, text):
        again = pickle.loads(pickle.dumps(made))
        assert again == made
        assert again.mean_length == made.mean_length
        assert again.dtype is made.dtype
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    assert Schema.from_json(SCHEMA.to_json()).column("tokens").mean_length == 20
    for shape in ((2, None), (None, None), (None, 0)):
        with pytest.raises(ShapeMismatch):
            Column("x", "f4", shape)
    with pytest.raises(ShapeMismatch, match="one value"):
        Column("x", "string", (3,))
    for length, of in ((0, (None,)), ("a", (None,)), (3, (2,))):
        with pytest.raises(SchemaError, match="mean_length"):
            Column("x", "f4", of, mean_length=length)  # type: ignore[arg-type]


def test_tables_that_cannot_be() -> None:
    steps = Schema(
        (
            Column("obs", "int32", (None,), mean_length=3), Column("reward", "f4"), Column("terminated", "?"),
            Column("truncated", "?"),
        )
    )  # fmt: skip
    with fresh_store() as store:
        with pytest.raises(ConfigError, match="mean_length"):
            store.create_table("t", Schema((Column("tokens", "int32", (None,)),)), 10)
        goals = windows.Hindsight("numpy:maximum", goal="obs", achieved="obs")
        with pytest.raises(ConfigError, match="its goals vary in length"):
            store.create_table("t", steps, 10, window=goals)
        with pytest.raises(ConfigError, match="column tokens has places"):
            store.create_table("t", Schema((Column("tokens", "int32", (None,), mean_length=3, places=2),)), 10)
        with pytest.raises(ConfigError, match=r"removers\.Fifo"):
            store.create_table("t", TOKENS, 10, remover=removers.Lifo())
        store.create_table("t", steps, 10, window=windows.Row())


def test_times_vary_in_length_too() -> None:
    pa = pytest.importorskip("pyarrow")
    of = Schema((Column("at", "datetime64[us]", (None,), mean_length=4),))
    times = [np.array([1, 2, 3], "datetime64[us]"), np.array([], "datetime64[us]"), np.array([4], "datetime64[us]")]
    lists = pa.array([t.tolist() for t in times], pa.list_(pa.timestamp("us")))
    forms = {
        "list": times, "ragged": Ragged.from_rows(times), "arrow": lists,
        "chunks": pa.chunked_array([lists.slice(0, 1), lists.slice(1)]),
    }  # fmt: skip
    with fresh_store() as store:
        for name, form in forms.items():
            table = store.create_table(name, of, 10, sampler=samplers.Fifo())
            table.extend({"at": form})
            with scalar_writer(table) as writer:
                writer.append(at=times[0])
            found = table.sample(4)["at"]
            assert found.values.dtype == np.dtype("datetime64[us]"), name
            assert [row.tolist() for row in found] == [t.tolist() for t in [*times, times[0]]], name
            assert table.sample(4).torch()["at"].tolist() == [1, 2, 3, 4, 1, 2, 3], name


def test_dictionaries_are_decoded() -> None:
    pa = pytest.importorskip("pyarrow")
    words = pa.array(["a", "bb", "a", "é"]).dictionary_encode()
    numbers = pa.array([7, 8, 7, 7]).dictionary_encode()
    given = pa.table({"word": words, "number": numbers}).slice(1)
    of = Schema.from_arrow(given.schema, mean_lengths={"word": 3})
    assert of.column("word") == Column("word", "string")
    assert of.column("number") == Column("number", "int64")
    with fresh_store() as store:
        table = store.create_table("t", of, 10, sampler=samplers.Fifo())
        table.extend(given)
        batch = table.sample(3)
        assert list(batch["word"]) == ["bb", "a", "é"]
        assert batch["number"].tolist() == [8, 7, 7]
        with pytest.raises(DtypeMismatch, match="row 1 is "):
            table.extend(pa.table({"word": pa.array(["a", None]).dictionary_encode(), "number": [1, 2]}))


def test_schemas_of_arrow_lists() -> None:
    pa = pytest.importorskip("pyarrow")
    kinds = {
        "a": pa.list_(pa.int32()), "b": pa.large_list(pa.fixed_shape_tensor(pa.uint8(), [2, 3])),
        "c": pa.list_view(pa.list_(pa.float32(), 2)), "d": pa.string(), "e": pa.string_view(), "f": pa.large_binary(),
        "g": pa.list_(pa.bool_()),
    }  # fmt: skip
    of = Schema.from_arrow(pa.schema(kinds), mean_lengths={"a": 5})
    assert [(c.dtype_name, c.shape) for c in of] == [
        ("int32", (None,)), ("uint8", (None, 2, 3)), ("float32", (None, 2)), ("string", (None,)), ("string", (None,)),
        ("binary", (None,)), ("bool", (None,)),
    ]  # fmt: skip
    assert of.column("a").mean_length == 5
    assert Schema.from_arrow(of.to_arrow()) == of
    with pytest.raises(UnknownColumn, match="'x'"):
        Schema.from_arrow(pa.schema(kinds), mean_lengths={"x": 5})


def test_object_arrays_of_rows_and_strings_of_fixed_width() -> None:
    of = Schema((Column("tokens", "int32", (None,), mean_length=2), Column("raw", "binary", mean_length=3)))
    rows = np.empty(3, object)
    rows[:] = [np.arange(2, dtype=np.int32), [5], np.zeros(0, np.int32)]
    raw = np.array([b"a\0", b"", b"bc"], object)
    with fresh_store() as store:
        table = store.create_table("t", of, 10, sampler=samplers.Fifo())
        table.extend({"tokens": rows, "raw": raw})
        batch = table.sample(3)
        assert [row.tolist() for row in batch["tokens"]] == [[0, 1], [5], []]
        assert list(batch["raw"]) == raw.tolist()
        with pytest.raises(DtypeMismatch, match="cannot tell the zero bytes that end a value from padding"):
            table.extend({"tokens": rows, "raw": np.array([b"a\0", b"", b"bc"])})


@pytest.mark.parametrize("form", ["arrays", "small integers", "strided", "a tuple", "packed", "one row as a list"])
def test_whole_columns_in_any_form(form: str) -> None:
    """Lists of arrays of just the dtype are read where they lie; whatever else gives the same rows."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (length, 2, 3)).astype("u1") for length in (3, 0, 1, 7)]
    given: Any = {
        "arrays": images, "small integers": [*images[:2], images[2].astype("i8").tolist(), images[3]],
        "strided": [np.repeat(image, 2, axis=0)[::2] for image in images], "a tuple": tuple(images),
        "packed": Ragged.from_rows(images), "one row as a list": [*images[:3], images[3].tolist()],
    }[form]  # fmt: skip
    schema = Schema((Column("images", "uint8", (None, 2, 3), mean_length=3), Column("x", "int64")))
    with fresh_store() as store:
        table = store.create_table("rows", schema, 64)
        held = [sys.getrefcount(image) for image in images]
        for _ in range(3):
            assert table.extend({"images": given, "x": np.arange(4)}) == 4
        assert [sys.getrefcount(image) for image in images] == held
        got = table.rows(np.concatenate([block.keys for block in table.blocks()]))
        for i, row in enumerate(got["images"]):
            np.testing.assert_array_equal(row, images[got["x"][i]])
        with pytest.raises(ShapeMismatch, match=r"column 'x' expects shape \(3,\), got \(4,\)"):
            table.extend({"images": images[:3], "x": np.arange(4)})
        with pytest.raises(ShapeMismatch, match="row 1 of 4"):
            table.extend({"images": [images[0], images[0][:, :1], *images[2:]], "x": np.arange(4)})
        assert len(table) == 12
