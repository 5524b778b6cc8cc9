"""Rows and episodes that are not as they must be: a typed error that teaches, and a table as before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conduit import (
    CapacityError,
    ConduitError,
    DtypeMismatch,
    EpisodeError,
    MissingColumn,
    SchemaError,
    ShapeMismatch,
    UnknownColumn,
    ValueOutOfRange,
)
from tests.entries import STEP, WAYS, Entry, entry_of, steps
from tests.store_support import fresh_store, prioritized, scalar_writer, unchanged, vector_writer


@pytest.fixture(params=WAYS)
def entry(request: pytest.FixtureRequest) -> Iterator[Entry]:
    with entry_of(request.param) as made:
        yield made


# ---- columns


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 1), ()])
def test_wrong_shape(entry: Entry, shape: tuple[int, ...]) -> None:
    given = (*entry.lead, *shape)
    expected = "(n, 2)" if entry.way == "extend" else str((*entry.lead, 2))
    with entry.refused(ShapeMismatch, "column 'obs'", str(given), expected, "Reshape"):
        entry.push(obs=np.zeros(given, np.float32))


def test_one_column_of_another_length(entry: Entry) -> None:
    given = (2,) if entry.lead else (1,)
    with entry.refused(ShapeMismatch, "column 'action'", str(given), str(entry.lead)):
        entry.push(action=np.zeros(given, np.int64))


@pytest.mark.parametrize(
    ("column", "given"),
    [("obs", "f8"), ("obs", "i8"), ("action", "f4"), ("action", "u8"), ("terminated", "i8"), ("reward", "i4")],
)
def test_a_dtype_that_would_lose_information(entry: Entry, column: str, given: str) -> None:
    dtype = np.dtype(given)
    shape = (*entry.lead, *STEP.column(column).shape)
    with entry.refused(DtypeMismatch, f"column '{column}'", str(dtype), str(STEP.column(column).dtype)):
        entry.push(**{column: np.zeros(shape, dtype)})


@pytest.mark.parametrize(("column", "value"), [("action", 2**63), ("action", -(2**63) - 1), ("reward", 1e39)])
def test_a_python_number_that_does_not_fit(entry: Entry, column: str, value: Any) -> None:
    given = [value] * 3 if entry.lead else value
    with entry.refused(ValueOutOfRange, f"column '{column}'", str(STEP.column(column).dtype), str(value)):
        entry.push(**{column: given})


@pytest.mark.parametrize("value", ["text", None, {"a": 1}, object()], ids=["text", "nulls", "mapping", "object"])
def test_what_is_no_number(entry: Entry, value: Any) -> None:
    given = [value] * 3 if entry.lead else np.array(value, object)
    with entry.refused(DtypeMismatch, "column 'action'"):
        entry.push(action=given)


def test_missing_columns(entry: Entry) -> None:
    with entry.refused(MissingColumn, "missing column action, reward", "obs, action, reward, terminated, truncated"):
        entry.push(action=None, reward=None)


def test_an_unknown_column(entry: Entry) -> None:
    with entry.refused(UnknownColumn, "unknown column rewards", "obs, action, reward, terminated, truncated"):
        entry.push(rewards=np.zeros(entry.lead, np.float32))


def test_next_obs_belongs_to_extend_alone(entry: Entry) -> None:
    following = np.zeros((*entry.lead, 2), np.float32)
    if entry.way == "extend":
        entry.push(next_obs=following)
    else:
        with entry.refused(UnknownColumn, "unknown column next_obs"):
            entry.push(next_obs=following)


@pytest.mark.parametrize("columns", [3, None, [1, 2], "obs"])
def test_extend_with_what_has_no_columns(columns: Any) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 8)
        with unchanged(table), pytest.raises(SchemaError, match=f"got a {type(columns).__name__}: give a mapping"):
            table.extend(columns)


@pytest.mark.parametrize("n", [65, 1000])
def test_more_rows_than_capacity_in_one_call(n: int) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64, sampler=prioritized())
        table.extend(steps((10,)))
        with unchanged(table), pytest.raises(CapacityError, match=rf"{n:,} rows in one call, .* holds 64.*max_size"):
            table.extend(steps((n,)), priorities=np.ones(n))
        assert table.extend(steps((64,))) == 64


# ---- episodes


def test_append_after_an_ended_episode_without_end(entry: Entry) -> None:
    """A vector writer in gymnasium's default mode takes the next call for the end; see test_vector_writer."""
    ended = np.array([False, True, False]) if entry.lead else True
    if entry.way == "vector":
        with vector_writer(entry.table, 3, autoreset="disabled") as writer:
            writer.append(**steps((3,), truncated=ended))
            with unchanged(entry.table), pytest.raises(EpisodeError, match=r"\[1\] have ended: call end\(final_obs, m"):
                writer.append(**steps((3,)))
            writer.end(np.zeros((3, 2), np.float32))
            writer.append(**steps((3,)))
    elif entry.way == "extend":
        with entry.refused(EpisodeError, "row 1 of 3 ends an episode and next_obs is missing", "Nothing was appended"):
            entry.push(terminated=ended)
    else:
        entry.push(terminated=ended)
        with unchanged(entry.table), pytest.raises(EpisodeError, match=r"call end\(final_obs\) before the next append"):
            entry.push()
        entry.writer.end(np.zeros(2, np.float32))
        entry.push()


@pytest.mark.parametrize(
    ("final", "kind"),
    [
        (np.zeros(3, np.float32), ShapeMismatch),
        (np.zeros(2, np.float64), DtypeMismatch),
        (None, DtypeMismatch),
        ({"camera": np.zeros(2, np.float32)}, DtypeMismatch),
    ],
)
def test_end_with_what_is_no_observation(final: Any, kind: type[ConduitError]) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        with scalar_writer(table) as writer:
            writer.append(**steps((), terminated=True))
            with unchanged(table), pytest.raises(kind, match="column 'obs'"):
                writer.end(final)
            with pytest.raises(EpisodeError):
                writer.append(**steps(()))
            writer.end(np.zeros(2, np.float32))
            assert table.info().ready_rows == 1


def test_end_without_a_step() -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        with scalar_writer(table) as writer, unchanged(table), pytest.raises(EpisodeError, match="without a step"):
            writer.end(np.zeros(2, np.float32))
