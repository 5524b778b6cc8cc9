"""What the tests of attaching share: a private runtime directory, child processes, a check for leaks."""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 20.0
SUM = sum(bytes(range(250)) * 4)  # of what `create` writes


class Child:
    """A `tests.shm_process`. `ask` sends a command and waits for its answer."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.shm_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._buffer = b""
        self.pid = self._process.pid

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_S)
            assert ready, f"child {self.pid} did not answer within {TIMEOUT_S} s"
            chunk = os.read(self._process.stdout.fileno(), 65536)
            assert chunk, f"child {self.pid} ended: {self._process.communicate()[1].decode()}"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def signal(self, number: int) -> None:
        """Sends a signal; after SIGKILL and SIGSTOP it has taken effect on return."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self._process.wait(TIMEOUT_S)
        elif number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def finish(self) -> str:
        """Lets it return from main; its stderr. Fails if it does not end, or not with 0."""
        self.tell("exit")
        _, errors = self._process.communicate(timeout=TIMEOUT_S)
        assert self._process.returncode == 0, errors.decode()
        return errors.decode()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@contextmanager
def children(count: int) -> Iterator[list[Child]]:
    """`count` processes that are ready for commands, killed at the end."""
    made = [Child() for _ in range(count)]
    try:
        for child in made:
            assert child.answer() == "ready"
        yield made
    finally:
        for child in made:
            child.end()


@contextmanager
def private_runtime_dir() -> Iterator[Path]:
    """A runtime directory of a test's own (short, for the limit on socket paths), for its children too."""
    path = Path(tempfile.mkdtemp(prefix="cdt-", dir="/tmp"))
    before = os.environ.get("CONDUIT_RUNTIME_DIR")
    os.environ["CONDUIT_RUNTIME_DIR"] = str(path)
    try:
        yield path
    finally:
        if before is None:
            del os.environ["CONDUIT_RUNTIME_DIR"]
        else:
            os.environ["CONDUIT_RUNTIME_DIR"] = before
        shutil.rmtree(path)


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fails if the block leaves a descriptor or a serving thread behind."""
    gc.collect()
    before = descriptors()
    yield
    serving = [thread for thread in threading.enumerate() if thread.name == "conduit-serve"]
    assert not serving
    assert sorted(descriptors() - before) == []


def descriptors() -> set[tuple[int, str, int]]:
    """The open descriptors: number, target, inode. What was closed and opened anew under the same number differs.

    Only anonymous inodes (epoll, eventfd) all share one: of these two under the same number look the same.
    """
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own, or just closed by another thread
            path = f"/proc/self/fd/{fd}"
            found.add((int(fd), os.readlink(path), os.stat(path).st_ino))
    return found


def holders_of(label: str) -> int:
    """How many descriptors and maps of segments with `label` in their name exist in all processes of "
    "this machine."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    count += label in os.readlink(f"/proc/{pid}/fd/{fd}")
        with suppress(OSError):
            count += Path(f"/proc/{pid}/maps").read_text().count(label)
    return count


@contextmanager
def no_new_descriptors() -> Iterator[None]:
    """Fails if the block leaves a descriptor behind, whatever else was closed meanwhile.

    A server of this process may still be closing some.
    """
    gc.collect()  # numbers that earlier tests left to the collector are free before, not while the block runs
    before = descriptors()
    yield
    deadline = time.monotonic() + TIMEOUT_S
    while (left := descriptors() - before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.001)
    assert sorted(left) == []
