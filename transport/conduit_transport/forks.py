"""Descriptors that a forked child must not keep.

A fork copies every descriptor. A copied listener would make a dead store look alive (its socket still
accepts, nobody serves), and copied segments would hold memory. What is `held` here is closed in the child
before `os.fork` returns there. Forks made outside Python's own calls run no hooks and are not covered;
children made by exec are, by CLOEXEC.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar
from weakref import WeakSet

__all__ = ["Closable", "Descriptor", "fork_guard", "held", "release", "unguarded"]


class Closable(Protocol):
    """Anything with a `close` that may be called twice."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

# Taken around "the kernel made a descriptor, we note it", so that no fork falls in between. Never held
# across a wait: a fork waits for it.
fork_guard = threading.RLock()
_held: WeakSet[Closable] = WeakSet()  # what is dropped unclosed is not kept alive by this


class Descriptor:
    """Owns one raw descriptor; `close` closes it once, from whichever thread comes first."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor, or -1 once closed."""
        return self._fd

    def detach(self) -> int:
        """Gives the descriptor to the caller, who closes it from now on."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        fd = self.detach()
        if fd >= 0:
            os.close(fd)


def held(resource: T) -> T:
    """Notes `resource` for closing in forked children, and returns it. Call with `fork_guard` taken "
    "around its making."""
    _held.add(resource)
    return resource


def release(resource: Closable) -> None:
    """Closes `resource` and forgets it. Harmless when done already, also in a forked child."""
    with fork_guard:
        _held.discard(resource)
        resource.close()


def unguarded(call: Callable[[], None]) -> None:
    """Calls `call`, which may wait for threads that need `fork_guard`: in a thread of its own where this one holds it.

    For finalisers: a collection may begin anywhere, also between taking the guard and giving it back.
    """
    if fork_guard._is_owned():  # type: ignore[attr-defined]  # what threading.Condition asks its locks
        threading.Thread(target=call, name="conduit-release").start()
    else:
        call()


def _close_in_child() -> None:
    try:
        for resource in list(_held):
            with suppress(OSError):
                resource.close()
        _held.clear()
    finally:
        fork_guard.release()


os.register_at_fork(before=fork_guard.acquire, after_in_parent=fork_guard.release, after_in_child=_close_in_child)
