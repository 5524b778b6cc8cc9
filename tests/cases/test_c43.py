"""C43: segments stayed behind when their owner was killed."""

from __future__ import annotations

import os

import pytest

from conduit import NameTaken, Store
from tests import store_actions
from tests.shm_support import holders_of, private_runtime_dir
from tests.worker import worker, workers


def test_a_killed_owner_leaves_no_memory_and_its_name_is_free() -> None:
    name = f"c43-{os.getpid()}"
    shm = sorted(os.listdir("/dev/shm"))
    with private_runtime_dir():
        for _ in range(4):
            with worker() as owner:
                owner.call(store_actions.create, name, 1000, "64MiB")
                assert holders_of(f"conduit-{name}-") > 0
                owner.kill()
            assert holders_of(f"conduit-{name}-") == 0
        with Store.create(name, "1MiB") as store:
            assert store.tables() == []
    assert sorted(os.listdir("/dev/shm")) == shm


def test_a_reader_keeps_the_store_of_a_killed_owner() -> None:
    name = f"c43-{os.getpid()}"
    with private_runtime_dir(), workers(3) as (owner, reader, third):
        owner.call(store_actions.create, name, 1000)
        assert reader.call(store_actions.total, name) == (1000, 499_500)
        owner.kill()
        with pytest.raises(NameTaken, match=name):
            Store.create(name, "1MiB")
        assert third.call(store_actions.total, name) == (1000, 499_500)
        third.call(store_actions.append, name, [1, 2])
        assert reader.call(store_actions.total, name) == (1000, 499_500 - 0 - 1 + 1 + 2)
