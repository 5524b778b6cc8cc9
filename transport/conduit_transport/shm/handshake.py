"""The two messages by which a process attaches, and the decision who is let in. No I/O but reading a peer's
credentials.

Both are single packets of a SOCK_SEQPACKET socket in native byte order (both ends are on one machine):

    Hello  byte 0       4          6           8                12               20
           | "CNDT"     | wire u16 | flags u16 | layout u32     | fingerprint u64 |
    Reply  byte 0       4          6            8               12               20                 28
    36
           | "CNDT"     | wire u16 | status u16 | layout u32    | fingerprint u64 | control_bytes u64 |
           data_bytes u64 | reason, UTF-8

Changing either is a new `_WIRE`; the first six bytes stay, so that builds of any age can tell each other
apart.
"""

from __future__ import annotations

import enum
import os
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from conduit_store.errors import ConfigError

__all__ = [
    "HELLO_BYTES",
    "REPLY_MAX_BYTES",
    "Credentials",
    "Handshake",
    "Hello",
    "Peer",
    "Reply",
    "Status",
    "decide",
    "peer_credentials",
]

_MAGIC = b"CNDT"
_WIRE = 1
_HELLO = struct.Struct("=4sHHIQ")
_REPLY = struct.Struct("=4sHHIQQQ")
_UCRED = struct.Struct("=iII")
_READ_ONLY = 1
_REASON_MAX_BYTES = 512
HELLO_BYTES = _HELLO.size
REPLY_MAX_BYTES = _REPLY.size + _REASON_MAX_BYTES


class Status(enum.IntEnum):
    """What the holder says."""

    OK = 0
    FORBIDDEN = 1
    MISMATCH = 2  # another layout or another wire version
    GARBLED = 3
    BUSY = 4  # ask again


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel reports it. `pid` is 0 where it lies outside our pid "
    "namespace."""

    pid: int
    uid: int
    gid: int


Credentials = Callable[[socket.socket], Peer]


def peer_credentials(connection: socket.socket) -> Peer:
    """Who is at the other end: at the holder, who connected; at the client, who made the listener.

    Raises:
        OSError: not a connected Unix socket.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return Peer(*_UCRED.unpack(raw))


@dataclass(frozen=True, slots=True)
class Handshake:
    """What a holder has: layout version (32 bits), fingerprint of its sizes (64 bits), bytes of both
    segments.

    Raises:
        ConfigError: a value outside its bits.
    """

    layout_version: int
    fingerprint: int
    control_bytes: int
    data_bytes: int

    def __post_init__(self) -> None:
        for field, bits in (
            ("layout_version", 32),
            ("fingerprint", 64),
            ("control_bytes", 63),
            ("data_bytes", 63),
        ):
            value = getattr(self, field)
            if not 0 <= value < 1 << bits:
                raise ConfigError(f"{field} {value} is outside 0 .. 2**{bits} - 1")


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client says of itself."""

    layout_version: int
    fingerprint: int
    read_only: bool

    def pack(self) -> bytes:
        return _HELLO.pack(_MAGIC, _WIRE, _READ_ONLY * self.read_only, self.layout_version, self.fingerprint)

    @classmethod
    def unpack(cls, message: bytes) -> Hello | int | None:
        """The hello; or, from a build that speaks another wire version, that version; or None for "
        "anything else."""
        wire = _wire_version(message)
        if wire is not None and wire != _WIRE:
            return wire
        if wire is None or len(message) != _HELLO.size:
            return None
        _, _, flags, layout_version, fingerprint = _HELLO.unpack(message)
        return cls(layout_version, fingerprint, bool(flags & _READ_ONLY))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a holder answers. Descriptors come with it only if `status` is OK."""

    status: Status
    offer: Handshake
    reason: str = ""

    def pack(self) -> bytes:
        offer = self.offer
        head = _REPLY.pack(
            _MAGIC,
            _WIRE,
            self.status,
            offer.layout_version,
            offer.fingerprint,
            offer.control_bytes,
            offer.data_bytes,
        )
        return head + self.reason.encode(errors="replace")[:_REASON_MAX_BYTES]

    @classmethod
    def unpack(cls, message: bytes) -> Reply | int | None:
        """As `Hello.unpack`."""
        wire = _wire_version(message)
        if wire is not None and wire != _WIRE:
            return wire
        if wire is None or len(message) < _REPLY.size:
            return None
        _, _, status, *numbers = _REPLY.unpack_from(message)
        try:
            return cls(Status(status), Handshake(*numbers), message[_REPLY.size :].decode(errors="replace"))
        except ValueError:
            return None


def decide(message: bytes, peer: Peer, offer: Handshake) -> tuple[Reply, bool]:
    """The answer to a client's message, and whether it asked for read-only. Pure but for this process's "
    "own uid."""
    own = os.geteuid()
    if peer.uid not in (own, 0):
        return Reply(Status.FORBIDDEN, offer, f"the store belongs to uid {own}, uid {peer.uid} asked"), False
    hello = Hello.unpack(message)
    if hello is None:
        return Reply(Status.GARBLED, offer, f"no hello in these {len(message)} bytes"), False
    if isinstance(hello, int):
        return Reply(Status.MISMATCH, offer, f"handshake version {_WIRE} here, {hello} there"), False
    theirs = (hello.layout_version, hello.fingerprint)
    if theirs != (offer.layout_version, offer.fingerprint):
        return Reply(Status.MISMATCH, offer), hello.read_only
    return Reply(Status.OK, offer), hello.read_only


def _wire_version(message: bytes) -> int | None:
    if len(message) < 6 or message[:4] != _MAGIC:
        return None
    return int.from_bytes(message[4:6], sys.byteorder)
