"""A process that holds or attaches a store's segments on command: `python -m tests.shm_process`.

One command a line on stdin, one answer a line on stdout, so that a test waits for what it needs and never
sleeps:

    create NAME BYTES    take the name, make two segments, serve        -> created | ErrorClass message
    attach NAME          attach for writing and serve                   -> attached SUM | ErrorClass message
    read NAME            attach read-only                               -> attached SUM | ErrorClass message
    limit N|max          allow N descriptors more than are open, or all -> ok
    fds                  -> count of open descriptors
    fork                 a child that lives until it is killed          -> pid of the child
    close                stop, close and unlink                         -> True | False (whether the path
    went) exit                 return from main without closing anything
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import sys
from collections.abc import Callable

from conduit_store import segment
from conduit_transport import shm

LAYOUT_VERSION = 7
FINGERPRINT = 0xC0FFEE0000000001
CONTROL_BYTES = 4096


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # less the listing's own


class Process:
    """The state between commands."""

    def __init__(self) -> None:
        self.name = ""
        self.fds: list[int] = []
        self.server: shm.Server | None = None

    def create(self, name: str, nbytes: str) -> str:
        listener = shm.listen(name)
        size = int(nbytes)
        control = segment.create(f"conduit-control-{name}", CONTROL_BYTES)
        data = segment.create(f"conduit-data-{name}", size)
        segment.reserve(data, 0, size, "data")
        with mmap.mmap(data, size) as view:
            view[:1000] = bytes(range(250)) * 4
        self._serve(name, listener, control, data, size)
        return "created"

    def attach(self, name: str) -> str:
        attached = self._connect(name, read_only=False)
        assert attached.listener is not None
        self._serve(name, attached.listener, attached.control_fd, attached.data_fd, attached.data_bytes)
        return f"attached {self._sum(attached)}"

    def read(self, name: str) -> str:
        attached = self._connect(name, read_only=True)
        self.fds = [attached.control_fd, attached.data_fd]
        return f"attached {self._sum(attached)}"

    def limit(self, spare: str) -> str:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft = hard if spare == "max" else open_descriptors() + int(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return "ok"

    def fork(self) -> str:
        there, child_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(child_end, b"x")  # the hooks that close what a child must not keep have run
            while True:
                signal.pause()
        os.read(there, 1)
        os.close(there)
        os.close(child_end)
        return str(pid)

    def close(self) -> str:
        if self.server is not None:
            self.server.stop()
        for fd in self.fds:
            os.close(fd)
        self.server, self.fds = None, []
        return str(bool(self.name) and shm.unlink(self.name))

    def _connect(self, name: str, *, read_only: bool) -> shm.Attached:
        return shm.connect(name, LAYOUT_VERSION, FINGERPRINT, read_only=read_only, timeout=10.0)

    def _serve(self, name: str, listener: object, control: int, data: int, nbytes: int) -> None:
        handshake = shm.Handshake(LAYOUT_VERSION, FINGERPRINT, CONTROL_BYTES, nbytes)
        self.name, self.fds = name, [control, data]
        self.server = shm.Server(listener, control, data, handshake)  # type: ignore[arg-type]
        self.server.start()

    @staticmethod
    def _sum(attached: shm.Attached) -> int:
        with mmap.mmap(attached.data_fd, attached.data_bytes, prot=mmap.PROT_READ) as view:
            return sum(view[:1000])


def main() -> None:
    process = Process()
    commands: dict[str, Callable[..., str]] = {
        "create": process.create,
        "attach": process.attach,
        "read": process.read,
        "limit": process.limit,
        "fds": lambda: str(open_descriptors()),
        "fork": process.fork,
        "close": process.close,
    }
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "exit":
            return
        try:
            answer = commands[command](*arguments)
        except Exception as error:
            answer = f"{type(error).__name__} {error}"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
