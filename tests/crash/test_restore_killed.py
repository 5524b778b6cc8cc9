"""A restore that is killed or interrupted leaves nothing: no store, no memory, and the checkpoint as it was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from conduit import AttachTimeout, Store, StoreNotFound
from tests.checkpoint_support import digest
from tests.shm_support import private_runtime_dir
from tests.store_support import fresh_store, keys_of, prioritized, schema

pytestmark = pytest.mark.crash
ROOT = Path(__file__).resolve().parents[2]
ROWS, WIDTH = 10_000, 4_096  # two files of each table

RESTORE = """
import os, signal, sys, time
import conduit
folder, name, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
turns = []

def strike(done, total):
    turns.append(done)
    if len(turns) == at:
        os.kill(os.getpid(), signal.SIGKILL)
    if at == 0:
        print("amid", flush=True)
        time.sleep(60)

print("begins", flush=True)
with conduit.Store.restore(folder, name, progress=strike):
    print("there", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint")
    with fresh_store("128MiB") as store:
        for name in ("t", "u"):
            table = store.create_table(
                name, schema(x="i8", image=("u1", (WIDTH,))), ROWS, sampler=prioritized(), max_writers=1
            )
            for first in range(0, ROWS, 1_000):
                image = np.full((1_000, WIDTH), first % 251, "u1")
                table.extend({"x": np.arange(first, first + 1_000), "image": image})
        store.checkpoint(made)
    return made


@pytest.fixture(autouse=True)
def runtime_dir() -> Iterator[None]:
    with private_runtime_dir():
        yield


def restoring(folder: Path, name: str, at: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", RESTORE, str(folder), name, str(at)], cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    return process


def memory_of(name: str) -> list[str]:
    """Segments of a store that any process still has open."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if f"memfd:conduit-{name}-" in target:
            found.append(f"{path}: {target}")
    return found


def is_gone(name: str) -> None:
    with pytest.raises(StoreNotFound):
        Store.attach(name, timeout=1.0)
    assert memory_of(name) == []


def is_whole(folder: Path, name: str) -> None:
    with Store.restore(folder, name) as store:
        for table in (store["t"], store["u"]):
            assert len(table) == ROWS
            assert table.rows(keys_of(table))["x"].tolist() == list(range(ROWS))
            table.verify()


@pytest.mark.parametrize("at", [1, 4])
def test_killed_between_files(folder: Path, at: int) -> None:
    before = digest(folder)
    with restoring(folder, f"killed-{at}", at) as process:
        assert process.wait(60) == -signal.SIGKILL
    is_gone(f"killed-{at}")
    is_whole(folder, f"killed-{at}")
    assert digest(folder) == before


def test_killed_at_any_moment(folder: Path) -> None:
    chance = random.Random(7)
    for n in range(4):
        with restoring(folder, f"any-{n}", -1) as process:
            time.sleep(chance.random() * 0.25)
            process.kill()
        is_gone(f"any-{n}")
    is_whole(folder, "any-0")


def test_nobody_attaches_before_all_of_it_is_there(folder: Path) -> None:
    with restoring(folder, "half", 0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "amid\n"
        with pytest.raises(AttachTimeout):
            Store.attach("half", timeout=0.3)
        process.kill()
    is_gone("half")


def test_ctrl_c_at_any_moment(folder: Path) -> None:
    chance = random.Random(11)
    interrupted = 0

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for n in range(8):
            signal.setitimer(signal.ITIMER_REAL, 0.005 + chance.random() * 0.1)
            try:
                with Store.restore(folder, f"ctrl-c-{n}"):
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            is_gone(f"ctrl-c-{n}")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 0
    is_whole(folder, "ctrl-c-0")
