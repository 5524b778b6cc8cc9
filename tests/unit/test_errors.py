"""The error tree: classes, the built-in exceptions they stand for, and messages that come out as written."""

from __future__ import annotations

import copy
import pickle

import pytest

import conduit_store
from conduit_store import errors

BUILTIN = {
    "AppendTimeout": TimeoutError,
    "AttachRefused": PermissionError,
    "AttachTimeout": TimeoutError,
    "CapacityError": ValueError,
    "ConduitError": Exception,
    "ConfigError": ValueError,
    "DiskError": OSError,
    "CheckpointBusy": RuntimeError,
    "CheckpointDamaged": RuntimeError,
    "CheckpointError": RuntimeError,
    "CheckpointLapsed": RuntimeError,
    "CheckpointNewer": RuntimeError,
    "CheckpointNotFound": FileNotFoundError,
    "DtypeMismatch": ValueError,
    "EpisodeError": RuntimeError,
    "ExchangeError": ValueError,
    "ForkedHandle": RuntimeError,
    "LayoutMismatch": RuntimeError,
    "LeaseExpired": RuntimeError,
    "LockTimeout": TimeoutError,
    "MissingColumn": ValueError,
    "MissingExtra": ImportError,
    "NameTaken": FileExistsError,
    "OutOfHostMemory": MemoryError,
    "PriorityError": ValueError,
    "QueueEnded": EOFError,
    "ReadOnlyStore": PermissionError,
    "SampleTimeout": TimeoutError,
    "SchemaError": ValueError,
    "ShapeMismatch": ValueError,
    "SourceNotFound": FileNotFoundError,
    "StaleKey": KeyError,
    "StalePolicy": ValueError,
    "StoreClosed": RuntimeError,
    "StoreNotFound": FileNotFoundError,
    "UnknownColumn": ValueError,
    "UnknownTable": KeyError,
    "UnknownWindow": KeyError,
    "UnsupportedPlatform": RuntimeError,
    "ValueOutOfRange": ValueError,
    "WaitTimeout": TimeoutError,
}


def test_the_list_of_errors_is_complete() -> None:
    assert sorted(errors.__all__) == sorted(BUILTIN)
    assert set(errors.__all__) <= set(conduit_store.__all__)


@pytest.mark.parametrize("name", BUILTIN)
def test_each_error_is_a_conduit_error_and_its_builtin(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.ConduitError)
    assert issubclass(kind, BUILTIN[name])


@pytest.mark.parametrize("name", BUILTIN)
def test_message_is_shown_as_written_and_survives_pickle_and_copy(name: str) -> None:
    error = getattr(errors, name)("no table 'a' in 'run1'. Tables: b")
    assert str(error) == "no table 'a' in 'run1'. Tables: b"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)


def test_families() -> None:
    for kind in (
        errors.MissingColumn,
        errors.UnknownColumn,
        errors.ShapeMismatch,
        errors.DtypeMismatch,
        errors.ValueOutOfRange,
    ):
        assert issubclass(kind, errors.SchemaError)
    for wait in (errors.SampleTimeout, errors.AppendTimeout, errors.LockTimeout, errors.AttachTimeout):
        assert issubclass(wait, errors.WaitTimeout)


def test_public_list_of_the_store_package() -> None:
    assert set(conduit_store.__all__) - set(errors.__all__) == {
        "Column",
        "Headroom",
        "Schema",
        "as_row",
        "as_rows",
        "available_bytes",
        "check_fits",
        "parse_bytes",
    }
    assert all(hasattr(conduit_store, name) for name in conduit_store.__all__)
