"""Shared memory segments: sealed memfds, reserved beforehand so that a write always finds its page.

A memfd needs no room in /dev/shm and no name, and is gone with its last holder. `system` says whether the
system has what this needs.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable

from .errors import ConfigError, OutOfHostMemory, UnsupportedPlatform
from .memory import Headroom, available_bytes, check_fits
from .system import check_platform

__all__ = ["allocated_bytes", "check_platform", "create", "reopen", "reserve"]

SLICE_BYTES = 64 << 20  # reserved at once, between two looks at the headroom
_MAX_LABEL_BYTES = 249  # the kernel's limit
# What fallocate and ftruncate say where there is no room: of memory, of a small mount, of an address space,
# of `ulimit -f`.
_NO_ROOM = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def create(label: str, size: int) -> int:
    """Return the descriptor of a new segment of `size` bytes, zero, whose size no holder can ever change.

    No page is reserved yet. `label` shows in /proc/<pid>/maps. The descriptor is closed on exec; closing it
    is the caller's.

    Raises:
        ConfigError: size < 1, or a label that is longer than 249 bytes or holds a NUL.
        OutOfHostMemory: `size` is above the process's file size limit.
        OSError: no descriptor is left (EMFILE, ENFILE).
    """
    if size < 1:
        raise ConfigError(f"segment {label!r} of {size:,} bytes: the size must be at least 1")
    if len(os.fsencode(label)) > _MAX_LABEL_BYTES or "\0" in label:
        raise ConfigError(f"segment label {label!r} must be at most {_MAX_LABEL_BYTES} bytes without NUL. Shorten it")
    fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except (OSError, OverflowError) as error:
        os.close(fd)
        if isinstance(error, OSError) and error.errno not in (*_NO_ROOM, errno.EINVAL):
            raise
        raise OutOfHostMemory(
            f"segment {label!r} of {size:,} bytes is above what a file may have here ({error}). Ask for "
            "less, or raise `ulimit -f`"
        ) from error
    return fd


def reserve(
    fd: int, offset: int, length: int, what: str, *, headroom: Callable[[], Headroom] = available_bytes
) -> None:
    """Reserve the pages of [offset, offset + length) of a segment, looking at the headroom before each slice.

    The range must be a hole so far: on any failure, Ctrl-C included, all of it is made a hole again, data and
    all. Takes about 0.1 s a GiB and lets other threads run. `what` names the memory in messages.

    Raises:
        ConfigError: the offset is no multiple of the page size, the range is not inside the segment, or the
            descriptor is read-only.
        OutOfHostMemory: it does not fit, or stopped fitting halfway; says what was asked, what is left and by
            which limit.
    """
    size = os.fstat(fd).st_size
    if offset % mmap.PAGESIZE or offset < 0 or length < 0 or offset + length > size:
        raise ConfigError(
            f"cannot reserve bytes [{offset:,}, {offset + length:,}) for {what}: a range begins at a "
            f"multiple of {mmap.PAGESIZE:,} and lies within the {size:,} bytes of the segment"
        )
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise ConfigError(f"cannot reserve {what}: descriptor {fd} is read-only. Use segment.reopen(fd, True)")
    end = offset + length
    reached = offset
    try:
        for start in range(offset, end, SLICE_BYTES):
            rest = what if start == offset else f"the rest of {what} ({length:,} bytes)"
            check_fits(end - start, rest, headroom())
            reached = min(start + SLICE_BYTES, end)  # before the call: Ctrl-C may come right after it
            _allocate(fd, start, reached, what)
    except BaseException:
        _punch(fd, offset, reached)
        raise


def reopen(fd: int, writable: bool) -> int:
    """Return a new descriptor of the same segment with an open file description, and so locks, of its own.

    With `writable` False the kernel refuses every writable map of it. Closed on exec; closing it is the
    caller's.

    Raises:
        UnsupportedPlatform: /proc is not mounted. OSError: no descriptor is left, or `fd` is none.
    """
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{fd}", flags)
    except FileNotFoundError as error:
        os.fstat(fd)  # a bad descriptor is the caller's fault, and says so
        raise UnsupportedPlatform(f"/proc/self/fd/{fd} does not exist: /proc is not mounted. Mount it") from error


def allocated_bytes(fd: int) -> int:
    """Return how many bytes of the segment have memory behind them."""
    return os.fstat(fd).st_blocks * 512


def _allocate(fd: int, start: int, stop: int, what: str) -> None:
    try:
        os.posix_fallocate(fd, start, stop - start)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise OutOfHostMemory(
            f"{what}: the kernel refused {stop - start:,} bytes at offset {start:,} ({error.strerror}); "
            f"{available_bytes().bytes:,} bytes seemed available. Ask for less, or free memory"
        ) from error


def _punch(fd: int, start: int, stop: int) -> None:
    # Python has no fallocate with flags; MADV_REMOVE of a shared map is the same hole.
    if stop > start:
        with mmap.mmap(fd, stop - start, offset=start) as view:
            view.madvise(mmap.MADV_REMOVE)
