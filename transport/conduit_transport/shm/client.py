"""Asks a holder of a store for its descriptors."""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
import time
from array import array
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from conduit_store import segment
from conduit_store.errors import AttachRefused, AttachTimeout, ConfigError, LayoutMismatch, StoreNotFound
from conduit_transport.forks import Descriptor, fork_guard, held, release
from conduit_transport.names import list_names, socket_path

from .arrival import NoAnswer, as_listener, check_reply, check_segment, no_descriptors
from .handshake import REPLY_MAX_BYTES, Credentials, Handshake, Hello, peer_credentials
from .rendezvous import is_live, open_socket

__all__ = ["Attached", "connect"]

# Doubles with each try: a connection that a stalled holder took is given up, and another holder may take
# the next.
_FIRST_PATIENCE_S = 0.25
_PAUSE_S = 0.01
_MAX_FDS = 8  # more than ever come, so that unexpected ones are seen and closed
_LISTED_NAMES = 10


@dataclass(frozen=True, slots=True)
class Attached:
    """What an attached process received; all of it is the caller's to close.

    `control_fd` is a file description of the process's own (locks on it are its alone). After a read-only
    attach `data_fd` is open for reading only and `listener` is None. A segment may be larger than its bytes
    here say, never smaller, and cannot shrink.

    In a forked child the listener is closed; the two segments are the caller's to close there too.
    """

    control_fd: int
    data_fd: int
    listener: socket.socket | None
    control_bytes: int
    data_bytes: int

    def close(self) -> None:
        """Closes everything. To be called once, and not after a `Server` took the listener over."""
        os.close(self.control_fd)
        os.close(self.data_fd)
        if self.listener is not None:
            self.listener.close()


def connect(
    name: str,
    handshake_version: int,
    fingerprint: int,
    *,
    read_only: bool,
    timeout: float,
    credentials: Credentials = peer_credentials,
) -> Attached:
    """Receives the segments of the store `name` from whichever of its holders answers first.

    `read_only` guards against mistakes, not against malice: a process of the same user could open the
    segment anew.

    Blocks for `timeout` seconds at most: while every holder is stopped, busy or still making the store, it
    asks again. Signals are handled meanwhile; an exception from a handler (Ctrl-C) while it waits leaves
    nothing open. Callable from any thread.

    Raises:
        ConfigError: name, path, `handshake_version` or `fingerprint` not allowed, or `timeout` negative or
            NaN.
        StoreNotFound: nobody listens under that name; says which names there are.
        AttachTimeout: holders live, but none answered in time.
        AttachRefused: another user's store, or no descriptors left in this process to receive it.
        LayoutMismatch: a holder of another build, something that is no store, or segments that are not what
            was said.
    """
    if not timeout >= 0:
        raise ConfigError(f"timeout {timeout} s is not allowed: give 0 or more seconds")
    wanted = Handshake(handshake_version, fingerprint, 0, 0)
    path = socket_path(name)
    deadline = time.monotonic() + timeout
    patience = _FIRST_PATIENCE_S
    reasons: dict[str, None] = {}  # distinct, in order
    for tries in itertools.count(1):
        remaining = max(0.0, deadline - time.monotonic())
        try:
            return _try(name, path, wanted, read_only, min(patience, remaining), credentials)
        except NoAnswer as reason:
            reasons[str(reason)] = None
            if deadline - time.monotonic() <= _PAUSE_S:  # too little for another try to say anything new
                raise AttachTimeout(
                    f"no holder of store '{name}' answered within {timeout:g} s ({tries} tries: "
                    f"{'; '.join(reasons)}). "
                    f"Its processes may be stopped or still starting: look at them, or give a longer timeout"
                ) from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise no_descriptors(name) from error
            raise
        patience *= 2
        time.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def _try(
    name: str, path: Path, wanted: Handshake, read_only: bool, patience_s: float, credentials: Credentials
) -> Attached:
    hello = Hello(wanted.layout_version, wanted.fingerprint, read_only)
    with ExitStack() as received:
        with fork_guard:
            connection = held(open_socket())
            received.callback(release, connection)
        _dial(connection, name, path)
        holder = credentials(connection)
        if holder.uid not in (os.geteuid(), 0):
            raise AttachRefused(
                f"store '{name}' was made by uid {holder.uid} (pid {holder.pid}), this process runs as "
                f"uid {os.geteuid()}. "
                f"Run as the same user"
            )
        try:
            connection.send(hello.pack(), socket.MSG_NOSIGNAL)
            if not _readable(connection, patience_s):
                raise NoAnswer(f"connected to a socket made by pid {holder.pid}, no answer")
            message, descriptors, truncated = _receive(connection, received)
        except (ConnectionError, BlockingIOError) as error:
            raise NoAnswer("the holder went away") from error
        offer = check_reply(name, message, wanted)
        if truncated:
            raise no_descriptors(name)
        return _unwrap(name, descriptors, offer, read_only, received)


