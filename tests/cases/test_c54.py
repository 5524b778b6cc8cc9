"""C54: what a process had stored vanished when it left."""

from __future__ import annotations

import os

import pytest

from tests import store_actions
from tests.shm_support import private_runtime_dir
from tests.worker import workers


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_rows_outlive_the_process_that_made_them(how: str) -> None:
    name = f"c54-{os.getpid()}"
    with private_runtime_dir(), workers(3) as (owner, holder, late):
        owner.call(store_actions.create, name, 1000)
        assert holder.call(store_actions.sample, name, 1) != []
        if how == "exit":
            assert owner.finish() == ""
        else:
            owner.kill()
        assert holder.call(store_actions.total, name) == (1000, 499_500)
        assert late.call(store_actions.total, name) == (1000, 499_500)
