"""The ways into a table, and what must be true after a refusal by each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from conduit import ConduitError, Table
from tests.store_support import fresh_store, prioritized, scalar_writer, schema, unchanged, vector_writer

STEP = schema(obs=("f4", (2,)), action="i8", reward="f4", terminated="?", truncated="?")
WAYS = ("append", "vector", "extend")


def steps(lead: tuple[int, ...], **changes: Any) -> dict[str, Any]:
    """Good steps of shape `lead`, but for the changes; None leaves a column out."""
    good: dict[str, Any] = {
        "obs": np.ones((*lead, 2), np.float32),
        "action": np.ones(lead, np.int64),
        "reward": np.ones(lead, np.float32),
        "terminated": np.zeros(lead, np.bool_),
        "truncated": np.zeros(lead, np.bool_),
    }
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


class Entry:
    """One way into a table: a writer, a vector writer of three environments, or `extend` with three rows."""

    def __init__(self, table: Table, way: str, stack: ExitStack) -> None:
        self.table, self.way = table, way
        self.lead = () if way == "append" else (3,)
        if way == "append":
            self.writer = stack.enter_context(scalar_writer(table))
        elif way == "vector":
            self._vector = stack.enter_context(vector_writer(table, 3))

    def push(self, *, priorities: Any = None, **changes: Any) -> None:
        columns = steps(self.lead, **changes)
        if self.way == "append":
            self.writer.append(**columns, priority=priorities)
        elif self.way == "vector":
            self._vector.append(**columns, priorities=priorities)
        else:
            self.table.extend(columns, priorities=priorities)

    @contextmanager
    def refused(self, kind: type[ConduitError], *said: str) -> Iterator[None]:
        """Fails unless the block raises exactly `kind` with all of `said`, changes nothing, and good steps go on."""
        with unchanged(self.table), pytest.raises(kind) as caught:
            yield
        assert type(caught.value) is kind
        for text in said:
            assert text in str(caught.value)
        before = len(self.table)
        self.push(priorities=2.0 if self.way == "append" else [2.0, 2.0, 2.0])
        rows = 1 if self.way == "append" else 3
        assert len(self.table) == before + rows
        # The chains are whole: every step has its successor but the newest of each environment.
        assert self.table.info().ready_rows == len(self.table) - (3 if self.way == "vector" else 1)


@contextmanager
def entry_of(way: str) -> Iterator[Entry]:
    """An entry of a new prioritized table that holds one call's rows."""
    with ExitStack() as stack:
        store = stack.enter_context(fresh_store())
        made = Entry(store.create_table("t", STEP, 64, sampler=prioritized()), way, stack)
        made.push()
        yield made
