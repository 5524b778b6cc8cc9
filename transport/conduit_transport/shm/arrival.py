"""Judges what a holder sent before anything is made of it."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import stat

from conduit_store.errors import AttachRefused, LayoutMismatch
from conduit_transport.forks import Descriptor

from .handshake import Handshake, Reply, Status

__all__ = ["NoAnswer", "as_listener", "check_reply", "check_segment", "no_descriptors"]


class NoAnswer(Exception):
    """This try came to nothing, another may not."""


def check_reply(name: str, message: bytes, wanted: Handshake) -> Handshake:
    """What the holder offers, if that is what is `wanted` (whose sizes do not count).

    Raises:
        NoAnswer: the holder is busy.
        AttachRefused, LayoutMismatch: see `connect`.
    """
    reply = Reply.unpack(message)
    if reply is None:
        raise LayoutMismatch(
            f"the holder of '{name}' sent {len(message)} bytes that are no reply of a store. "
            f"Remove what listens there, or use another name"
        )
    if isinstance(reply, int):
        raise LayoutMismatch(
            f"the holder of store '{name}' speaks handshake version {reply}. Use one version of conduit "
            f"in all processes"
        )
    if reply.status is Status.BUSY:
        raise NoAnswer(f"the holder could not send: {reply.reason}")
    if reply.status is Status.FORBIDDEN:
        raise AttachRefused(f"the holder of store '{name}' refused: {reply.reason}. Run as the same user")
    offer = reply.offer
    ours, theirs = (
        (wanted.layout_version, wanted.fingerprint),
        (offer.layout_version, offer.fingerprint),
    )
    if reply.status is not Status.OK or ours != theirs:
        raise LayoutMismatch(
            f"store '{name}' has layout version {theirs[0]}, fingerprint {theirs[1]:#018x}; this process "
            f"has version {ours[0]}, "
            f"fingerprint {ours[1]:#018x}{reply.reason and f' ({reply.reason})'}. Use one version of "
            f"conduit in all processes"
        )
    return offer


def check_segment(name: str, which: str, fd: int, nbytes: int, access: int) -> None:
    """Accepts a sealed segment of at least `nbytes` bytes, opened for `access` (O_RDONLY or O_RDWR).

    Raises:
        LayoutMismatch: anything else.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size < nbytes:
        raise LayoutMismatch(
            f"the {which} segment of store '{name}' has {found.st_size} bytes, the holder said {nbytes}: "
            f"it is not what it says. Restart the store"
        )
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != access:
        raise LayoutMismatch(
            f"the {which} segment of store '{name}' came with the wrong access mode. Restart the store"
        )
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # EINVAL: no memfd
        seals = 0
    if not seals & fcntl.F_SEAL_SHRINK:
        raise LayoutMismatch(
            f"the {which} segment of store '{name}' is not sealed against shrinking, so reading it could "
            f"end in SIGBUS. Restart the store"
        )


def as_listener(name: str, descriptor: Descriptor) -> socket.socket:
    """Takes `descriptor` over as a listening Unix socket.

    Raises:
        LayoutMismatch: it is none; then it is closed.
    """
    fd = descriptor.detach()  # before the socket owns it: what is closed twice may be somebody else's by then
    try:
        listener = socket.socket(fileno=fd)
    except OSError as error:
        os.close(fd)
        raise LayoutMismatch(
            f"the holder of store '{name}' sent something that is no socket as its listener"
        ) from error
    if listener.family != socket.AF_UNIX or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise LayoutMismatch(f"the holder of store '{name}' sent a socket that does not listen")
    return listener


def no_descriptors(name: str) -> AttachRefused:
    """The error for EMFILE and for descriptors that the kernel dropped on delivery."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return AttachRefused(
        f"store '{name}' cannot be attached: this process has no descriptors left (limit {limit}). "
        f"Close some, or raise the limit (ulimit -n)"
    )
