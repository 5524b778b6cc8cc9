"""Attaching while processes die, stop or misbehave: the name leads to the store as long as anybody holds "
"it, and no longer."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conduit import gc
from conduit_store import segment
from conduit_store.errors import AttachTimeout, StoreNotFound
from conduit_transport import names, shm
from conduit_transport.shm.handshake import HELLO_BYTES, Hello
from tests.shm_process import FINGERPRINT, LAYOUT_VERSION
from tests.shm_support import (
    SUM,
    TIMEOUT_S,
    Child,
    children,
    no_new_descriptors,
    nothing_left,
    private_runtime_dir,
)

MIB = 1 << 20
HELLO = Hello(LAYOUT_VERSION, FINGERPRINT, read_only=False).pack()


@pytest.fixture(autouse=True)
def runtime_dir() -> Iterator[Path]:
    with private_runtime_dir() as path, nothing_left():
        yield path


def connect(name: str = "run1", timeout: float = TIMEOUT_S) -> None:
    shm.connect(name, LAYOUT_VERSION, FINGERPRINT, read_only=False, timeout=timeout).close()


def dial() -> socket.socket:
    """A client that has connected and says nothing."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(TIMEOUT_S)
    client.connect(str(names.socket_path("run1")))
    return client


# -- holders that die or stop --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["exit", "close", "kill"])
def test_a_store_outlives_its_creator(end: str) -> None:
    with children(3) as (creator, holder, late):
        assert creator.ask(f"create run1 {MIB}") == "created"
        assert holder.ask("attach run1") == f"attached {SUM}"
        if end == "exit":
            assert creator.finish() == ""
        elif end == "close":
            assert creator.ask("close") == "False"  # the path stays: it leads to the other holder
        else:
            creator.signal(signal.SIGKILL)
        assert late.ask("attach run1") == f"attached {SUM}"
        holder.signal(signal.SIGKILL)
        connect()  # answered by a holder that itself attached after the creator's death
        assert late.ask("close") == "True"
        assert names.list_names() == []


