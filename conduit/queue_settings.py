"""What makes a table a queue: its consumer groups, their leases, and how old a policy may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conduit.values import real_number, whole_number
from conduit_store.errors import ConfigError
from conduit_store.native import native
from conduit_store.schema import Column, Schema

__all__ = ["POLICY_VERSION", "QueueSettings"]

POLICY_VERSION = "policy_version"  # the column that carries a row's
_VERSION = Column(POLICY_VERSION, np.dtype(np.int64))
_MAX_NAME = 63


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a queue; see `Store.create_queue`.

    Raises:
        ConfigError: a name or number that is not allowed.
    """

    consumers: Sequence[str]
    max_staleness: int | None
    lease_timeout: float  # seconds

    def __post_init__(self) -> None:
        put = object.__setattr__
        names = (self.consumers,) if isinstance(self.consumers, str) else self.consumers
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"consumers is {self.consumers!r}: give a tuple of names")
        names = tuple(names)
        if not 1 <= len(names) <= native.MAX_CONSUMERS or len(set(names)) != len(names):
            raise ConfigError(f"consumers is {names!r}: give 1 to {native.MAX_CONSUMERS} different names")
        for name in names:
            if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
                raise ConfigError(f"consumer {name!r} is not allowed: a name of 1 to {_MAX_NAME} characters")
        put(self, "consumers", names)
        if self.max_staleness is not None:
            put(self, "max_staleness", whole_number("max_staleness", self.max_staleness, 0, (1 << 62) - 1))
        put(self, "lease_timeout", real_number("lease_timeout", self.lease_timeout, 1e-3, 1e8))

    def complete(self, schema: Schema) -> Schema:
        """Return the schema with the column of policy versions, where rows have them.

        Raises:
            ConfigError: `schema` is none, or has a column of that name and another kind.
        """
        if not isinstance(schema, Schema):
            raise ConfigError(f"schema is {schema!r}: give a conduit.Schema")
        if self.max_staleness is None:
            return schema
        if POLICY_VERSION not in schema:
            return Schema((*schema.columns, _VERSION))
        column = schema.column(POLICY_VERSION)
        if column != _VERSION:
            raise ConfigError(
                f"column {POLICY_VERSION!r} is {column.dtype} of shape {column.shape}{', mutable' * column.mutable}: "
                "policy versions are int64 and stay as they are"
            )
        return schema
