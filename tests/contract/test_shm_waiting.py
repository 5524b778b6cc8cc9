"""Holders that are slow, silent, busy or out of descriptors: clients wait, for as long as they said."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_store import segment
from conduit_store.errors import AttachTimeout, NameTaken
from conduit_transport import names, shm
from conduit_transport.shm.handshake import Reply, Status
from tests.shm_process import CONTROL_BYTES
from tests.shm_stores import DATA_BYTES, HANDSHAKE, attached, connect, impostor, send
from tests.shm_support import ROOT, TIMEOUT_S, children, no_new_descriptors, nothing_left, private_runtime_dir


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with private_runtime_dir(), nothing_left():
        yield


@pytest.mark.parametrize("timeout", [0.0, 0.4])
def test_a_holder_that_does_not_answer_is_waited_for_until_the_timeout(timeout: float) -> None:
    with shm.listen("run1"):
        begin = time.monotonic()
        expected = f"within {timeout:g} s .*pid {os.getpid()}"
        with no_new_descriptors(), pytest.raises(AttachTimeout, match=expected):
            connect(timeout=timeout)
        assert timeout <= time.monotonic() - begin < timeout + 2


def test_a_holder_that_hangs_up_is_asked_again() -> None:
    with (
        impostor(lambda _: None),
        no_new_descriptors(),
        pytest.raises(AttachTimeout, match=r"hung up|went away"),
    ):
        connect(timeout=0.3)


def test_a_busy_holder_is_asked_again() -> None:
    busy = Reply(Status.BUSY, HANDSHAKE, "too many references").pack()
    with (
        impostor(lambda connection: send(connection, busy, [])),
        no_new_descriptors(),
        pytest.raises(AttachTimeout, match="too many references"),
    ):
        connect(timeout=0.3)


def test_a_full_queue_is_waited_for() -> None:
    clients: list[socket.socket] = []
    with shm.listen("run1"):
        with contextlib.suppress(BlockingIOError):
            while True:
                client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                clients.append(client)
                client.connect(str(names.socket_path("run1")))
        assert shm.is_live("run1")
        with pytest.raises(NameTaken, match="full queue"):
            shm.listen("run1")
        with pytest.raises(AttachTimeout, match="full"):
            connect(timeout=0.1)
    for client in clients:
        client.close()


def test_a_store_still_being_made_is_waited_for() -> None:
    listener = shm.listen("run1")
    control, data = segment.create("control", CONTROL_BYTES), segment.create("data", DATA_BYTES)
    received: list[shm.Attached] = []
    client = threading.Thread(target=lambda: received.append(connect()))
    client.start()
    assert select.select([listener], [], [], TIMEOUT_S)[0]  # it has connected
    server = shm.Server(listener, control, data, HANDSHAKE)
    server.start()
    client.join(TIMEOUT_S)
    received[0].close()
    server.stop()
    os.close(control)
    os.close(data)


def test_ctrl_c_while_waiting_leaves_nothing_open() -> None:
    program = """
import os, signal
from conduit_transport import shm
before = os.listdir("/proc/self/fd")
try:
    shm.connect("run1", 1, 1, read_only=False, timeout=60)
except KeyboardInterrupt:
    print("interrupted", os.listdir("/proc/self/fd") == before)
"""
    with shm.listen("run1") as listener:
        client = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
        assert select.select([listener], [], [], TIMEOUT_S)[0]
        os.kill(client.pid, signal.SIGINT)
        assert client.communicate(timeout=TIMEOUT_S)[0] == b"interrupted True\n"


def test_a_client_short_of_descriptors_is_told_and_loses_none() -> None:
    with children(2) as (holder, client):
        assert holder.ask(f"create run1 {DATA_BYTES}") == "created"
        before = client.ask("fds")
        refused = 0
        for spare in range(12):
            # `fds` needs a spare descriptor itself: look only without the limit.
            assert client.ask(f"limit {spare}") == "ok"
            answer = client.ask("read run1")
            assert client.ask("limit max") == "ok"
            if answer.startswith("attached"):
                assert client.ask("close") == "False"
            else:
                refused += 1
                assert answer.startswith("AttachRefused store 'run1' cannot be attached: this process has no")
            assert client.ask("fds") == before
        assert 3 <= refused < 12


def test_a_holder_short_of_descriptors_recovers() -> None:
    with children(1) as (holder,):
        assert holder.ask(f"create run1 {DATA_BYTES}") == "created"
        before = holder.ask("fds")
        assert holder.ask("limit 0") == "ok"
        used = _cpu_ticks(holder.pid)
        with pytest.raises(AttachTimeout):
            connect(timeout=0.5)
        assert _cpu_ticks(holder.pid) - used < 20  # of 50: it does not spin
        assert holder.ask("limit max") == "ok"
        with attached():
            pass
        end = time.monotonic() + TIMEOUT_S
        while holder.ask("fds") != before and time.monotonic() < end:  # it may still be closing the one that gave up
            time.sleep(0.01)
        assert holder.ask("fds") == before


def test_a_server_that_cannot_be_made_closes_what_it_took() -> None:
    with nothing_left():
        listener = shm.listen("run1")
        control = segment.create("control", CONTROL_BYTES)
        with pytest.raises(OSError, match="Bad file descriptor"):
            shm.Server(listener, control, 10**6, HANDSHAKE)
        assert listener.fileno() == -1
        os.close(control)
        assert shm.unlink("run1")


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
