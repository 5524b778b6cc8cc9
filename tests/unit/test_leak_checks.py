"""The descriptor check of the tests themselves: a leak is found although something else was closed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from conduit_store import segment
from tests import shm_support


@pytest.mark.parametrize(
    "opened",
    [lambda: segment.create("leaked", 4096), lambda: os.open("/dev/null", os.O_RDONLY), lambda: os.dup(0)],
    ids=["segment", "file", "copy"],
)
def test_a_leak_behind_a_release(opened: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_support, "TIMEOUT_S", 0.01)
    released = segment.create("released", 4096)
    leaked: list[int] = []

    def change() -> None:
        with shm_support.no_new_descriptors():
            os.close(released)
            leaked.append(opened())

    with pytest.raises(AssertionError):
        change()
    os.close(leaked[0])


def test_a_release_alone() -> None:
    released = segment.create("released", 4096)
    with shm_support.no_new_descriptors():
        os.close(released)
