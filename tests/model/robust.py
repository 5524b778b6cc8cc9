"""What the kernel gives the protocol: a robust mutex, and a byte lock that dies with its process."""

from __future__ import annotations

from typing import Protocol

__all__ = ["ORPHAN", "UNLOCKED", "Locked", "orphan", "take", "unlock"]

UNLOCKED, ORPHAN = -1, -2  # ORPHAN: the holder died in there, the next one is told so (EOWNERDEAD)


class Locked(Protocol):
    """A world with the index lock of one table."""

    lock: int  # the holder's place, UNLOCKED or ORPHAN


def take(w: Locked, me: int) -> bool:
    """Take the lock if it can be had. Whoever takes an orphan must have run `recover` before it relies on anything."""
    if w.lock >= 0:
        return False
    w.lock = me
    return True


def unlock(w: Locked, me: int) -> None:
    assert w.lock == me
    w.lock = UNLOCKED


def orphan(w: Locked, me: int) -> None:
    """The kernel's part in the death of `me`."""
    if w.lock == me:
        w.lock = ORPHAN
