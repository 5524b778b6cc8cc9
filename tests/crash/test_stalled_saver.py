"""A process stopped in the middle of a checkpoint loses its blocks to the writers that wait for them, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conduit import CheckpointBusy, Column, Schema, Store, Table, checkpoints
from tests.checkpoint_support import digest
from tests.store_support import fresh_store, keys_of, schema

pytestmark = pytest.mark.crash
ROOT = Path(__file__).resolve().parents[2]
ROWS, WIDTH = 6_000, 4_096  # three turns of a checkpoint
PLAIN = schema(x="i8", image=("u1", (WIDTH,)))
VARYING = Schema((Column("x", "i8"), Column("image", "u1", (None,), mean_length=WIDTH)))

SAVE = """
import os, signal, sys
import conduit
store = conduit.Store.attach(sys.argv[1])
store["t"]
turns = []

def stop(done, total):
    turns.append(done)
    if len(turns) == 1:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

try:
    store.checkpoint(sys.argv[2], progress=stop)
    print("taken", flush=True)
except conduit.CheckpointError as error:
    print(type(error).__name__, error, flush=True)
store.close()
"""


@contextmanager
def stopped_saver(store: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SAVE, store, str(folder)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        while state(process) != "T":
            time.sleep(0.001)
        yield process
    finally:
        process.kill()
        process.communicate()


def state(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def go_on(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGCONT)
    said, wrong = process.communicate(timeout=60)
    assert process.returncode == 0, wrong
    return said


def rows(first: int, n: int) -> dict[str, Any]:
    serials = np.arange(first, first + n)
    return {"x": serials, "image": np.repeat((serials % 251).astype("u1")[:, None], WIDTH, axis=1)}


def append(table: Table, first: int, n: int) -> None:
    for at in range(first, first + n, 200):
        table.extend(rows(at, 200), timeout=30.0)


def are_whole(table: Table) -> bool:
    for start in range(0, len(table), 500):
        batch = table.rows(keys_of(table)[start : start + 500])
        images = np.stack([np.asarray(row) for row in batch["image"]])
        if not (images == (batch["x"] % 251).astype("u1")[:, None]).all():
            return False
    return True


@pytest.mark.parametrize("kind", [PLAIN, VARYING], ids=["plain", "varying"])
def test_writers_take_the_blocks_of_a_stopped_saver(tmp_path: Path, kind: Schema) -> None:
    with fresh_store("96MiB") as store:
        table = store.create_table("t", kind, ROWS, max_writers=1)
        append(table, 0, ROWS)
        store.checkpoint(tmp_path)
        before = digest(tmp_path)
        append(table, ROWS, ROWS)
        with stopped_saver(store.name, tmp_path) as process:
            append(table, 2 * ROWS, ROWS)  # all of it comes to be written over
            assert state(process) == "T"
            said = go_on(process)
        assert said.startswith("CheckpointLapsed the checkpoint stood still"), said
        assert "'t'" in said
        assert digest(tmp_path) == before, "nothing was committed, and nothing is left"
        table.verify()
        assert are_whole(table)
        assert store.checkpoint(tmp_path).number == 2
        with Store.restore(tmp_path, f"again-{os.getpid()}", "96MiB") as again:
            assert keys_of(again["t"]).tolist() == keys_of(table).tolist()
            assert are_whole(again["t"])


def test_a_stopped_saver_that_nobody_waits_for_goes_on(tmp_path: Path) -> None:
    with fresh_store("96MiB") as store:
        table = store.create_table("t", PLAIN, ROWS, max_writers=1)
        append(table, 0, ROWS)
        before = keys_of(table).tolist()
        with stopped_saver(store.name, tmp_path) as process:
            time.sleep(2.5)
            assert go_on(process) == "taken\n"
        with Store.restore(tmp_path, f"again-{os.getpid()}", "96MiB") as again:
            assert keys_of(again["t"]).tolist() == before


def test_a_stopped_saver_is_named_and_a_killed_one_is_in_nobodys_way(tmp_path: Path) -> None:
    with fresh_store("96MiB") as store:
        append(store.create_table("t", PLAIN, ROWS, max_writers=1), 0, ROWS)
        with stopped_saver(store.name, tmp_path) as process:
            with pytest.raises(CheckpointBusy, match=rf"process {process.pid} is .*stopped, continue it or kill it"):
                store.checkpoint(tmp_path / "elsewhere")
            process.kill()
            process.wait()
            assert store.checkpoint(tmp_path / "elsewhere").number == 1
            assert store.checkpoint(tmp_path).number == 1


def test_a_saver_that_closes_its_store_is_in_nobodys_way(tmp_path: Path) -> None:
    with fresh_store("96MiB") as store:
        append(store.create_table("t", PLAIN, ROWS, max_writers=1), 0, ROWS)
        saver = Store.attach(store.name)
        info = saver.checkpoint(tmp_path, progress=lambda done, total: saver.close())
        assert (info.number, saver.closed) == (1, True)  # what is under way is finished, and then let go
        assert store.checkpoint(tmp_path).number == 2


def test_a_slow_saver_keeps_its_blocks(tmp_path: Path) -> None:
    """A second or so between turns, for longer than a hold that stands still would last."""
    with fresh_store("96MiB") as store:
        table = store.create_table("t", PLAIN, ROWS, max_writers=1)
        append(table, 0, ROWS)
        before = keys_of(table).tolist()
        appended: list[str] = []

        def write() -> None:
            append(table, ROWS, ROWS)
            appended.append("all")

        writer = threading.Thread(target=write)

        def pause(done: int, total: int) -> None:
            if writer.ident is None:
                writer.start()
            time.sleep(1.0)

        info = store.checkpoint(tmp_path, progress=pause)
        assert info.seconds > 3.0
        writer.join()
        assert appended == ["all"]
        assert checkpoints.verify(tmp_path).number == 1
        with Store.restore(tmp_path, f"again-{os.getpid()}", "96MiB") as again:
            assert keys_of(again["t"]).tolist() == before
