"""Other processes for tests: `worker()` calls functions in an unrelated one, `forked` in a forked child."""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 60.0


def _send(file: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    file.write(struct.pack("=Q", len(data)) + data)
    file.flush()


def _receive(read: Callable[[int], bytes]) -> Any:
    (size,) = struct.unpack("=Q", read(8))
    return pickle.loads(read(size))


class Worker:
    """A process that runs module-level functions for the test, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.pid = self._process.pid

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        assert self._process.stdin is not None
        _send(self._process.stdin, (function, args))

    def result(self, timeout: float = TIMEOUT_S) -> Any:
        """What the started function returned; raises what it raised."""
        ok, value = _receive(lambda size: self._read(size, timeout))
        if not ok:
            raise value
        return value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        self.start(function, *args)
        return self.result()

    def kill(self) -> None:
        """SIGKILL; it is gone on return."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_S)

    def finish(self) -> str:
        """Let it leave by the normal way; what it wrote to stderr."""
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

    def _read(self, size: int, timeout: float) -> bytes:
        assert self._process.stdout is not None
        data = b""
        while len(data) < size:
            ready, _, _ = select.select([self._process.stdout], [], [], timeout)
            assert ready, f"worker {self.pid} did not answer within {timeout} s"
            chunk = os.read(self._process.stdout.fileno(), size - len(data))
            assert chunk, f"worker {self.pid} ended: {self._process.communicate()[1].decode()}"
            data += chunk
        return data


@contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    made = [Worker() for _ in range(count)]
    try:
        yield made
    finally:
        for worker in made:
            worker.end()


@contextmanager
def worker() -> Iterator[Worker]:
    with workers(1) as made:
        yield made[0]


def forked(function: Callable[[], Any]) -> Any:
    """Run `function` in a forked child; return what it returned, raise what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            try:
                answer = (True, function())
            except BaseException as error:
                answer = (False, error)
            with os.fdopen(writer, "wb") as file:
                _send(file, answer)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], TIMEOUT_S)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(reader, "rb") as file:
            data = file.read()
    finally:
        os.waitpid(pid, 0)
    assert data, "the forked child did not answer"
    ok, value = pickle.loads(data[8:])
    if not ok:
        raise value
    return value


def _serve() -> None:
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints goes to stderr, not among the answers
    while True:
        head = stdin.read(8)
        if not head:
            return
        function, args = pickle.loads(stdin.read(struct.unpack("=Q", head)[0]))
        try:
            answer = (True, function(*args))
        except Exception as error:
            answer = (False, error)
        _send(stdout, answer)


if __name__ == "__main__":
    _serve()
