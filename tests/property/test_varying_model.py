"""Tables whose rows vary in length against a list of what went in, operation by operation (hypothesis, stateful)."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conduit import CapacityError, Disk, StaleKey, Table
from tests.property.table_machine import SETTINGS
from tests.store_support import fresh_store
from tests.varying import SCHEMA, columns, faults, row

# Mostly about the mean of the schema (20), now and then more than a block holds.
LENGTHS = st.one_of(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(100, 900))


class VaryingRows(RuleBasedStateMachine):
    """Two writers, and what each has appended. The oldest rows leave first, by blocks: of each a suffix is there."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.serial = itertools.count()
        self.appended: tuple[list[int], list[int]] = ([], [])  # by extend, by the writer
        self.lengths: dict[int, int] = {}
        self.gone = 0  # rows that were cleared
        self.old: list[tuple[int, int]] = []  # (key, serial) of rows that were drawn

    @initialize(max_size=st.integers(8, 60))
    def create(self, max_size: int) -> None:
        store = self.stack.enter_context(fresh_store(max_processes=2))
        # More memory than rows of the mean length need, so that rows above a block find a run of free ones.
        self.table: Table = store.create_table("t", SCHEMA, max_size, max_writers=6)
        self.writer = self.table.writer()

    def teardown(self) -> None:
        self.stack.close()

    def serials(self, lengths: list[int]) -> list[int]:
        serials = [next(self.serial) for _ in lengths]
        self.lengths.update(zip(serials, lengths, strict=True))
        return serials

    @rule(lengths=st.lists(LENGTHS, max_size=8))
    def extend(self, lengths: list[int]) -> None:
        serials = self.serials(lengths)
        assert self.table.extend(columns(serials, lengths)) == len(lengths)
        self.appended[0].extend(serials)

    @rule(lengths=st.lists(LENGTHS, min_size=1, max_size=8))
    def append(self, lengths: list[int]) -> None:
        for serial, length in zip(self.serials(lengths), lengths, strict=True):
            self.writer.append(**row(serial, length))
            self.appended[1].append(serial)

    @rule()
    def reopen(self) -> None:
        self.writer.close()
        self.writer = self.table.writer()

    @rule()
    def clear(self) -> None:
        self.gone += len(self.table)
        self.table.clear()
        for appended in self.appended:
            appended.clear()

    @rule()
    def too_long(self) -> None:
        with pytest.raises(CapacityError):
            self.table.extend(columns([1, 2], [3, 1_000_000]))

    @precondition(lambda self: any(self.appended))
    @rule(n=st.integers(1, 40))
    def sample(self, n: int) -> None:
        batch = self.table.sample(n)
        assert faults(batch) == []
        self.check_lengths(batch)
        self.old = [*self.old, *zip(batch.keys.tolist(), batch["serial"].tolist(), strict=True)][-50:]

    @rule()
    def read(self) -> None:
        for key, serial in self.old[::7]:
            try:
                batch = self.table.rows([key])
            except StaleKey:
                continue
            assert batch["serial"][0] == serial
            assert faults(batch) == []

    def check_lengths(self, rows: Any) -> None:
        for serial, tokens in zip(rows["serial"], rows["tokens"], strict=True):
            assert len(tokens) == self.lengths[int(serial)]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "table"):
            return
        self.table.verify()
        live: list[int] = []
        for view in self.table.blocks():
            batch = view.to_arrow()
            batch.validate(full=True)
            rows = {name: batch.column(name).to_pylist() for name in SCHEMA.names}
            self.check_lengths(rows)
            live += rows["serial"]
        assert len(live) == len(self.table) <= self.table.max_size
        for appended in self.appended:
            mine = [serial for serial in live if serial in set(appended)]
            assert mine == appended[len(appended) - len(mine) :]
        assert set(live) <= {*self.appended[0], *self.appended[1]}
        info = self.table.info()
        total = sum(map(len, self.appended))
        assert len(live) >= min(self.table.max_size, total) - info.evicted_early
        if total and len(live) == 0:
            assert info.evicted_early > 0


TestVaryingRows = VaryingRows.TestCase
TestVaryingRows.settings = SETTINGS


class VaryingRowsOnDisk(VaryingRows):
    """The same where memory has room for a third of the blocks, and rows above a block go to disk at once."""

    @initialize(max_size=st.integers(160, 300))
    def create(self, max_size: int) -> None:
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        store = self.stack.enter_context(fresh_store(max_processes=2))
        self.table = store.create_table("t", SCHEMA, max_size, max_writers=1, disk=Disk(folder, "16KB"))
        self.writer = self.table.writer()
        for first in range(0, 240, 8):  # so that blocks have to move
            self.extend([first % 40] * 8)


TestVaryingRowsOnDisk = VaryingRowsOnDisk.TestCase
TestVaryingRowsOnDisk.settings = settings(SETTINGS, max_examples=15)


def test_random_lengths_in_a_large_table() -> None:
    """What the table was planned for: nothing is evicted early but by the variance of the lengths."""
    chance = np.random.default_rng(3)
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 2_000, max_writers=1)
        for first in range(0, 8_000, 500):
            table.extend(columns(range(first, first + 500), chance.integers(0, 41, 500)))
        assert len(table) > 1_950
        assert faults(table.sample(200)) == []
        table.verify()
