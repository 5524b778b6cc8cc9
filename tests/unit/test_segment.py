"""Segments: sealed, reserved for real, emptied when a reservation fails, refused by name where they cannot
work.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conduit_store import ConfigError, Headroom, OutOfHostMemory, UnsupportedPlatform, segment
from conduit_store.system import check_platform

MIB = 1 << 20
PAGE = mmap.PAGESIZE


@pytest.fixture
def fds() -> Iterator[list[int]]:
    opened: list[int] = []
    yield opened
    for fd in opened:
        os.close(fd)


def new(fds: list[int], size: int) -> int:
    fds.append(segment.create("conduit-test", size))
    return fds[-1]


def plenty() -> Headroom:
    return Headroom(1 << 40, "a test")


# ---------------------------------------------------------------- create


def test_a_new_segment_is_zero_sparse_and_closed_on_exec(fds: list[int]) -> None:
    fd = new(fds, 3 * PAGE + 5)
    assert os.fstat(fd).st_size == 3 * PAGE + 5  # exact: not rounded up to the page
    assert segment.allocated_bytes(fd) == 0
    assert not os.get_inheritable(fd)
    assert os.pread(fd, 4 * PAGE, 0) == bytes(3 * PAGE + 5)
    assert "conduit-test" in os.readlink(f"/proc/self/fd/{fd}")


def test_the_size_can_never_change(fds: list[int]) -> None:
    fd = new(fds, PAGE)
    for size in (0, PAGE - 1, PAGE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="the size must be at least 1"):
        segment.create("x", size)


@pytest.mark.parametrize("label", ["x" * 250, "é" * 125, "a\0b"])
def test_labels_that_are_refused(label: str) -> None:
    with pytest.raises(ConfigError, match="must be at most 249 bytes without NUL"):
        segment.create(label, 1)


@pytest.mark.parametrize("size", [2**63, 2**80])
def test_a_size_that_no_file_has_is_refused_and_leaves_nothing(size: int) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OutOfHostMemory, match="above what a file may have here"):
        segment.create("x", size)
    assert os.listdir("/proc/self/fd") == before


def test_a_size_above_the_file_size_limit_is_refused() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(OutOfHostMemory, match=r"of 2,097,152 bytes is above .*raise `ulimit -f`"):
            segment.create("x", 2 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---------------------------------------------------------------- reserve


def test_reserved_pages_are_allocated_and_only_those(fds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "SLICE_BYTES", MIB)
    fd = new(fds, 8 * MIB + 5)
    segment.reserve(fd, 2 * MIB, 3 * MIB + 1, "a test")
    assert segment.allocated_bytes(fd) == 3 * MIB + PAGE
    segment.reserve(fd, 8 * MIB, 5, "the tail")
    assert segment.allocated_bytes(fd) == 3 * MIB + 2 * PAGE
    segment.reserve(fd, 0, 0, "nothing")
    assert segment.allocated_bytes(fd) == 3 * MIB + 2 * PAGE


def test_what_does_not_fit_is_refused_before_a_page_is_taken(fds: list[int]) -> None:
    fd = new(fds, 128 * MIB)
    with pytest.raises(
        OutOfHostMemory, match=r"store 'a' needs 134,217,728 bytes.*67,108,864 are available by here"
    ):
        segment.reserve(fd, 0, 128 * MIB, "store 'a'", headroom=lambda: Headroom(64 * MIB, "here"))
    assert segment.allocated_bytes(fd) == 0


def test_headroom_lost_halfway_empties_the_range_again_and_nothing_else(
    fds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "SLICE_BYTES", MIB)
    fd = new(fds, 8 * MIB)
    os.pwrite(fd, b"kept", 0)
    os.pwrite(fd, b"kept", 7 * MIB)
    seen: list[int] = []

    def shrinking() -> Headroom:
        seen.append(segment.allocated_bytes(fd))
        return Headroom(64 * MIB if len(seen) < 4 else 4 * MIB, "cgroup /a")

    with pytest.raises(
        OutOfHostMemory, match=r"the rest of store 'a' \(6,291,456 bytes\) needs 3,145,728 bytes.*cgroup /a"
    ):
        segment.reserve(fd, MIB, 6 * MIB, "store 'a'", headroom=shrinking)
    assert [allocated - 2 * PAGE for allocated in seen] == [
        0,
        MIB,
        2 * MIB,
        3 * MIB,
    ]  # looked before each slice
    assert segment.allocated_bytes(fd) == 2 * PAGE
    assert (os.pread(fd, 4, 0), os.pread(fd, 4, 7 * MIB)) == (b"kept", b"kept")


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_any_failure_empties_the_range_again(
    fds: list[int], monkeypatch: pytest.MonkeyPatch, cause: BaseException
) -> None:
    monkeypatch.setattr(segment, "SLICE_BYTES", MIB)
    fd = new(fds, 4 * MIB)
    allocate = os.posix_fallocate

    def failing(fd: int, offset: int, length: int) -> None:
        allocate(fd, offset, length)
        if offset == 2 * MIB:
            raise cause  # as if Ctrl-C came right after the call

    monkeypatch.setattr(os, "posix_fallocate", failing)
    with pytest.raises(type(cause)):
        segment.reserve(fd, 0, 4 * MIB, "a test", headroom=plenty)
    assert segment.allocated_bytes(fd) == 0


@pytest.mark.parametrize(("offset", "length"), [(1, 5), (-PAGE, PAGE), (0, 9 * PAGE), (8 * PAGE, 1), (0, -1)])
def test_ranges_that_are_refused(fds: list[int], offset: int, length: int) -> None:
    fd = new(fds, 8 * PAGE)
    with pytest.raises(ConfigError, match=r"cannot reserve bytes \[.*lies within the 32,768 bytes"):
        segment.reserve(fd, offset, length, "a test")
    assert segment.allocated_bytes(fd) == 0


def test_a_read_only_descriptor_is_refused(fds: list[int]) -> None:
    fds.append(segment.reopen(new(fds, PAGE), writable=False))
    with pytest.raises(ConfigError, match="is read-only"):
        segment.reserve(fds[-1], 0, PAGE, "a test")


IN_A_SMALL_MOUNT = """
import os, sys
sys.path[:0] = {path!r}
from conduit_store import Headroom, OutOfHostMemory, segment
segment.SLICE_BYTES = 1 << 20
fd = os.open("{mount}/file", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 64 << 20)
segment.reserve(fd, 0, 2 << 20, "what fits", headroom=lambda: Headroom(1 << 40, "a test"))
try:
    segment.reserve(fd, 4 << 20, 32 << 20, "store 'a'", headroom=lambda: Headroom(1 << 40, "a test"))
