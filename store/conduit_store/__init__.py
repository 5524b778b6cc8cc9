"""The store: schemas, values, memory and the layout of shared segments. Imports nothing else of Conduit.

errors    every error that Conduit raises on purpose
schema    Schema, a tuple of Columns (column); made from an example, gymnasium spaces (spaces) or Arrow
values    what a caller gives -> contiguous rows of a column, without loss; Python numbers (scalars) by value
arrow     blocks as zero-copy record batches, Arrow data as NumPy arrays; the only file that imports pyarrow
memory    how much this machine and its cgroups still have
segment   memfds: created, sealed, reserved, opened again; the system they need (system)
layout    where the columns of a block lie
_native   the compiled core: atomics, blocks, sum tree, gather. Imported by who needs it, not here
"""

from .errors import (
    AppendTimeout,
    AttachRefused,
    AttachTimeout,
    CapacityError,
    CheckpointBusy,
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    ConduitError,
    ConfigError,
    DtypeMismatch,
    EpisodeError,
    ExchangeError,
    ForkedHandle,
    LayoutMismatch,
    LeaseExpired,
    LockTimeout,
    MissingColumn,
    MissingExtra,
    NameTaken,
    OutOfHostMemory,
    PriorityError,
    QueueEnded,
    ReadOnlyStore,
    SampleTimeout,
    SchemaError,
    ShapeMismatch,
    SourceNotFound,
    StaleKey,
    StalePolicy,
    StoreClosed,
    StoreNotFound,
    UnknownColumn,
    UnknownTable,
    UnknownWindow,
    UnsupportedPlatform,
    ValueOutOfRange,
    WaitTimeout,
)
from .memory import Headroom, available_bytes, check_fits, parse_bytes
from .schema import Column, Schema
from .values import as_row, as_rows

__all__ = [
    "AppendTimeout",
    "AttachRefused",
    "AttachTimeout",
    "CapacityError",
    "CheckpointBusy",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointNotFound",
    "Column",
    "ConduitError",
    "ConfigError",
    "DtypeMismatch",
    "EpisodeError",
    "ExchangeError",
    "ForkedHandle",
    "Headroom",
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
    "Schema",
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
    "as_row",
    "as_rows",
    "available_bytes",
    "check_fits",
    "parse_bytes",
]