def _dial(connection: socket.socket, name: str, path: Path) -> None:
    try:
        connection.connect(os.fspath(path))
    except FileNotFoundError:
        raise StoreNotFound(_not_found(name, path)) from None
    except ConnectionRefusedError:
        raise StoreNotFound(
            f"store '{name}' is gone: '{path}' is only the name that its last process left when it was killed, and its "
            "memory went with that process. Create the store again, which takes the name over (Store.open_or_create, "
            "Store.restore from a checkpoint); `conduit gc` removes such names"
        ) from None
    except BlockingIOError:
        raise NoAnswer("the queue of its socket is full") from None
    except PermissionError as error:
        raise AttachRefused(f"no permission to connect to store '{name}' at '{path}'. Run as its user") from error
    except OSError as error:
        if error.errno != errno.EPROTOTYPE:
            raise
        raise LayoutMismatch(f"'{path}' leads to something that is no store. Remove it, or use another name") from error


def _readable(connection: socket.socket, patience_s: float) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(patience_s * 1000))


def _receive(connection: socket.socket, received: ExitStack) -> tuple[bytes, list[Descriptor], bool]:
    """The reply, the descriptors that came with it (closed by `received`), and whether some did not fit "
    "in this process."""
    size = socket.CMSG_SPACE(_MAX_FDS * array("i").itemsize)
    with fork_guard:
        message, ancillary, flags, _ = connection.recvmsg(REPLY_MAX_BYTES, size, socket.MSG_CMSG_CLOEXEC)
        descriptors = [held(Descriptor(fd)) for fd in _carried(ancillary)]
        for descriptor in descriptors:
            received.callback(release, descriptor)
    if not message:
        raise NoAnswer("the holder hung up")
    return message, descriptors, bool(flags & socket.MSG_CTRUNC)


def _carried(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds.tolist()


def _unwrap(
    name: str, descriptors: list[Descriptor], offer: Handshake, read_only: bool, received: ExitStack
) -> Attached:
    expected = 2 if read_only else 3
    if len(descriptors) != expected:
        raise LayoutMismatch(f"the holder of store '{name}' sent {len(descriptors)} descriptors, expected {expected}")
    control, data, *rest = descriptors
    check_segment(name, "control", control.fileno(), offer.control_bytes, os.O_RDWR)
    check_segment(name, "data", data.fileno(), offer.data_bytes, os.O_RDONLY if read_only else os.O_RDWR)
    with fork_guard:
        # What came is the holder's description, shared with all its clients: a lock on it would be
        # everybody's.
        own = held(Descriptor(segment.reopen(control.fileno(), writable=True)))
        received.callback(release, own)
    listener = as_listener(name, rest[0]) if rest else None
    return Attached(own.detach(), data.detach(), listener, offer.control_bytes, offer.data_bytes)


def _not_found(name: str, path: Path) -> str:
    try:
        others = [other for other in list_names() if is_live(other)]
    except OSError:
        others = []
    listed = ", ".join(others[:_LISTED_NAMES]) + (", ..." if len(others) > _LISTED_NAMES else "")
    return (
        f"no process holds a store '{name}' (looked at '{path}'; stores here: {listed or 'none'}). "
        f"Create it first, or set CONDUIT_RUNTIME_DIR to what its creator uses"
    )
