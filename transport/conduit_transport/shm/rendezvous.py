"""Takes and frees a store's name: a listening Unix socket at the name's path.

A path outlives the processes that listened on it. It is stale when a connect is refused, which the kernel
says at once and only then; a holder that is stopped, or too busy to answer, is alive. Everything that
judges a path and then changes it does so with the directory's lock, so that two creators, or a creator and
a clean-up, never act on each other's half-done work.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conduit_store.errors import LockTimeout, NameTaken
from conduit_transport.forks import Descriptor, fork_guard, held, release
from conduit_transport.names import runtime_dir, socket_path

from .handshake import peer_credentials

__all__ = ["is_live", "listen", "open_socket", "unlink"]

_LOCK_TIMEOUT_S = 5.0
_LOCK_RETRY_S = 0.005
_BACKLOG = 256


def listen(name: str, *, lock_timeout_s: float = _LOCK_TIMEOUT_S) -> socket.socket:
    """Takes `name` and returns its listening socket: non-blocking, CLOEXEC, mode 0600. A stale path is
    replaced.

    It is closed in forked children, where it would keep the name alive with nobody serving.

    From here on the name is taken, and clients that connect wait until a `Server` answers. Of creators that
    race, exactly one gets the socket. To give the name back: close the socket, then `unlink`.

    Blocks for `lock_timeout_s` seconds at most, and that long only if another process was stopped while
    taking a name.

    Raises:
        ConfigError: name or path not allowed (see `names.socket_path`).
        NameTaken: a process listens there, or the path holds something that is not a socket; nothing was
            changed.
        LockTimeout: the directory's lock is held by another process; names it.
        OSError: the kernel refused (out of descriptors, disk full).
    """
    path = socket_path(name)
    with _directory_lock(lock_timeout_s):
        _make_room(name, path)
        with fork_guard:
            listener = held(open_socket())
        try:
            listener.bind(os.fspath(path))
            os.chmod(path, 0o600)
            listener.listen(_BACKLOG)
        except BaseException as error:
            listener.close()
            if not isinstance(error, FileExistsError):
                with suppress(OSError):
                    os.unlink(path)
            raise
    return listener


def is_live(name: str) -> bool:
    """Whether any process listens under `name`, stopped ones included. Does not block.

    Raises:
        ConfigError: as `names.socket_path`.
        OSError: out of descriptors.
    """
    return _holder(socket_path(name)) is not None


def unlink(name: str, *, lock_timeout_s: float = _LOCK_TIMEOUT_S) -> bool:
    """Removes the path of `name` if nobody listens there, and says whether it did.

    Whoever closes a store calls this after closing its own listener: while others hold the store, or when
    the name has been taken anew, the path stays. Blocks as `listen` does.

    Raises:
        ConfigError: as `names.socket_path`.
        LockTimeout: as `listen`.
        OSError: out of descriptors, or the path could not be removed.
    """
    path = socket_path(name)
    if not _is_socket(path):
        return False
    with _directory_lock(lock_timeout_s):
        if not _is_socket(path) or _holder(path) is not None:
            return False
        os.unlink(path)
        return True


def open_socket() -> socket.socket:
    """A Unix socket of the kind that stores use: packets (a message comes whole or not at all), "
    "non-blocking, CLOEXEC."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def _make_room(name: str, path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise NameTaken(
            f"store name '{name}' is blocked: '{path}' exists and is not a socket. Remove it, or use another name"
        )
    holder = _holder(path)
    if holder is not None:
        raise NameTaken(f"store '{name}' exists: {holder} listens on '{path}'. Attach to it, or use another name")
    os.unlink(path)


def _holder(path: Path) -> str | None:
    """Who listens on `path`, in words, or None if nobody does (or there is no such path)."""
    with open_socket() as probe:
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except BlockingIOError:
            return "a process with a full queue"
        except OSError as error:  # EPROTOTYPE, EACCES: somebody else's, not for us to touch
            return f"something else ({error.strerror})"
        return f"a process (socket made by pid {peer_credentials(probe).pid})"


@contextmanager
def _directory_lock(timeout_s: float) -> Iterator[None]:
    path = runtime_dir() / ".lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with fork_guard:
        lock = held(Descriptor(os.open(path, flags, 0o600)))
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise _lock_timeout(path, lock, timeout_s) from None
            time.sleep(_LOCK_RETRY_S)
        os.pwrite(lock.fileno(), b"%-10d" % os.getpid(), 0)  # only to be named in a message
        yield
    finally:
        release(lock)


def _lock_timeout(path: Path, lock: Descriptor, timeout_s: float) -> LockTimeout:
    owner = os.pread(lock.fileno(), 10, 0).decode(errors="replace").strip() or "unknown"
    return LockTimeout(
        f"lock '{path}' was not free within {timeout_s:g} s: last taken by pid {owner}. "
        f"If that process is stopped, let it go on or kill it"
    )


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