except OutOfHostMemory as error:
    print(segment.allocated_bytes(fd), error)
"""


def test_what_the_kernel_refuses_halfway_is_given_back(tmp_path: Path) -> None:
    """A mount of 8 MiB stands for a limit that the headroom does not know: fallocate itself says no."""
    script = IN_A_SMALL_MOUNT.format(path=[p for p in sys.path if p], mount=tmp_path)
    shell = f'mount -t tmpfs -o size=8m tmpfs "{tmp_path}" || exit 77; exec "{sys.executable}" -'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare program: cannot make a small mount")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no mount namespace for this user: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    allocated, _, message = done.stdout.partition(" ")
    assert int(allocated) == 2 << 20
    assert message.startswith("store 'a': the kernel refused 1,048,576 bytes at offset ")
    assert "No space left on device" in message


# ---------------------------------------------------------------- reopen


def test_reopen_gives_locks_of_its_own_and_the_same_bytes(fds: list[int]) -> None:
    fd = new(fds, PAGE)
    fds.append(segment.reopen(fd, writable=True))
    assert not os.get_inheritable(fds[-1])
    os.pwrite(fds[-1], b"shared", 8)
    assert os.pread(fd, 6, 8) == b"shared"
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_reopened_read_only_no_writable_map_is_given(fds: list[int]) -> None:
    fd = new(fds, PAGE)
    fds.append(segment.reopen(fd, writable=False))
    mmap.mmap(fds[-1], PAGE, prot=mmap.PROT_READ).close()
    with pytest.raises(PermissionError):
        mmap.mmap(fds[-1], PAGE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fds[-1], b"x", 0)


def test_reopen_of_what_is_no_descriptor() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        segment.reopen(10_000, writable=True)


# ---------------------------------------------------------------- platform


def test_this_machine_will_do() -> None:
    before = os.listdir("/proc/self/fd")
    check_platform()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("system", "release", "message"),
    [
        ("darwin", "24.1.0", "this is macOS. Run in a Linux container"),
        ("win32", "10", "this is Windows"),
        ("freebsd14", "14.0", "this is freebsd14"),
        ("linux", "4.4.0-19041-Microsoft", "this is WSL 1 .*wsl --set-version"),
        (
            "linux",
            "5.13.19-generic",
            r"need Linux 5.14 or later \(MADV_POPULATE_WRITE\); this kernel is 5.13.19-generic",
        ),
        ("linux", "4.19.128-microsoft-standard", "this kernel is 4.19.128-microsoft-standard"),
        ("linux", "strange", "this kernel is strange"),
    ],
)
def test_platforms_that_are_refused(system: str, release: str, message: str) -> None:
    with pytest.raises(UnsupportedPlatform, match=message):
        check_platform(system, release)


@pytest.mark.parametrize(
    "release", ["5.14.0", "5.14.0-427.el9.x86_64", "6.1", "10.0.0", "5.15.90.1-microsoft-standard-WSL2"]
)
def test_kernels_that_will_do(release: str) -> None:
    check_platform("linux", release)


def test_each_missing_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def refuse_command(command: int) -> None:
        real = fcntl.fcntl

        def partly(fd: int, cmd: int, arg: int | bytes = 0) -> int | bytes:
            return refused() if cmd == command else real(fd, cmd, arg)

        monkeypatch.setattr(fcntl, "fcntl", partly)

    breaks: dict[str, Callable[[], None]] = {
        "memfd_create": lambda: monkeypatch.setattr(os, "memfd_create", refused),
        "file seals": lambda: refuse_command(fcntl.F_ADD_SEALS),
        "OFD locks": lambda: refuse_command(fcntl.F_OFD_SETLK),
        "MADV_POPULATE_WRITE": lambda: monkeypatch.setattr("conduit_store.system._MADV_POPULATE_WRITE", 9999),
        "/proc/self/fd": lambda: monkeypatch.setattr(os, "open", refused),
    }
    for what, break_it in breaks.items():
        break_it()
        with pytest.raises(UnsupportedPlatform, match=f"does not let the process use {what} "):
            check_platform()
        monkeypatch.undo()


def test_without_memfd_in_python_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(UnsupportedPlatform, match="use memfd_create"):
        check_platform()
