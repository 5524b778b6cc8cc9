"""C64: a ragged batch of one sequence came back dense; an error while decoding never answered the client."""

from __future__ import annotations

import socket

import numpy as np

from conduit import Column, Ragged, Schema, Store
from conduit_transport import names
from tests.store_support import fresh_store
from tests.worker import worker

OF = Schema((Column("tokens", "int32", (None,), mean_length=4),))


def there_and_back(name: str, n: int) -> list[list[int]]:
    """In a process that attaches: take n rows from one queue, and put them into the other as they came."""
    with Store.attach(name) as store:
        batch = store.queue("there").sample(n, timeout=10.0)
        assert isinstance(batch["tokens"], Ragged)
        store.queue("back").extend({"tokens": batch["tokens"]})
        batch.ack()
        return [row.tolist() for row in batch["tokens"]]


def test_one_sequence_is_a_ragged_row() -> None:
    with fresh_store() as store, worker() as other:
        there, back = (store.create_queue(name, OF, 10) for name in ("there", "back"))
        for sequences in ([[1, 2, 3]], [[1, 2, 3], [4]], [[5, 6], [7, 8]]):
            there.extend({"tokens": [np.array(sequence, np.int32) for sequence in sequences]})
            assert other.call(there_and_back, store.name, len(sequences)) == sequences
            with_lengths = back.sample(len(sequences), timeout=10.0)
            rows = with_lengths["tokens"]
            assert isinstance(rows, Ragged)
            assert rows.lengths.tolist() == [len(sequence) for sequence in sequences]
            assert [row.tolist() for row in rows] == sequences
            assert rows.values.ndim == 1
            with_lengths.ack()


def test_a_corrupt_frame_is_answered_and_the_next_request_served() -> None:
    with fresh_store() as store:
        for frame in (b"\xff" * 20, b"CNDT", b"x"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.settimeout(2.0)
                client.connect(str(names.socket_path(store.name)))
                client.send(frame)
                reply = client.recv(1024)
                assert reply[:4] == b"CNDT"
                assert int.from_bytes(reply[6:8], "little") == 3  # garbled: the holder says so, and why
                assert len(reply) > 36
        with Store.attach(store.name) as again:
            assert again.name == store.name
