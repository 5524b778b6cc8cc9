"""Names taken again and again: races of creators, killed creators, collectors; nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conduit import gc
from conduit_transport import names, shm
from tests.shm_process import FINGERPRINT, LAYOUT_VERSION
from tests.shm_support import (
    ROOT,
    SUM,
    TIMEOUT_S,
    Child,
    children,
    holders_of,
    nothing_left,
    private_runtime_dir,
)

MIB = 1 << 20


@pytest.fixture(autouse=True)
def runtime_dir() -> Iterator[Path]:
    with private_runtime_dir() as path, nothing_left():
        yield path


def connect(name: str = "run1", timeout: float = TIMEOUT_S) -> None:
    shm.connect(name, LAYOUT_VERSION, FINGERPRINT, read_only=False, timeout=timeout).close()


def test_of_racing_creators_exactly_one_wins() -> None:
    """Round after round over the stale path that the last winner left."""
    with children(4) as contenders:
        for _ in range(6):
            for child in contenders:
                child.tell(f"create run1 {4096}")
            answers = [child.answer() for child in contenders]
            assert sorted(answer.split()[0] for answer in answers) == ["NameTaken"] * 3 + ["created"]
            connect()
            winner = answers.index("created")
            contenders[winner].signal(signal.SIGKILL)
            contenders[winner].end()
            contenders[winner] = Child()
            assert contenders[winner].answer() == "ready"


def test_creators_race_with_a_collector() -> None:
    """The collector never takes away a path that a creator has just made."""
    with children(2) as (first, second):
        done = threading.Event()

        def collect() -> None:
            while not done.is_set():
                gc.collect()

        collector = threading.Thread(target=collect)
        collector.start()
        for _ in range(50):
            for child in (first, second):
                child.tell("create run1 4096")
            answers = [child.answer() for child in (first, second)]
            assert sorted(answer.split()[0] for answer in answers) == ["NameTaken", "created"]
            connect()
            assert (first, second)[answers.index("created")].ask("close") in ("True", "False")
        done.set()
        collector.join()


def test_rounds_of_kill_and_create_again_leave_nothing(runtime_dir: Path) -> None:
    """C43: no memory, file or descriptor of a killed creator stays, and a live reader is not pulled down."""
    label = f"conduit-data-leak{os.getpid()}"
    name = label.removeprefix("conduit-data-")
    with children(1) as (reader,):
        for round_ in range(10):
            with children(1) as (creator,):
                assert creator.ask(f"create {name} {16 * MIB}") == "created"
                if round_ == 0:
                    assert reader.ask(f"read {name}") == f"attached {SUM}"
                connect(name)
                creator.signal(signal.SIGKILL)
            assert holders_of(label) == 1  # the reader's, of the first round
        assert sorted(os.listdir(runtime_dir)) == [".lock", f"{name}.sock"]
        assert gc.collect(dry_run=True) == [name]
        assert gc.collect() == [name]
        assert os.listdir(runtime_dir) == [".lock"]
        assert reader.finish() == ""
        assert holders_of(label) == 0


def test_collect_leaves_live_names_alone() -> None:
    with children(2) as (killed, live):
        assert killed.ask("create a 4096") == "created"
        assert live.ask("create b 4096") == "created"
        killed.signal(signal.SIGKILL)
        assert gc.collect(dry_run=True) == ["a"]
        assert names.list_names() == ["a", "b"]
        assert gc.collect() == ["a"]
        assert gc.collect() == []
        connect("b")


def test_an_unrelated_program_started_by_a_holder_keeps_nothing() -> None:
    """C44: a child made by exec, here with every descriptor that may pass, holds neither segments nor "
    "the name."""
    program = f"""
import subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.shm_process import Process
process = Process()
process.create("exec", "65536")
no = subprocess.DEVNULL
sleeper = subprocess.Popen(["sleep", "60"], close_fds=False, stdin=no, stdout=no)
print(sleeper.pid, process.close(), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        pid, unlinked = holder.stdout.readline().split()
        try:
            assert unlinked == b"True"
            for fd in os.listdir(f"/proc/{int(pid)}/fd"):
                with suppress(FileNotFoundError):
                    assert "conduit" not in os.readlink(f"/proc/{int(pid)}/fd/{fd}")
            assert holders_of("conduit-data-exec") == 0
        finally:
            os.kill(int(pid), signal.SIGKILL)
            holder.communicate()
