"""Damaged files: a typed error that names the file, or the right rows; never a crash, never rows that nobody wrote."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import conduit
from conduit import Column, Schema, Store
from tests.exchange_support import file_of
from tests.store_support import column_of, fresh_store

CHECKED = ("parquet", "numpy")  # with check sums: a flipped byte of a value is found
UNCHECKED = ("arrow", "arrow-stream")
SCHEMA = Schema((Column("x", np.dtype("i8")), Column("y", np.dtype("f4"), (2, 2)), Column("z", np.dtype("?"))))


_originals: dict[str, bytes] = {}


@pytest.fixture(scope="module", autouse=True)
def originals(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("originals")
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 500)
        for start in range(0, 500, 100):
            x = np.arange(start, start + 100)
            table.extend({"x": x, "y": np.repeat(x, 4).reshape(-1, 2, 2).astype("f4"), "z": x % 2 == 0})
        for format in (*CHECKED, *UNCHECKED):
            table.export(folder / file_of(format), format)
    _originals.update({format: (folder / file_of(format)).read_bytes() for format in (*CHECKED, *UNCHECKED)})


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with fresh_store("64MiB") as made:
        made.create_table("t", SCHEMA, 2_000)
        yield made


def read(store: Store, path: Path, data: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """The rows of a damaged file, None where it was refused."""
    path.write_bytes(data)
    table = store["t"]
    table.clear()
    try:
        table.import_from(path)
    except conduit.ConduitError as error:
        if path.name not in str(error):
            raise
        return None
    x = column_of(table)
    assert len(x) == len(table)
    return x


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from((*CHECKED, *UNCHECKED)), st.floats(0, 1, exclude_max=True))
def test_a_cut_is_found(store: Store, tmp_path: Path, format: str, share: float) -> None:
    data = _originals[format]
    assert read(store, tmp_path / file_of(format), data[: int(len(data) * share)]) is None


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from((*CHECKED, *UNCHECKED)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_flipped_bytes(
    store: Store, tmp_path: Path, format: str, flips: list[tuple[float, int]]
) -> None:
    data = bytearray(_originals[format])
    for share, flip in flips:
        data[int(len(data) * share)] ^= flip
    found = read(store, tmp_path / file_of(format), bytes(data))
    if found is not None and format in CHECKED:
        assert found.tolist() == list(range(500))


def test_the_end_of_a_stream_counts(store: Store, tmp_path: Path) -> None:
    """Without its last eight bytes an Arrow stream would read as a whole one."""
    data = _originals["arrow-stream"][:-8]
    with pa.ipc.open_stream(data) as cut:
        assert len(cut.read_all()) == 500
    assert read(store, tmp_path / "x.arrows", data) is None


@pytest.mark.parametrize("format", [*CHECKED, *UNCHECKED])
@pytest.mark.parametrize("data", [b"", b"PAR1", b"not at all" * 100, b"PK\x03\x04" + b"\0" * 100])
def test_something_else(store: Store, tmp_path: Path, format: str, data: bytes) -> None:
    path = tmp_path / file_of(format)
    path.write_bytes(data)
    with pytest.raises(conduit.ExchangeError, match=r"damaged, cut off, or of another format|cut off, or of another"):
        store.import_table("u", path)


def test_metadata_that_was_changed(store: Store, tmp_path: Path) -> None:
    for old, new in ((b'"int64"', b'"int99"'), (b'"version": 1', b'"version": 9'), (b'"columns"', b'"Columns"')):
        data = _originals["arrow"]
        assert old in data
        path = tmp_path / "x.arrow"
        path.write_bytes(data.replace(old, new))
        with pytest.raises(conduit.ConduitError, match=r"version|x\.arrow"):
            store.import_table("u", path)


def test_a_part_that_is_gone(tmp_path: Path) -> None:
    with fresh_store() as made:
        table = made.create_table("t", SCHEMA, 10)
        table.export(tmp_path / "parts", "parquet")
        shutil.rmtree(tmp_path / "parts")
        (tmp_path / "parts").mkdir()
        with pytest.raises(conduit.ExchangeError, match=r"no \.parquet file"):
            made.import_table("u", tmp_path / "parts", format="parquet")
