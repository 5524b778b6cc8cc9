"""The two messages of attaching: round trips, anything else refused, and who is let in."""

from __future__ import annotations

import os
import random

import pytest

from conduit_store.errors import ConfigError
from conduit_transport.shm.handshake import (
    HELLO_BYTES,
    REPLY_MAX_BYTES,
    Handshake,
    Hello,
    Peer,
    Reply,
    Status,
    decide,
)

OFFER = Handshake(3, 2**64 - 1, 4096, 1 << 40)
HELLO = Hello(3, 2**64 - 1, read_only=True)
US = Peer(pid=1, uid=os.geteuid(), gid=0)
STRANGER = os.geteuid() + 1000


@pytest.mark.parametrize("read_only", [True, False])
def test_hello_round_trip(read_only: bool) -> None:
    hello = Hello(7, 12345, read_only)
    assert len(hello.pack()) == HELLO_BYTES
    assert Hello.unpack(hello.pack()) == hello


@pytest.mark.parametrize("status", Status)
def test_reply_round_trip(status: Status) -> None:
    reply = Reply(status, OFFER, "because of ü")
    assert Reply.unpack(reply.pack()) == reply


def test_a_long_reason_is_cut() -> None:
    message = Reply(Status.BUSY, OFFER, "ü" * 1000).pack()
    assert len(message) == REPLY_MAX_BYTES
    assert isinstance(Reply.unpack(message), Reply)


def test_other_wire_versions_are_told_apart_from_garbage() -> None:
    for message, parse in ((HELLO.pack(), Hello.unpack), (Reply(Status.OK, OFFER).pack(), Reply.unpack)):
        newer = bytearray(message)
        newer[4:6] = (99).to_bytes(2, "little" if message[4] else "big")
        assert parse(bytes(newer) + b"more") == 99
        assert parse(bytes(newer[:6])) == 99
        assert parse(b"XXXX" + message[4:]) is None


def test_random_bytes_are_never_a_message() -> None:
    generator = random.Random(5)
    for _ in range(2000):
        junk = generator.randbytes(generator.randrange(0, 64))
        assert Hello.unpack(junk) is None
        assert Reply.unpack(junk) is None


def test_an_unknown_status_is_no_reply() -> None:
    message = bytearray(Reply(Status.OK, OFFER).pack())
    message[6:8] = b"\x63\x63"
    assert Reply.unpack(bytes(message)) is None


def test_sizes_beyond_a_file_are_no_reply() -> None:
    message = bytearray(Reply(Status.OK, OFFER).pack())
    message[20:28] = b"\xff" * 8
    assert Reply.unpack(bytes(message)) is None


@pytest.mark.parametrize("fields", [(-1, 0, 0, 0), (2**32, 0, 0, 0), (0, 2**64, 0, 0), (0, 0, -1, 0), (0, 0, 0, 2**63)])
def test_a_handshake_outside_its_bits_is_refused(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(ConfigError, match="is outside"):
        Handshake(*fields)


@pytest.mark.parametrize("uid", [os.geteuid(), 0])
def test_the_same_user_and_root_are_let_in(uid: int) -> None:
    reply, read_only = decide(HELLO.pack(), Peer(1, uid, 0), OFFER)
    assert reply.status is Status.OK
    assert read_only


def test_others_are_refused_before_their_message_is_looked_at() -> None:
    for message in (HELLO.pack(), b"junk"):
        reply, _ = decide(message, Peer(1, STRANGER, 0), OFFER)
        assert reply.status is Status.FORBIDDEN
        assert str(STRANGER) in reply.reason


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"", Status.GARBLED),
        (b"CNDT", Status.GARBLED),
        (HELLO.pack() + b"x", Status.GARBLED),
        (HELLO.pack()[:-1], Status.GARBLED),
        (b"CNDT\x63\x63", Status.MISMATCH),
        (Hello(4, 2**64 - 1, read_only=False).pack(), Status.MISMATCH),
        (Hello(3, 1, read_only=False).pack(), Status.MISMATCH),
    ],
)
def test_what_does_not_match_is_refused(message: bytes, status: Status) -> None:
    assert decide(message, US, OFFER)[0].status is status
