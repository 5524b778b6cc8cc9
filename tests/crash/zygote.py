"""Processes for crash tests, made fast: a warm parent that has imported everything and attached to nothing.

`python -m tests.crash.zygote FD` serves the driver that started it: a request to fork carries one end of a
socket pair, over which the new process answers; others wait for a child that has ended. When the driver goes
away, however it does, the zygote kills what it forked, the stopped ones too, and ends.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Child", "Zygote"]

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1
_MAX_MESSAGE = 1 << 20


class Child:
    """A forked process, as the driver sees it."""

    def __init__(self, pid: int, link: socket.socket, zygote: Zygote) -> None:
        self.pid = pid
        self._link = link
        self._zygote = zygote
        self._pidfd = os.pidfd_open(pid)
        self.status: int | None = None

    def ask(self, timeout: float, **request: Any) -> Any:
        """Send a request and return the answer.

        Raises:
            TimeoutError: none came. RuntimeError: the process raised; with its traceback.
        """
        self._link.send(json.dumps(request).encode())
        return self.answer(timeout)

    def answer(self, timeout: float) -> Any:
        """Return the next message of the process; see `ask`."""
        ready, _, _ = select.select([self._link], [], [], timeout)
        if not ready:
            raise TimeoutError(f"process {self.pid} ({self.state()}) did not answer within {timeout} s")
        message = self._link.recv(_MAX_MESSAGE)
        if not message:
            raise RuntimeError(f"process {self.pid} ended without a word, status {self.wait(5.0)}")
        reply = json.loads(message)
        if "error" in reply:
            raise RuntimeError(f"process {self.pid}:\n{reply['error']}")
        return reply["result"]

    def has_word(self) -> bool:
        """Return whether a message waits, or the process has gone."""
        return bool(select.select([self._link], [], [], 0)[0])

    def state(self) -> str:
        """Return the letter that the kernel gives its state: R, S, D, T (stopped), Z (dead)."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return "Z"

    def wait(self, timeout: float) -> int | None:
        """Return the exit code (-9: killed) once it has ended, None if that takes longer."""
        if self.status is None and select.select([self._pidfd], [], [], timeout)[0]:
            self.status = os.waitstatus_to_exitcode(self._zygote.reap(self.pid))
        return self.status

    def signal(self, number: int) -> None:
        if self.status is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def hang_up(self) -> None:
        """Close the conversation: a process that waits for requests then ends."""
        self._link.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kill it if it lives, and let go of it."""
        self.signal(signal.SIGKILL)
        self.wait(20.0)
        self._link.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class Zygote:
    """The driver's end."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            environment = os.environ | {"CONDUIT_NATIVE": "test", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.zygote", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C goes to the driver, which then ends the others in order
            )
        self._call({"hello": True})

    def fork(self, **settings: Any) -> Child:
        """Start a process that runs `tests.crash.process.main(settings)`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = self._call({"fork": settings}, [theirs.fileno()])
        return Child(pid, ours, self)

    def reap(self, pid: int) -> int:
        """Return the wait status of a child that has ended."""
        return self._call({"reap": pid})

    def _call(self, request: dict[str, Any], fds: list[int] | None = None) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._link.sendmsg([json.dumps(request).encode()], rights)
        ready, _, _ = select.select([self._link], [], [], 60.0)
        message = self._link.recv(_MAX_MESSAGE) if ready else b""
        if not message:
            raise RuntimeError(f"the zygote {'ended' if ready else 'does not answer'}: see its output above")
        return int(message)

    def close(self) -> None:
        self._link.close()
        self._process.wait(20.0)


def _receive(link: socket.socket) -> tuple[dict[str, Any] | None, int]:
    message, rights, _, _ = link.recvmsg(_MAX_MESSAGE, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, data in rights:
        fds.frombytes(data)
    return (json.loads(message) if message else None), (fds[0] if fds else -1)


def _child(settings: dict[str, Any], link: socket.socket, parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    code = 1
    try:
        from tests.crash import process

        process.main(settings, link)
        code = 0
    except BaseException:
        link.send(json.dumps({"error": traceback.format_exc()}).encode())
    finally:
        os._exit(code)


def serve(link: socket.socket) -> None:
    """Answer the driver until it goes away."""
    from tests.crash import process  # noqa: F401  (everything is imported before the first fork)

    gc.collect()
    gc.freeze()  # collections in the children then look at their own objects only
    alive: set[int] = set()
    with suppress(ConnectionError):  # the driver went away while it was answered
        _answer_all(link, alive)
    for child in alive:
        os.kill(child, signal.SIGKILL)  # not reaped yet: the pid is still its own
    end = time.monotonic() + 10.0
    while alive and time.monotonic() < end:
        alive = {child for child in alive if os.waitpid(child, os.WNOHANG)[0] == 0}
        time.sleep(0.001)


def _answer_all(link: socket.socket, alive: set[int]) -> None:
    pid = os.getpid()
    while True:
        request, fd = _receive(link)
        if request is None:
            return
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            alive.discard(request["reap"])
            link.send(str(status).encode())
        elif "fork" in request:
            child = os.fork()
            if child == 0:
                link.close()
                _child(request["fork"], socket.socket(fileno=fd), pid)
            os.close(fd)
            alive.add(child)
            link.send(str(child).encode())
        else:
            link.send(b"0")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
