"""Who is refused by a holder, what is refused from a holder, and that neither leaves a descriptor open."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest

from conduit_store import segment
from conduit_store.errors import AttachRefused, ConfigError, LayoutMismatch, NameTaken
from conduit_transport import names, shm
from conduit_transport.shm.handshake import Reply, Status
from tests.shm_process import CONTROL_BYTES, FINGERPRINT, LAYOUT_VERSION
from tests.shm_stores import DATA_BYTES, HANDSHAKE, attached, connect, impostor, send, served
from tests.shm_support import no_new_descriptors, nothing_left, private_runtime_dir

STRANGER = os.geteuid() + 1000


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with private_runtime_dir(), nothing_left():
        yield


def stranger(connection: socket.socket) -> shm.Peer:
    return shm.Peer(pid=4711, uid=STRANGER, gid=0)


@pytest.mark.parametrize(("version", "fingerprint"), [(LAYOUT_VERSION + 1, FINGERPRINT), (LAYOUT_VERSION, 1)])
def test_another_layout_is_refused(version: int, fingerprint: int) -> None:
    with served(), no_new_descriptors():
        with pytest.raises(LayoutMismatch, match=f"layout version {LAYOUT_VERSION}.*this process"):
            connect(version=version, fingerprint=fingerprint)
        with attached():
            pass


def test_another_user_is_refused_by_the_holder() -> None:
    with served(credentials=stranger), pytest.raises(AttachRefused, match=f"uid {STRANGER} asked"):
        connect()


def test_root_is_let_in() -> None:
    with served(credentials=lambda _: shm.Peer(1, 0, 0)), attached():
        pass


def test_another_users_store_is_refused_by_the_client() -> None:
    with served(), pytest.raises(AttachRefused, match=f"made by uid {STRANGER} .pid 4711"):
        connect(credentials=stranger)


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        connect(timeout=timeout)


OK = Reply(Status.OK, HANDSHAKE).pack()


@pytest.mark.parametrize(
    "message",
    [b"junk", b"CNDT", b"CNDT\x63\x00", OK[:-1], b"\0" * 5000, Reply(Status.GARBLED, HANDSHAKE).pack()],
)
def test_a_holder_that_talks_nonsense_is_refused(message: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        control = segment.create("control", CONTROL_BYTES)
        send(connection, message, [control, control, control])
        os.close(control)

    with impostor(answer), no_new_descriptors(), pytest.raises(LayoutMismatch):
        connect()


def _unsealed(size: int) -> int:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


CASES: dict[str, Callable[[int, int, int], list[int]]] = {
    "none": lambda c, d, s: [],
    "too few": lambda c, d, s: [c, d],
    "too many": lambda c, d, s: [c, d, s, s, s],
    "more than fit": lambda c, d, s: [c] * 20,
    "control too small": lambda c, d, s: [segment.create("x", CONTROL_BYTES - 1), d, s],
    "data too small": lambda c, d, s: [c, segment.create("x", DATA_BYTES - 1), s],
    "not sealed": lambda c, d, s: [c, _unsealed(DATA_BYTES), s],
    "no segment": lambda c, d, s: [c, os.open("/dev/null", os.O_RDWR), s],
    "data read-only": lambda c, d, s: [c, segment.reopen(d, writable=False), s],
    "listener is a segment": lambda c, d, s: [c, d, c],
    "listener does not listen": lambda c, d, s: [c, d, socket.socket(socket.AF_UNIX).detach()],
    "listener is a network's": lambda c, d, s: [c, d, socket.create_server(("127.0.0.1", 0)).detach()],
}


@pytest.mark.parametrize("case", CASES)
def test_descriptors_that_are_not_what_was_said_are_refused_and_closed(case: str) -> None:
    control, data = segment.create("control", CONTROL_BYTES), segment.create("data", DATA_BYTES)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("")
        listening.listen()
        fds = CASES[case](control, data, listening.fileno())

        def answer(connection: socket.socket) -> None:
            send(connection, OK, fds)

        with impostor(answer), no_new_descriptors(), pytest.raises((LayoutMismatch, AttachRefused)):
            connect()
        for fd in set(fds) - {listening.fileno()} | {control, data}:
            os.close(fd)


def test_a_socket_of_another_kind_is_refused_and_left_alone() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(names.socket_path("run1")))
        other.listen()
        with pytest.raises(LayoutMismatch, match="no store"):
            connect()
        with pytest.raises(NameTaken):
            shm.listen("run1")
        assert not shm.unlink("run1")
