"""Stores held by the test's own process, and impostors, for the tests of attaching."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from array import array
from collections.abc import Callable, Iterator

from conduit_store import segment
from conduit_transport import shm
from tests.shm_process import CONTROL_BYTES, FINGERPRINT, LAYOUT_VERSION
from tests.shm_support import TIMEOUT_S

DATA_BYTES = 1 << 20
HANDSHAKE = shm.Handshake(LAYOUT_VERSION, FINGERPRINT, CONTROL_BYTES, DATA_BYTES)


@contextlib.contextmanager
def served(
    name: str = "run1",
    handshake: shm.Handshake = HANDSHAKE,
    credentials: Callable[[socket.socket], shm.Peer] = shm.peer_credentials,
) -> Iterator[shm.Server]:
    """A store of 1 MiB, held by this process."""
    listener = shm.listen(name)
    control, data = segment.create("control", CONTROL_BYTES), segment.create("data", DATA_BYTES)
    os.pwrite(data, bytes(range(250)) * 4, 0)
    server = shm.Server(listener, control, data, handshake, credentials=credentials)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        os.close(control)
        os.close(data)
        shm.unlink(name)


def connect(
    name: str = "run1",
    version: int = LAYOUT_VERSION,
    fingerprint: int = FINGERPRINT,
    *,
    read_only: bool = False,
    timeout: float = TIMEOUT_S,
    credentials: Callable[[socket.socket], shm.Peer] = shm.peer_credentials,
) -> shm.Attached:
    return shm.connect(name, version, fingerprint, read_only=read_only, timeout=timeout, credentials=credentials)


@contextlib.contextmanager
def attached(name: str = "run1", *, read_only: bool = False) -> Iterator[shm.Attached]:
    received = connect(name, read_only=read_only)
    try:
        yield received
    finally:
        received.close()


@contextlib.contextmanager
def impostor(answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listens as `run1` and treats every client with `answer`."""
    listener = shm.listen("run1")
    done = os.eventfd(0, os.EFD_CLOEXEC)

    def serve() -> None:
        while True:
            ready, _, _ = select.select([listener.fileno(), done], [], [])
            if done in ready:
                return
            connection, _ = listener.accept()
            with connection:
                connection.setblocking(True)
                connection.recv(100)
                with contextlib.suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(done, 1)
        thread.join()
        os.close(done)
        listener.close()


def send(connection: socket.socket, message: bytes, fds: list[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    connection.sendmsg([message], ancillary)
