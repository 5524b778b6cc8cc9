"""Attaching by name, between real processes: what is received, and how names are taken and freed."""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import pytest

from conduit_store import segment
from conduit_store.errors import LockTimeout, NameTaken, StoreNotFound
from conduit_transport import names, shm
from tests.shm_process import CONTROL_BYTES, FINGERPRINT, LAYOUT_VERSION
from tests.shm_stores import DATA_BYTES, HANDSHAKE, attached, connect, served
from tests.shm_support import SUM, TIMEOUT_S, children, no_new_descriptors, nothing_left, private_runtime_dir


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with private_runtime_dir(), nothing_left():
        yield


def test_both_see_the_same_bytes() -> None:
    with children(1) as (holder,):
        assert holder.ask(f"create run1 {DATA_BYTES}") == "created"
        with attached() as received, children(1) as (third,):
            assert (received.control_bytes, received.data_bytes) == (CONTROL_BYTES, DATA_BYTES)
            os.pwrite(received.data_fd, bytes(1000), 0)
            assert third.ask("read run1") == "attached 0"


def test_a_writing_attach_gets_the_listener_and_descriptors_for_writing() -> None:
    with served(), attached() as received:
        assert received.listener is not None
        assert received.listener.getsockname() == str(names.socket_path("run1"))
        for fd in (received.control_fd, received.data_fd):
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR


def test_a_read_only_attach_cannot_map_the_data_for_writing() -> None:
    with served(), attached(read_only=True) as received:
        assert received.listener is None
        assert fcntl.fcntl(received.control_fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        with pytest.raises(PermissionError):
            mmap.mmap(received.data_fd, DATA_BYTES)
        with mmap.mmap(received.data_fd, DATA_BYTES, prot=mmap.PROT_READ) as view:
            assert sum(view[:1000]) == SUM
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(received.data_fd, b"x", 0)


def test_locks_on_the_control_segment_belong_to_one_process() -> None:
    """Liveness is such a lock: it must conflict between processes and end with its process."""
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    with served(), attached() as first, attached() as second:
        fcntl.fcntl(first.control_fd, fcntl.F_OFD_SETLK, lock)
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(second.control_fd, fcntl.F_OFD_SETLK, lock)
        with attached(read_only=True) as third, pytest.raises(BlockingIOError):
            fcntl.fcntl(third.control_fd, fcntl.F_OFD_SETLK, lock)


def test_the_holders_lock_does_not_travel_to_its_clients() -> None:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    listener = shm.listen("run1")
    control, data = segment.create("control", CONTROL_BYTES), segment.create("data", DATA_BYTES)
    fcntl.fcntl(control, fcntl.F_OFD_SETLK, lock)
    server = shm.Server(listener, control, data, HANDSHAKE)
    server.start()
    with attached() as received:
        os.close(control)  # the only one of its description, or the lock is still held
        fcntl.fcntl(received.control_fd, fcntl.F_OFD_SETLK, lock)
    server.stop()
    os.close(data)
    shm.unlink("run1")


def test_a_segment_may_be_larger_than_its_bytes() -> None:
    with served(handshake=shm.Handshake(LAYOUT_VERSION, FINGERPRINT, 100, 1000)), attached() as received:
        assert (received.control_bytes, received.data_bytes) == (100, 1000)


def test_every_descriptor_is_closed_on_exec() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with served(), attached(), attached(read_only=True):
        ours = set(os.listdir("/proc/self/fd")) - before
        assert len(ours) >= 10
        listed = subprocess.run(
            ["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True
        ).stdout
        assert "memfd:" not in listed
        assert "socket:" not in listed
        assert "eventfd" not in listed


def _attach_and_report(pipe: Connection) -> None:
    with attached() as received, mmap.mmap(received.data_fd, received.data_bytes) as view:
        pipe.send(sum(view[:1000]))


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_of_multiprocessing_attach(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with served():
        ours, theirs = context.Pipe()
        child = context.Process(target=_attach_and_report, args=(theirs,))
        child.start()
        theirs.close()
        assert ours.poll(TIMEOUT_S)
        assert ours.recv() == SUM
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
        child.close()
        ours.close()
    # Started on demand, and meant to stay until exit: for a check of what is left they must go now.
    services: tuple[Any, Any] = (forkserver, resource_tracker)
    if method == "forkserver":
        services[0]._forkserver._stop()
    if method != "fork":
        services[1]._resource_tracker._stop()


# -- names ---------------------------------------------------------------------------------------------------


def test_a_taken_name_is_refused_and_stays() -> None:
    with served(), no_new_descriptors():
        with pytest.raises(NameTaken, match=f"store 'run1' exists: .*pid {os.getpid()}.*Attach"):
            shm.listen("run1")
        with attached():
            pass


def test_a_path_that_is_no_socket_is_not_touched() -> None:
    path = names.socket_path("run1")
    path.write_text("precious")
    with pytest.raises(NameTaken, match="is not a socket"):
        shm.listen("run1")
    assert not shm.unlink("run1")
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))
    with pytest.raises(NameTaken, match="is not a socket"):
        shm.listen("run1")
    assert path.with_suffix(".real").read_text() == "precious"


def test_the_socket_is_private() -> None:
    before = os.umask(0)
    try:
        with served():
            assert stat.S_IMODE(names.socket_path("run1").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_not_found_names_what_exists() -> None:
    with served("other"), pytest.raises(StoreNotFound, match=r"no process holds a store 'run1'.*: other"):
        connect()
    with pytest.raises(StoreNotFound, match="stores here: none"):
        connect()


def test_a_name_with_a_live_holder_is_not_unlinked() -> None:
    with served():
        assert not shm.unlink("run1")
        assert shm.is_live("run1")
    assert names.list_names() == []
    assert not shm.unlink("run1")


def test_a_stale_path_is_replaced() -> None:
    shm.listen("run1").close()
    assert names.list_names() == ["run1"]
    assert not shm.is_live("run1")
    with pytest.raises(StoreNotFound, match=r"'run1' is gone: .*killed.*Create the store again.*conduit gc"):
        connect()
    with served(), attached():
        pass


def test_a_creator_stopped_while_taking_a_name_is_named() -> None:
    program = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
os.pwrite(fd, b"%-10d" % os.getpid(), 0)
print("locked", flush=True)
sys.stdin.read()
"""
    lock = names.runtime_dir() / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", program, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(LockTimeout, match=f"last taken by pid {owner.pid}"):
            shm.listen("run1", lock_timeout_s=0.05)
        owner.communicate()
    shm.listen("run1").close()


def test_the_lock_is_not_followed_through_a_symlink() -> None:
    target = names.runtime_dir() / "target"
    (names.runtime_dir() / ".lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        shm.listen("run1")
    assert not target.exists()
