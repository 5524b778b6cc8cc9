"""Names, memory, builds, forks and systems that are not as they must be: a typed error, and nothing left behind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conduit import (
    ConfigError,
    ForkedHandle,
    LayoutMismatch,
    NameTaken,
    OutOfHostMemory,
    Store,
    StoreNotFound,
    UnknownTable,
    UnsupportedPlatform,
)
from conduit_store import Headroom, memory, segment
from conduit_store.native import native
from conduit_store.system import check_platform
from conduit_transport import shm
from tests.entries import STEP, steps
from tests.shm_support import holders_of, no_new_descriptors, private_runtime_dir
from tests.store_support import fresh_store, plain_table, scalar_writer, unchanged, vector_writer
from tests.worker import forked

HEADER = {"magic": 0, "layout_version": 8, "fingerprint": 16, "control_bytes": 24, "data_bytes": 32}  # layout.hpp


# ---- names


def test_an_unknown_table() -> None:
    with fresh_store() as store:
        with pytest.raises(UnknownTable, match=rf"store '{store.name}' has no table 'replay'; it has none\."):
            store.table("replay")
        table = plain_table(store, 8, "replay")
        plain_table(store, 8, "weights")
        with unchanged(table), pytest.raises(UnknownTable) as caught:
            store["replya"]
        assert "no table 'replya'; it has replay, weights. Did you mean 'replay'?" in str(caught.value)
        assert isinstance(caught.value, KeyError)


def test_the_name_of_a_live_store() -> None:
    with fresh_store() as store:
        plain_table(store, 8).extend({"x": np.arange(3)})
        with no_new_descriptors(), pytest.raises(NameTaken) as caught:
            Store.create(store.name, "1MiB")
        assert f"store '{store.name}' exists" in str(caught.value)
        assert f"pid {os.getpid()}" in str(caught.value)
        assert "Attach to it, or use another name" in str(caught.value)
        with Store.attach(store.name) as again:
            assert len(again["t"]) == 3


def test_the_name_of_a_table() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        reserved = store.metrics().reserved_bytes
        for exist_ok, said in ((False, r"use store\.table\('t'\)"), (True, "with other settings: .*max_size")):
            with unchanged(table), pytest.raises(NameTaken, match=f"table 't' exists.*{said}"):
                plain_table(store, 9, exist_ok=exist_ok)
        assert plain_table(store, 8, exist_ok=True) is table
        assert store.metrics().reserved_bytes == reserved


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x" * 65, "x" * 64])
def test_names_that_no_store_can_have(name: str) -> None:
    with private_runtime_dir() as directory, no_new_descriptors():
        calls: list[Callable[[], Store]] = [
            lambda: Store.create(name, "1MiB"),
            lambda: Store.attach(name),
            lambda: Store.open_or_create(name),
        ]
        for call in calls:
            with pytest.raises(ConfigError):
                call()
        assert not list(directory.glob("*.sock"))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x" * 64, ".hidden", 3, None])
def test_names_that_no_table_can_have(name: Any) -> None:
    with fresh_store() as store:
        with pytest.raises(ConfigError, match=r"table name .* is not allowed: 1 to 63 letters"):
            store.create_table(name, STEP, 8)
        assert store.tables() == []


def test_a_store_that_is_not_there() -> None:
    with fresh_store() as store:
        with pytest.raises(StoreNotFound) as caught:
            Store.attach("nothing", timeout=1)
        assert "no process holds a store 'nothing'" in str(caught.value)
        assert store.name in str(caught.value)


# ---- memory


@pytest.mark.parametrize("source", ["MemAvailable of /proc/meminfo", "cgroup /a/b (memory.max 1,000,000)"])
def test_not_enough_memory_for_a_store(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: Headroom(10 << 20, source))
    with private_runtime_dir() as directory, no_new_descriptors():
        with pytest.raises(OutOfHostMemory) as caught:
            Store.create("big", "64MiB")
        message = str(caught.value)
        for text in ("host_memory of store 'big'", "67,108,864", "10,485,760", source, "Ask for less"):
            assert text in message
        assert holders_of("conduit-big-") == 0
        assert not list(directory.glob("*.sock"))


@pytest.mark.parametrize("source", ["MemAvailable of /proc/meminfo", "cgroup /a/b (memory.limit_in_bytes 1,000,000)"])
def test_not_enough_memory_for_a_table(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_store("64MiB") as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        reserved = store.metrics().reserved_bytes
        with monkeypatch.context() as patched:
            patched.setattr(memory, "available_bytes", lambda: Headroom(10 << 20, source))
            with unchanged(table), pytest.raises(OutOfHostMemory) as caught:
                plain_table(store, 1_000_000, "big")
        for text in ("table 'big' of 1,000,000 rows needs", "10,485,760", source, "Ask for less"):
            assert text in str(caught.value)
        assert store.tables() == ["t"]
        assert store.metrics().reserved_bytes == reserved
        plain_table(store, 1_000_000, "big")


def test_not_enough_memory_in_the_store() -> None:
    with fresh_store("4MiB") as store:
        table = plain_table(store, 8)
        reserved = store.metrics().reserved_bytes
        with unchanged(table), pytest.raises(OutOfHostMemory) as caught:
            plain_table(store, 1_000_000, "big")
        for text in ("table 'big' needs", f"store '{store.name}' has", "left. Raise host_memory or lower max_size"):
            assert text in str(caught.value)
        assert store.tables() == ["t"]
        assert store.metrics().reserved_bytes == reserved


@pytest.mark.parametrize("given", ["lots", "4 apples", 0, -1, "0", "1.5", True, 2**70])
def test_sizes_that_are_none(given: Any) -> None:
    with private_runtime_dir(), no_new_descriptors(), pytest.raises(ConfigError, match="bytes"):
        Store.create("odd", given)


# ---- other builds


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("layout_version", native.LAYOUT_VERSION + 1, f"layout version {native.LAYOUT_VERSION + 1}, this build reads"),
        ("fingerprint", 7, "other structure sizes .fingerprint 7, here"),
        ("magic", 7, "no store: magic number missing"),
        ("control_bytes", 1 << 50, "is cut short"),
        ("data_bytes", 1 << 50, "is cut short"),
    ],
)
def test_the_header_of_another_build(field: str, value: int, said: str) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        size = 4 if field == "layout_version" else 8
        good = os.pread(store._control_fd, size, HEADER[field])
        os.pwrite(store._control_fd, value.to_bytes(size, "little"), HEADER[field])
        with unchanged(table), no_new_descriptors(), pytest.raises(LayoutMismatch, match=said):
            Store.attach(store.name)
        os.pwrite(store._control_fd, good, HEADER[field])
        with Store.attach(store.name) as again:
            assert len(again["t"]) == 3


@pytest.mark.parametrize("change", [(1, 0), (0, 1)], ids=["layout version", "fingerprint"])
def test_the_handshake_of_another_build(change: tuple[int, int]) -> None:
    with (
        fresh_store() as store,
        no_new_descriptors(),
        pytest.raises(LayoutMismatch, match="Use one version of conduit"),
    ):
        shm.connect(
            store.name, native.LAYOUT_VERSION + change[0], native.FINGERPRINT ^ change[1], read_only=False, timeout=5
        ).close()


# ---- forks


@pytest.mark.parametrize("way", ["append", "careful append", "end", "vector append", "vector end"])
def test_a_writer_in_a_forked_child(way: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEP, 64)
        final = np.zeros(2, np.float32)
        with scalar_writer(table) as scalar, vector_writer(table, 3) as vector:
            scalar.append(**steps(()))
            vector.append(**steps((3,)))
            calls = {
                "append": lambda: scalar.append(**steps(())),
                "careful append": lambda: scalar.append(**steps((), action=np.int8(1))),
                "end": lambda: scalar.end(final),
                "vector append": lambda: vector.append(**steps((3,))),
                "vector end": lambda: vector.end(np.stack([final] * 3), np.ones(3, bool)),
            }
            with (
                unchanged(table),
                pytest.raises(ForkedHandle, match=r"belongs to the parent .*table\.writer\(\) again"),
            ):
                forked(calls[way])
            scalar.append(**steps(()))
            vector.append(**steps((3,)))
            assert table.info().ready_rows == 4


# ---- systems


@pytest.mark.parametrize(
    ("system", "release", "said"),
    [
        ("darwin", None, "this is macOS. Run in a Linux container"),
        ("win32", None, "this is Windows"),
        ("linux", "4.4.0-19041-Microsoft", "this is WSL 1 .*wsl --set-version"),
        ("linux", "5.10.0-28-amd64", r"need Linux 5\.14 or later .*this kernel is 5\.10\.0"),
    ],
    ids=["macOS", "Windows", "WSL 1", "old kernel"],
)
def test_a_system_without_what_stores_need(
    system: str, release: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "check_platform", functools.partial(check_platform, system, release))
    with private_runtime_dir() as directory, no_new_descriptors():
        calls: list[Callable[[], Store]] = [
            lambda: Store.create("x", "1MiB"),
            lambda: Store.attach("x"),
            lambda: Store.open_or_create("x", "1MiB"),
        ]
        for call in calls:
            with pytest.raises(UnsupportedPlatform, match=said):
                call()
        assert not list(directory.iterdir())


def test_a_kernel_that_refuses_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    with private_runtime_dir(), pytest.raises(UnsupportedPlatform, match="does not let the process use memfd_create"):
        Store.create("x", "1MiB")


MACOS = """
import fcntl, os, sys
sys.platform = "darwin"
lacking = ((fcntl, ("F_SEAL", "F_OFD", "F_ADD_SEALS", "F_GET_SEALS")), (os, ("MFD_", "memfd_", "eventfd", "EFD_")))
for module, prefixes in lacking:
    for name in [name for name in dir(module) if name.startswith(prefixes)]:
        delattr(module, name)
import conduit
try:
    conduit.Store.create("x", "1MiB")
except conduit.UnsupportedPlatform as error:
    print(error)
"""


def test_python_of_another_system_imports_conduit_and_is_told() -> None:
    """There the modules lack what only Linux has."""
    done = subprocess.run([sys.executable, "-c", MACOS], check=False, capture_output=True, text=True, timeout=60)
    assert "this is macOS" in done.stdout, done.stderr
