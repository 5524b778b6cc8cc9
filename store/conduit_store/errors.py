"""Every error that Conduit raises on purpose: one tree under `ConduitError`, told apart by class.

Each class also inherits the built-in exception that a caller would expect (`ValueError`, `KeyError`,
`TimeoutError`, ...), so code that knows nothing of Conduit still catches it. A message says what, the value,
the limit and the next step.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "AppendTimeout",
    "AttachRefused",
    "AttachTimeout",
    "CapacityError",
    "CheckpointBusy",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointLapsed",
    "CheckpointNewer",
    "CheckpointNotFound",
    "ConduitError",
    "ConfigError",
    "DiskError",
    "DtypeMismatch",
    "EpisodeError",
    "ExchangeError",
    "ForkedHandle",
    "LayoutMismatch",
    "LeaseExpired",
    "LockTimeout",
    "MissingColumn",
    "MissingExtra",
    "NameTaken",
    "OutOfHostMemory",
    "PriorityError",
    "QueueEnded",
    "ReadOnlyStore",
    "SampleTimeout",
    "SchemaError",
    "ShapeMismatch",
    "SourceNotFound",
    "StaleKey",
    "StalePolicy",
    "StoreClosed",
    "StoreNotFound",
    "UnknownColumn",
    "UnknownTable",
    "UnknownWindow",
    "UnsupportedPlatform",
    "ValueOutOfRange",
    "WaitTimeout",
]


class ConduitError(Exception):
    """Root of all errors of Conduit. Also a mixin: `str(error)` is always the plain message."""

    def __str__(self) -> str:
        # KeyError would quote its message, and OSError would put an errno in front of it.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class SchemaError(ConduitError, ValueError):
    """Columns, names, dtypes or shapes that a schema cannot describe or does not allow."""


class MissingColumn(SchemaError):
    """A column of the schema was not given."""


class UnknownColumn(SchemaError):
    """A column was given that the schema does not have."""


class ShapeMismatch(SchemaError):
    """A value's shape is not the column's."""


class DtypeMismatch(SchemaError):
    """A value's dtype cannot be stored in the column without loss, or is not supported at all."""


class ValueOutOfRange(SchemaError):
    """A Python number does not fit the column's dtype."""


class ConfigError(ConduitError, ValueError):
    """An argument of a constructor or a setting is outside what is allowed."""


class PriorityError(ConduitError, ValueError):
    """A priority is NaN, infinite or negative. Nothing of the batch was applied."""


class CapacityError(ConduitError, ValueError):
    """More rows in one call than the table can ever hold. Nothing was stored."""


class EpisodeError(ConduitError, RuntimeError):
    """Steps in an order that episodes do not have, such as an append after an ended episode."""


class ExchangeError(ConduitError, ValueError):
    """A file cannot be read as what it is said to be (damaged, cut off, of another format), or cannot be written."""


class SourceNotFound(ConduitError, FileNotFoundError):
    """The file or folder to import is not there."""


class StoreClosed(ConduitError, RuntimeError):
    """The store was closed in this process, perhaps while a call was waiting."""


class ForkedHandle(ConduitError, RuntimeError):
    """A handle made before a fork was used in the child."""


class ReadOnlyStore(ConduitError, PermissionError):
    """A write through a store that was attached read-only."""


class UnknownTable(ConduitError, KeyError):
    """The store has no table of that name."""


class UnknownWindow(ConduitError, KeyError):
    """The table has no window of that name."""


class StaleKey(ConduitError, KeyError):
    """A key whose row is gone."""


class LeaseExpired(ConduitError, RuntimeError):
    """An acknowledgement came too late: the rows are delivered again. Nothing was changed."""


class QueueEnded(ConduitError, EOFError):
    """No more rows go into the queue, or none will come out of it."""


class StalePolicy(ConduitError, ValueError):
    """Rows of a policy that the learner has left behind by more than the queue allows. Nothing was appended."""


class CheckpointError(ConduitError, RuntimeError):
    """A checkpoint could not be taken or restored. Those that were there before are as they were."""


class CheckpointBusy(CheckpointError):
    """Another checkpoint of the store, or into the folder, is being taken."""


class CheckpointDamaged(CheckpointError):
    """A file of a checkpoint is not what was written, or is not there; names it."""


class CheckpointLapsed(CheckpointError):
    """A checkpoint stood still for so long that writers took the blocks it had yet to write. Take it again."""


class CheckpointNewer(CheckpointError):
    """A checkpoint is of a later format than this build reads. Nothing was read of it but who wrote it."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """There is no checkpoint in the folder."""


class StoreNotFound(ConduitError, FileNotFoundError):
    """No process holds a store of that name."""


class NameTaken(ConduitError, FileExistsError):
    """A store or table of that name exists already."""


class AttachRefused(ConduitError, PermissionError):
    """The holder of a store refused this process."""


class OutOfHostMemory(ConduitError, MemoryError):
    """The memory asked for is not available. Nothing stays reserved."""


class DiskError(ConduitError, OSError):
    """A table's rows could not be moved to disk, or read from there. What is in memory and on disk stays as it is."""


class LayoutMismatch(ConduitError, RuntimeError):
    """The segment was made by a build with another layout."""


class UnsupportedPlatform(ConduitError, RuntimeError):
    """The operating system or its kernel lacks something that a store needs."""


class MissingExtra(ConduitError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class WaitTimeout(ConduitError, TimeoutError):
    """A wait ended without what it waited for. Nothing was consumed."""


class SampleTimeout(WaitTimeout):
    """No batch could be drawn in time; names the limiter and what it lacks."""


class AppendTimeout(WaitTimeout):
    """No room for a row in time; names what holds the memory."""


class LockTimeout(WaitTimeout):
    """A lock of the segment was not obtained in time; names its holder."""


class AttachTimeout(WaitTimeout):
    """A holder of the store did not answer in time."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: ` Did you mean 'obs'?`, or nothing when none is close."""
    import difflib  # only an error needs it

    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