def test_with_the_last_holder_the_store_is_gone_at_once() -> None:
    with children(2) as (creator, reader):
        assert creator.ask(f"create run1 {MIB}") == "created"
        assert reader.ask("read run1") == f"attached {SUM}"
        creator.signal(signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(StoreNotFound):  # a read-only holder keeps the memory, not the name
            connect()
        assert time.monotonic() - begin < 1


def test_a_stopped_creator_holds_up_nobody() -> None:
    with children(3) as (creator, holder, late):
        assert creator.ask(f"create run1 {MIB}") == "created"
        assert holder.ask("attach run1") == f"attached {SUM}"
        creator.signal(signal.SIGSTOP)
        for _ in range(5):
            begin = time.monotonic()
            connect()
            assert time.monotonic() - begin < 1
        assert late.ask("read run1") == f"attached {SUM}"
        creator.signal(signal.SIGCONT)
        assert creator.ask("close") == "False"


def test_a_connection_stuck_in_a_stopped_holder_is_given_up() -> None:
    """The stopped process has accepted already; the next try goes to the other."""
    with children(2) as (creator, holder):
        assert creator.ask(f"create run1 {MIB}") == "created"
        with dial() as stuck:  # taken by the only server there is
            with dial() as second:
                second.send(HELLO)
                assert second.recv(1000)  # so `stuck`, which came first, is accepted
            assert holder.ask("attach run1") == f"attached {SUM}"
            creator.signal(signal.SIGSTOP)
            stuck.send(HELLO)
            connect()
            assert not select.select([stuck], [], [], 0)[0]
        creator.signal(signal.SIGCONT)


def test_a_stopped_only_holder_is_alive_but_silent() -> None:
    with children(1) as (creator,):
        assert creator.ask(f"create run1 {MIB}") == "created"
        creator.signal(signal.SIGSTOP)
        with pytest.raises(AttachTimeout, match=f"pid {creator.pid}"):
            connect(timeout=0.4)
        assert shm.is_live("run1")
        assert gc.collect() == []
        client = threading.Thread(target=connect)
        client.start()
        creator.signal(signal.SIGCONT)
        client.join(TIMEOUT_S)
        assert not client.is_alive()


def test_waiting_for_a_holder_that_is_killed_ends_with_not_found() -> None:
    with children(1) as (creator,):
        assert creator.ask(f"create run1 {MIB}") == "created"
        creator.signal(signal.SIGSTOP)
        caught: list[BaseException] = []

        def attach() -> None:
            try:
                connect()
            except StoreNotFound as error:
                caught.append(error)

        client = threading.Thread(target=attach)
        client.start()
        creator.signal(signal.SIGKILL)
        client.join(TIMEOUT_S)
        assert len(caught) == 1


def test_a_forked_child_does_not_keep_the_name_of_a_killed_creator() -> None:
    with children(1) as (creator,):
        assert creator.ask(f"create run1 {MIB}") == "created"
        orphan = int(creator.ask("fork"))
        try:
            creator.signal(signal.SIGKILL)
            os.kill(orphan, 0)
            assert not shm.is_live("run1")
            assert gc.collect() == ["run1"]
        finally:
            os.kill(orphan, signal.SIGKILL)


# -- clients that die or misbehave ---------------------------------------------------------------------------

CLIENT = """
import socket, sys, os
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect(sys.argv[1])
if sys.argv[2]:
    client.send(bytes.fromhex(sys.argv[2]))
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("hello", [b"", HELLO, b"junk"], ids=["silent", "asked", "junk"])
def test_a_client_killed_in_mid_handshake_costs_nothing(hello: bytes) -> None:
    with children(1) as (holder,):
        assert holder.ask(f"create run1 {MIB}") == "created"
        before = holder.ask("fds")
        for _ in range(3):
            client = subprocess.Popen(
                [sys.executable, "-c", CLIENT, names.socket_path("run1"), hello.hex()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert client.stdout is not None
            assert client.stdin is not None
            assert client.stdout.readline() == b"there\n"
            client.kill()
            client.wait()
            client.stdout.close()
            client.stdin.close()
        connect()
        assert settled(holder, before)
        assert holder.finish() == ""


def settled(holder: Child, expected: str) -> bool:
    """Whether the holder's descriptors are down to what they were; each look comes after an attach that "
    "it served."""
    deadline = time.monotonic() + TIMEOUT_S
    while holder.ask("fds") != expected:
        if time.monotonic() > deadline:
            return False
        connect()
    return True


def test_garbage_is_answered_or_dropped() -> None:
    with children(1) as (holder,):
        assert holder.ask(f"create run1 {MIB}") == "created"
        before = holder.ask("fds")
        for junk in (b"x", b"CNDT", HELLO[:-1], HELLO + b"x", os.urandom(HELLO_BYTES), b"\0" * 100_000):
            with dial() as client:
                client.send(junk)
                assert client.recv(1000)[:4] == b"CNDT"  # a refusal in words
                assert client.recv(1000) == b""
        with dial() as client:  # descriptors that nobody asked for
            spare = segment.create("spare", 4096)
            client.sendmsg([HELLO], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [spare] * 50))])
            os.close(spare)
            assert client.recv(1000)[:4] == b"CNDT"
        with dial() as client:  # an empty packet looks like an end
            client.send(b"")
            assert client.recv(1000) == b""
        connect()
        assert settled(holder, before)
        assert holder.finish() == ""


def test_clients_that_say_nothing_hold_up_nobody_and_are_dropped() -> None:
    listener = shm.listen("run1")
    control, data = segment.create("control", 4096), segment.create("data", MIB)
    handshake = shm.Handshake(LAYOUT_VERSION, FINGERPRINT, 4096, MIB)
    server = shm.Server(listener, control, data, handshake, hello_timeout_s=1.5)
    server.start()
    with no_new_descriptors(), ExitStack() as stack:
        silent = [stack.enter_context(dial()) for _ in range(150)]  # more than are kept waiting
        begin = time.monotonic()
        connect()
        assert time.monotonic() - begin < 1.5
        kept = re.search(r"(\d+) clients waiting", repr(server))
        assert kept is not None
        assert int(kept[1]) <= 64  # the oldest are dropped early
        for client in silent:
            assert client.recv(1) == b""
    server.stop()
    os.close(control)
    os.close(data)


def test_a_client_that_never_reads_holds_up_nobody() -> None:
    with children(1) as (holder,):
        assert holder.ask(f"create run1 {MIB}") == "created"
        before = holder.ask("fds")
        with ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(dial()).send(HELLO)
            connect()
            assert settled(holder, before)


def test_twenty_clients_at_once() -> None:
    with children(1) as (holder,):
        assert holder.ask(f"create run1 {MIB}") == "created"
        before = holder.ask("fds")
        together = threading.Barrier(20)
        failures: list[BaseException] = []

        def attach() -> None:
            try:
                together.wait(TIMEOUT_S)
                for _ in range(20):
                    connect()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=attach) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert failures == []
        assert settled(holder, before)
