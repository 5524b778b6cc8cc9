"""Batches of a queue whose columns are copied to a device: the same rows, leased and acknowledged as ever."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conduit import Column, ConfigError, DeviceQueueBatch, QueueEnded, Schema, Store, UnknownColumn
from tests.queue_support import put, queue_in, rest
from tests.store_support import fresh_store

torch = pytest.importorskip("torch")


@pytest.fixture
def store() -> Iterator[Store]:
    with fresh_store() as made:
        yield made


class FakeDevice:
    """A device in the host's memory that notes what it is asked."""

    def __init__(self, fails_at: int = 0) -> None:
        self.handed: list[int] = []
        self.threads: set[str] = set()
        self.copies = 0
        self.pinned: dict[int, int] = {}
        self.pins_made = 0
        self.closed = False
        self.fails_at = fails_at

    def pin(self, address: int, size: int) -> None:
        assert address not in self.pinned
        self.pinned[address] = size
        self.pins_made += 1

    def unpin(self, address: int, size: int) -> None:
        assert self.pinned.pop(address) == size

    def copy(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], int]:
        self.threads.add(threading.current_thread().name)
        self.copies += 1
        if self.copies == self.fails_at:
            raise RuntimeError("out of memory there")
        for name, tensor in tensors.items():
            at = tensor.data_ptr()
            assert any(base <= at < base + size for base, size in self.pinned.items()), name
        return {name: tensor.clone() for name, tensor in tensors.items()}, self.copies

    def hand_over(self, tensors: dict[str, Any], token: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
        self.handed.append(token)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("prefetch", [0, 2])
def test_rows_come_in_order_and_are_acknowledged(store: Store, prefetch: int) -> None:
    queue, device = queue_in(store), FakeDevice()
    put(queue, *range(20))
    queue.end()
    with queue.loader(4, prefetch=prefetch, device=device) as loader:
        for first, batch in zip(range(0, 20, 4), loader, strict=True):
            assert isinstance(batch, DeviceQueueBatch)
            assert isinstance(batch["x"], torch.Tensor)
            assert batch["x"].tolist() == [*range(first, first + 4)]
            assert batch.names == ("x",)
            assert len(batch) == batch.unacknowledged == 4
            assert sum(int(batch["x"][part].sum()) for part in batch.split(2, by="x")) == sum(range(first, first + 4))
            assert batch.ack(batch.keys[:1]) == 1
            assert batch.ack() == 3
            for name in ("probabilities", "weights"):
                with pytest.raises(UnknownColumn, match="not drawn"):
                    getattr(batch, name)
        with pytest.raises(QueueEnded):
            loader.next()
    assert device.handed == [1, 2, 3, 4, 5]
    assert device.closed
    assert ("conduit-queue-loader" in device.threads) == (prefetch > 0)


def test_what_is_not_handed_over_or_released_goes_back(store: Store) -> None:
    queue = queue_in(store)
    put(queue, *range(12))
    with queue.loader(3, prefetch=2, device=FakeDevice()) as loader:
        loader.next().ack()
        loader.next().release()
    assert sorted(rest(queue)) == [*range(3, 12)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_copy_that_fails_is_told_and_its_rows_go_back(store: Store, prefetch: int) -> None:
    queue = queue_in(store)
    put(queue, *range(8))
    with queue.loader(4, prefetch=prefetch, device=FakeDevice(fails_at=2)) as loader:
        loader.next().ack()
        with pytest.raises(RuntimeError, match="out of memory there"):
            loader.next()
        batch = loader.next()  # another try
        assert batch["x"].tolist() == [4, 5, 6, 7]
        batch.ack()
    assert rest(queue) == []


def test_rows_of_an_old_policy_are_not_handed_over(store: Store) -> None:
    queue = queue_in(store, max_staleness=0)
    device = FakeDevice()
    put(queue, 1, 2, policy_version=0)
    with queue.loader(2, prefetch=1, device=device) as loader:
        first = loader.next()
        first.ack()
        put(queue, 3, 4, policy_version=0)
        while device.copies < 2:
            threading.Event().wait(0.001)
        queue.policy_version = 1
        put(queue, 5, 6, policy_version=1)
        assert loader.next()["x"].tolist() == [5, 6]
    assert device.handed == [1, 3]


def test_categories_and_nulls_are_known_there_too(store: Store) -> None:
    schema = Schema((Column("env", "category"), Column("score", "f4", nullable=True)))
    queue = queue_in(store, schema=schema)
    queue.extend({"env": ["pong", "breakout"], "score": [1.0, None]})
    with queue.loader(2, device=FakeDevice()) as loader:
        batch = loader.next()
        assert batch.decode("env").tolist() == ["pong", "breakout"]
        assert {name: valid.tolist() for name, valid in batch.valid.items()} == {"score": [True, False]}


def test_the_cpu_is_a_device(store: Store) -> None:
    queue = queue_in(store)
    put(queue, 1, 2)
    with queue.loader(2, device="cpu") as loader:
        batch = loader.next()
        assert np.array_equal(batch["x"].numpy(), [1, 2])
        batch.ack()
    with pytest.raises(ConfigError, match="nowhere"):
        queue.loader(2, device="nowhere")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_lie_in_pinned_memory_that_is_used_again(store: Store, prefetch: int) -> None:
    """Also where batches differ in their number of rows, or rows in their length."""
    device = FakeDevice()
    tokens = Column("tokens", "i4", (None, 64), mean_length=4)
    queue = queue_in(store, 512, schema=Schema((Column("n_tokens", "i8"), tokens)))
    for length in range(256):
        queue.extend({"n_tokens": [length % 7 + 1], "tokens": [np.full((length % 7 + 1, 64), length, "i4")]})
    queue.end()
    seen = batches = 0
    batch: Any = None
    with queue.loader(max_tokens=40, prefetch=prefetch, device=device) as loader:
        for batch in loader:
            assert int(batch["n_tokens"].sum()) <= 40
            seen += len(batch)
            batches += 1
            batch.ack()
    assert batches > 20
    assert 1 <= device.pins_made <= batches // 2
    assert seen == 256
    del loader, batch
    gc.collect()
    assert device.pinned == {}


def test_memory_that_cannot_be_pinned(store: Store) -> None:
    class Full(FakeDevice):
        def pin(self, address: int, size: int) -> None:
            raise RuntimeError("no memory to pin")

    queue = queue_in(store)
    put(queue, *range(4))
    with queue.loader(4, prefetch=0, device=Full()) as loader, pytest.raises(RuntimeError, match="no memory to pin"):
        loader.next()
    assert rest(queue) == [*range(4)]


@pytest.mark.gpu
def test_a_cuda_device_gets_the_same_rows(store: Store) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    queue = queue_in(store, max_size=1_024)
    put(queue, *range(800))
    queue.end()
    with queue.loader(8, prefetch=2, device="cuda:0") as loader:
        for first, batch in zip(range(0, 800, 8), loader, strict=True):
            assert batch["x"].device.type == "cuda"
            assert batch["x"].tolist() == [*range(first, first + 8)]
            batch.ack()
