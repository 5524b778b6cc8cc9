"""C44: unrelated children kept segments alive through descriptors that they had inherited."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np

from conduit import Store
from tests.shm_process import open_descriptors
from tests.shm_support import holders_of
from tests.store_support import fresh_store, plain_table


def test_a_child_by_exec_inherits_nothing_and_memory_goes_with_the_store() -> None:
    with fresh_store("32MiB") as store:
        label = f"conduit-{store.name}-"
        plain_table(store, 1000).extend({"x": np.arange(10)})
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
        try:
            assert child.stdout is not None
            child.stdout.readline()
            links = [os.readlink(f"/proc/{child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.pid}/fd")]
            assert not [link for link in links if "conduit" in link]
            assert holders_of(label) > 0
            store.close()
            gc.collect()
            assert holders_of(label) == 0
        finally:
            child.communicate()


def test_opening_and_closing_many_times_leaves_no_descriptor() -> None:
    with fresh_store() as store:
        table = plain_table(store, 100)
        table.extend({"x": np.arange(10)})
        gc.collect()
        before = open_descriptors()
        for _ in range(60):
            with Store.attach(store.name) as again:
                assert len(again["t"].sample(4)) == 4
            del again
        gc.collect()
        assert open_descriptors() == before
        assert store.metrics().processes == 1
