"""Whether this system has what shared segments and their protocol need."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import struct
import sys
from collections.abc import Callable

from .errors import UnsupportedPlatform

__all__ = ["check_platform"]

_MIN_KERNEL = (5, 14)  # MADV_POPULATE_WRITE
_FIRST_WSL2 = (4, 19)
_MADV_POPULATE_WRITE = 23  # not yet in the mmap module


def check_platform(
    system: str = sys.platform, release: str | None = None, *, probe: Callable[[], None] | None = None
) -> None:
    """Return if stores can work here: Linux 5.14 or later with memfds, seals, OFD locks and /proc.

    `system`, `release` and `probe` replace sys.platform, the kernel's release and the try-out of its calls.
    WSL 2 runs a Linux kernel and is judged by it.

    Raises:
        UnsupportedPlatform: names the system, or what the kernel lacks.
    """
    if system != "linux":
        name = {"darwin": "macOS", "win32": "Windows", "cygwin": "Cygwin"}.get(system, system)
        raise UnsupportedPlatform(
            f"Conduit's stores need Linux 5.14 or later; this is {name}. Run in a Linux container or virtual machine"
        )
    release = os.uname().release if release is None else release
    if "microsoft" in release.lower() and _version(release) < _FIRST_WSL2:
        raise UnsupportedPlatform(
            f"Conduit's stores need Linux 5.14 or later; this is WSL 1 (kernel {release}), which has no "
            "shared memfds. Run `wsl --set-version <distribution> 2`"
        )
    if _version(release) < _MIN_KERNEL:
        raise UnsupportedPlatform(
            f"Conduit's stores need Linux 5.14 or later (MADV_POPULATE_WRITE); this kernel is {release}. Use "
            "a newer one"
        )
    (probe or _probe)()


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _probe() -> None:
    """Try each call once: sandboxes and seccomp filters refuse some whatever the version."""
    try:
        fd = os.memfd_create("conduit-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError) as error:
        raise _lacks("memfd_create", error) from error
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        for name, call in _calls(fd):
            try:
                call()
            except (AttributeError, OSError) as error:
                raise _lacks(name, error) from error
    finally:
        os.close(fd)


def _calls(fd: int) -> list[tuple[str, Callable[[], object]]]:
    def populate() -> None:
        with mmap.mmap(fd, mmap.PAGESIZE) as view:
            view.madvise(_MADV_POPULATE_WRITE)

    def lock() -> None:
        flock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, flock)

    return [
        ("file seals", lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)),
        ("MADV_POPULATE_WRITE", populate),
        ("OFD locks", lock),
        ("/proc/self/fd", lambda: os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))),
    ]


def _lacks(what: str, error: BaseException) -> UnsupportedPlatform:
    return UnsupportedPlatform(
        f"this Linux {os.uname().release} does not let the process use {what} ({error}), which Conduit's "
        "stores need. Use a kernel and sandbox that allow it"
    )
