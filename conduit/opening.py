"""How a process comes to a store: segments that it makes or is given, and the server that hands them on to others."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, NamedTuple

from conduit.values import whole_number
from conduit_store import memory, segment
from conduit_store.native import native

if TYPE_CHECKING:
    from conduit_transport import shm

# conduit_transport.shm loads sockets: 25 ms that a bare import need not pay, hence it is imported where it is used.

__all__ = ["MAX_TABLES", "Opened", "attach", "create"]

MAX_TABLES = 64


class Opened(NamedTuple):
    """A store's descriptors, and the server that answers others, which nobody has started yet; none if read-only."""

    name: str
    control_fd: int
    data_fd: int
    server: shm.Server | None
    host_memory: int

    def abandon(self) -> None:
        """Let go of all of it."""
        from conduit_transport import shm

        if self.server is not None:
            self.server.stop()
            shm.unlink(self.name)  # only if nobody listens any more
        os.close(self.control_fd)
        os.close(self.data_fd)


def create(name: str, host_memory: str | int | None, max_processes: int) -> Opened:
    """See `Store.create`. Whoever attaches waits until the server is started."""
    from conduit_transport import shm

    segment.check_platform()
    asked = memory.available_bytes().bytes // 2 if host_memory is None else memory.parse_bytes(host_memory)
    max_processes = whole_number("max_processes", max_processes, 1, 65_536)
    asked = max(asked, 1 << 20)
    memory.check_fits(asked, f"host_memory of store {name!r}")
    fixed = native.fixed_control_bytes(max_processes, MAX_TABLES)
    listener = shm.listen(name)
    descriptors: list[int] = []
    try:
        # Virtual sizes: only what is reserved takes memory. The index of a table of tiny rows can outgrow them.
        control_bytes = fixed + 2 * asked + (64 << 20)
        descriptors.append(segment.create(f"conduit-{name}-control", control_bytes))
        descriptors.append(segment.create(f"conduit-{name}-data", asked))
        control_fd, data_fd = descriptors
        segment.reserve(control_fd, 0, fixed, f"control segment of store {name!r}")
        native.format_control(control_fd, control_bytes, asked, max_processes, MAX_TABLES, name)
        handshake = shm.Handshake(native.LAYOUT_VERSION, native.FINGERPRINT, control_bytes, asked)
        server = shm.Server(listener, control_fd, data_fd, handshake)
    except BaseException:
        listener.close()
        shm.unlink(name)
        for fd in descriptors:
            os.close(fd)
        raise
    return Opened(name, control_fd, data_fd, server, asked)


def attach(name: str, *, read_only: bool, timeout: float | None) -> Opened:
    """See `Store.attach`."""
    from conduit_transport import shm

    segment.check_platform()
    patience = math.inf if timeout is None else timeout
    arrived = shm.connect(name, native.LAYOUT_VERSION, native.FINGERPRINT, read_only=read_only, timeout=patience)
    server: shm.Server | None = None
    if arrived.listener is not None:
        handshake = shm.Handshake(native.LAYOUT_VERSION, native.FINGERPRINT, arrived.control_bytes, arrived.data_bytes)
        try:
            server = shm.Server(arrived.listener, arrived.control_fd, arrived.data_fd, handshake)
        except BaseException:
            arrived.listener.close()
            os.close(arrived.control_fd)
            os.close(arrived.data_fd)
            raise
    return Opened(name, arrived.control_fd, arrived.data_fd, server, arrived.data_bytes)
