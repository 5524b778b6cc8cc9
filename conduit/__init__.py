"""Conduit: the experience path of distributed reinforcement learning as a data plane of its own.

Layers, each importing only those to its right: conduit (this API) -> conduit_transport -> conduit_store.

    store.py     Store: create, attach, tables            table.py    Table: rows in and out; its other methods:
                                                          table_updates.py, table_settings.py, table_inspection.py
    *_handle.py  what a process holds of either           opening.py, creation.py, populate.py  how they come to be
    writer.py    rows in, one step at a time              extend.py   rows in, whole arrays
    sampling.py  batches out                              batch.py    what a batch is
    loader.py    batches prepared ahead                   devices.py  where they go
    queue.py     Queue: every row delivered until acknowledged; queue_rows.py, queue_writer.py: how rows come in,
                 delivery.py, queue_loader.py: how they come out
    balance.py   rows of different lengths, shared out evenly
    samplers, windows, limiters, removers  settings       spec.py     all of them together, as stored
    schedules.py settings that change with time           disk.py     rows beyond what memory holds
    views.py     windows by name                          agents/     several agents in one environment
    exchange/    rows to and from files of others                 torchrl/    a replay buffer in TorchRL's shape
"""

import typing

import conduit.interrupt as _interrupt  # noqa: F401  # before what takes long to load
from conduit import agents, limiters, removers, samplers, schedules, windows
from conduit.balance import balance
from conduit.batch import Batch, DeviceBatch
from conduit.blocks import BlockView
from conduit.delivery import DeviceQueueBatch, QueueBatch
from conduit.disk import Disk
from conduit.loader import Loader, LoaderMetrics
from conduit.metrics import (
    ConsumerMetrics,
    DiskMetrics,
    QueueMetrics,
    ReaderMetrics,
    StoreMetrics,
    TableMetrics,
    WriterMetrics,
)
from conduit.queue import Queue, QueueWriter
from conduit.queue_loader import QueueLoader
from conduit.store import Store
from conduit.table import Table, UpdateResult
from conduit.writer import VectorWriter, Writer
from conduit_store.errors import (
    AppendTimeout,
    AttachRefused,
    AttachTimeout,
    CapacityError,
    CheckpointBusy,
    CheckpointDamaged,
    CheckpointError,
    CheckpointLapsed,
    CheckpointNewer,
    CheckpointNotFound,
    ConduitError,
    ConfigError,
    DiskError,
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
from conduit_store.ragged import Ragged
from conduit_store.schema import Column, Schema

__version__ = "0.1.0"

__all__ = [
    "Batch", "BlockView", "Column", "ConsumerMetrics", "DeviceBatch", "DeviceQueueBatch", "Disk", "DiskMetrics",
    "Loader", "LoaderMetrics",
    "Queue", "QueueBatch", "QueueLoader", "QueueMetrics", "QueueWriter", "Ragged", "ReaderMetrics", "Schema", "Store",
    "StoreMetrics", "Table", "TableMetrics", "UpdateResult", "VectorWriter", "Writer", "WriterMetrics", "agents",
    "balance", "limiters", "removers", "samplers", "schedules", "windows", "AppendTimeout", "AttachRefused",
    "AttachTimeout", "CapacityError", "CheckpointBusy", "CheckpointDamaged", "CheckpointError",
    "CheckpointLapsed", "CheckpointNewer", "CheckpointNotFound", "ConduitError", "ConfigError", "DiskError",
    "DtypeMismatch",
    "EpisodeError", "ExchangeError", "ForkedHandle", "LayoutMismatch", "LeaseExpired", "LockTimeout", "MissingColumn",
    "MissingExtra", "NameTaken", "OutOfHostMemory", "PriorityError", "QueueEnded", "ReadOnlyStore", "SampleTimeout",
    "SchemaError",
    "ShapeMismatch", "SourceNotFound", "StaleKey", "StalePolicy", "StoreClosed", "StoreNotFound", "UnknownColumn",
    "UnknownTable", "UnknownWindow", "UnsupportedPlatform", "ValueOutOfRange", "WaitTimeout",
]  # fmt: skip

if not typing.TYPE_CHECKING:  # who is checked imports conduit.checkpoints

    def __getattr__(name: str) -> object:
        """`conduit.checkpoints`, `conduit.offline`: loaded when asked for, since they need pyarrow."""
        if name in ("checkpoints", "offline"):
            import importlib

            return importlib.import_module(f"conduit.{name}")
        raise AttributeError(f"module 'conduit' has no attribute {name!r}")
