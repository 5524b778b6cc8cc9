"""Read-only attaches: they read everything, change nothing, and a stray write faults in the process that makes it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conduit import ReadOnlyStore, Store, StoreNotFound, Table
from tests.entries import STEP, steps
from tests.store_support import column_of, contents, fresh_store, keys_of, plain_table, prioritized, unchanged
from tests.waiting import until

WRITES: dict[str, Callable[[Store], Any]] = {
    "writer": lambda s: s["t"].writer(),
    "vector writer": lambda s: s["e"].writer(2),
    "extend": lambda s: s["t"].extend({"x": np.arange(3)}),
    "clear": lambda s: s["t"].clear(),
    "configure": lambda s: s["t"].reconfigure(alpha=0.5),
    "create_table": lambda s: s.create_table("more", STEP, 8),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_changes_a_table_is_refused(write: str) -> None:
    with fresh_store() as store, Store.attach(store.name, read_only=True) as reader:
        table = plain_table(store, 8, sampler=prioritized())
        table.extend({"x": np.arange(3)})
        store.create_table("e", STEP, 8)
        assert reader.read_only
        with unchanged(table), pytest.raises(ReadOnlyStore, match=r"attached read-only: attach with read_only=False"):
            WRITES[write](reader)
        assert store.tables() == ["t", "e"]


def test_everything_can_be_read() -> None:
    with fresh_store() as store, Store.attach(store.name, read_only=True) as reader:
        table, seen = plain_table(store, 8, sampler=prioritized()), None
        table.extend({"x": np.arange(5)})
        seen = reader["t"]
        assert len(seen) == 5
        assert column_of(seen).tolist() == [0, 1, 2, 3, 4]
        assert set(seen.sample(100)["x"]) <= set(range(5))
        assert seen.rows(keys_of(table))["x"].tolist() == [0, 1, 2, 3, 4]
        assert contents(seen) == contents(table)
        assert reader.metrics().tables["t"].rows == 5
        seen.verify()
        table.extend({"x": np.arange(5, 8)})
        assert len(seen) == 8


def test_priorities_may_be_updated_for_they_lie_in_the_index() -> None:
    with fresh_store() as store, Store.attach(store.name, read_only=True) as learner:
        table = plain_table(store, 8, sampler=prioritized())
        table.extend({"x": np.arange(4)})
        batch = learner["t"].sample(16)
        result = learner["t"].update_priorities(batch.keys, np.full(16, 5.0))
        assert result.applied == 16
        assert (table.priorities(batch.keys) == 5).all()
        table.verify()


def _stray_write(table: Table) -> None:
    view = table.blocks()[0].to_arrow()["x"].to_numpy()
    ctypes.memset(view.__array_interface__["data"][0], 7, 8)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_stray_write_faults_only_where_the_store_is_read_only(read_only: bool) -> None:
    with fresh_store() as store, Store.attach(store.name, read_only=read_only) as other:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(4)})
        other["t"].sample(1)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            try:
                _stray_write(other["t"])
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if read_only:
            assert os.WIFSIGNALED(status)
            assert os.WTERMSIG(status) == signal.SIGSEGV
            assert column_of(table).tolist() == [0, 1, 2, 3]
        else:  # what a read-only attach guards against
            assert status == 0
            assert column_of(table)[0] == 0x0707070707070707
        until(lambda: store.metrics().processes == 2)


def test_the_kernel_gives_no_writable_map_of_the_rows() -> None:
    with fresh_store() as store, Store.attach(store.name, read_only=True) as reader:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(reader._data_fd, b"x", 0)
        assert os.get_blocking(store._data_fd)


def test_a_reader_does_not_answer_newcomers() -> None:
    with fresh_store() as store, Store.attach(store.name, read_only=True) as reader:
        plain_table(store, 8).extend({"x": np.arange(4)})
        table = reader["t"]
        store.close()
        assert column_of(table).tolist() == [0, 1, 2, 3]
        with pytest.raises(StoreNotFound):
            Store.attach(store.name)


def test_read_only_and_writable_side_by_side() -> None:
    with (
        fresh_store() as store,
        Store.attach(store.name, read_only=True) as reader,
        Store.attach(store.name) as writer,
    ):
        store.create_table("t", STEP, 8)
        writer["t"].extend(steps((3,)))
        assert len(reader["t"]) == 3
        assert repr(reader).startswith(f"<Store '{store.name}' 1 tables")
