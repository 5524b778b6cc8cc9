"""A creator of a table killed before it is published: what it had reserved is given back by who comes next."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import conduit
from conduit_store import segment
from tests.crash import rows
from tests.store_support import fresh_store, plain_table

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[2]
_CREATOR = """
import os, sys
os.environ["CONDUIT_NATIVE"] = "test"
import conduit
from conduit_store.native import native
from tests.crash import rows
store = conduit.Store.attach(sys.argv[1])
native.failpoint_arm(sys.argv[2], "kill", int(sys.argv[3]))
store.create_table("doomed", **rows.TABLES["episodic"])
"""


def _allocated(store: conduit.Store) -> int:
    return segment.allocated_bytes(store._control_fd) + segment.allocated_bytes(store._data_fd)


def _attach(store: conduit.Store) -> None:
    conduit.Store.attach(store.name).close()


def _create(store: conduit.Store) -> None:
    with pytest.raises(conduit.NameTaken):
        plain_table(store, 8)


@pytest.mark.parametrize(
    ("point", "nth"),
    [("create_reserving", 2), ("create_reserved", 1), ("create_formatted", 1)],
)
@pytest.mark.parametrize("come", [_attach, conduit.Store.metrics, _create], ids=["attach", "metrics", "create"])
def test_what_a_killed_creator_had_reserved(point: str, nth: int, come: Callable[[conduit.Store], object]) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": [1, 2, 3]})
        before = _allocated(store)
        command = [sys.executable, "-c", _CREATOR, store.name, point, str(nth)]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert _allocated(store) > before
        come(store)
        assert _allocated(store) == before
        assert store.tables() == ["t"]
        table.verify()
        assert len(table) == 3
        made = store.create_table("doomed", **rows.TABLES["episodic"])
        made.verify()


def test_a_creator_at_work_is_left_alone() -> None:
    """One stopped in the middle holds the directory's lock: who attaches meanwhile neither waits nor takes anything."""
    with fresh_store() as store:
        plain_table(store, 8)
        program = _CREATOR.replace('"kill"', '"stop"')
        command = [sys.executable, "-c", program, store.name, "create_formatted", "1"]
        with subprocess.Popen(command, cwd=ROOT) as creator:
            status = Path(f"/proc/{creator.pid}/stat")
            while status.read_text().rpartition(")")[2].split()[0] != "T":
                assert creator.poll() is None
            reserved = _allocated(store)
            _attach(store)
            assert store.metrics().reserved_bytes == _allocated(store) == reserved
            creator.send_signal(signal.SIGCONT)
            assert creator.wait(20) == 0
        assert store.tables() == ["t", "doomed"]
        store["doomed"].verify()
