"""For every test: a runtime directory that is the session's own, and a check that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leaks import belongings, left_behind

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell: tests of Ctrl-C, and the processes that they start, would never hear of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def session_runtime_dir() -> Iterator[Path]:
    """Names of stores lead into a directory of this session: short, for the limit on socket paths."""
    path = Path(tempfile.mkdtemp(prefix="cdt-", dir="/tmp"))
    before = os.environ.get("CONDUIT_RUNTIME_DIR")
    os.environ["CONDUIT_RUNTIME_DIR"] = str(path)
    yield path
    os.environ.pop("CONDUIT_RUNTIME_DIR")
    if before is not None:
        os.environ["CONDUIT_RUNTIME_DIR"] = before
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(session_runtime_dir: Path) -> Iterator[None]:
    """Fail a test that leaves a segment, a child process, a thread, a store's name or a descriptor behind."""
    before = belongings(session_runtime_dir)
    yield
    if left := left_behind(before, session_runtime_dir):
        pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)
