"""What brings a checkpoint's files to the disk: every byte, summed, at any size; and what it says when it cannot."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from conduit import CheckpointError, checkpoints
from conduit_store.native import native
from tests.checkpoint_support import digest
from tests.store_support import fresh_store, schema

BUFFER = 4 << 20  # of the core
SIZES = (0, 1, 4095, 4096, 4097, BUFFER - 1, BUFFER, BUFFER + 1, 9 * BUFFER + 12_345)


def new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


@pytest.mark.parametrize("piece", [1 << 30, 1_000_003])
def test_files_are_what_was_given(tmp_path: Path, piece: int) -> None:
    chance = np.random.default_rng(3)
    given = {f"f{size}": chance.integers(0, 256, size, np.uint8) for size in SIZES}
    writer = native.DiskWriter()
    files = {name: writer.open(new_file(tmp_path / name), name) for name in given}
    for start in range(0, max(SIZES) + 1, piece):  # several at a time
        for name, data in given.items():
            writer.write(files[name], data[start : start + piece])
    sums = {name: writer.close(file) for name, file in files.items()}
    writer.finish()
    for name, data in given.items():
        assert (tmp_path / name).read_bytes() == data.tobytes(), name
        assert sums[name] == native.crc32c(data)
    writer.stop()


def test_a_file_that_is_not_closed_is_let_go(tmp_path: Path) -> None:
    writer = native.DiskWriter()
    fd = new_file(tmp_path / "f")
    file = writer.open(fd, "f")
    writer.write(file, np.zeros(2 * BUFFER + 1, np.uint8))
    writer.stop()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_it_says_which_file_could_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    writer = native.DiskWriter()
    file = writer.open(os.open(tmp_path / "f", os.O_RDONLY | os.O_CLOEXEC), "/some/f")
    with pytest.raises(OSError, match="'/some/f'") as found:  # a thread finds out, some later buffer tells
        writer.write(file, np.zeros(20 * BUFFER, np.uint8))
    assert found.value.errno == errno.EBADF
    with pytest.raises(OSError, match="'/some/f'"):
        writer.finish()
    writer.stop()


def test_a_forked_child_leaves_it_alone(tmp_path: Path) -> None:
    writer = native.DiskWriter()
    file = writer.open(new_file(tmp_path / "f"), "f")
    data = np.ones(3 * BUFFER, np.uint8)
    writer.write(file, data[: 2 * BUFFER])
    child = os.fork()
    if child == 0:
        writer.stop()
        del writer
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.write(file, data[2 * BUFFER :])
    writer.close(file)
    writer.finish()
    assert (tmp_path / "f").read_bytes() == data.tobytes()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_for_a_checkpoint(tmp_path: Path) -> None:
    """As on a full disk: the checkpoint before stays, and nothing of the new one."""
    with fresh_store("64MiB") as store:
        table = store.create_table("t", schema(x="i8", image=("u1", (4096,))), 4_000, max_writers=1)
        table.extend({"x": np.arange(100), "image": np.zeros((100, 4096), "u1")})
        store.checkpoint(tmp_path)
        before = digest(tmp_path)
        table.extend({"x": np.arange(3_900), "image": np.zeros((3_900, 4096), "u1")})
        with files_of_at_most(6 << 20), pytest.raises(CheckpointError, match=r"t-000002-0000\.arrow"):
            store.checkpoint(tmp_path)
        assert digest(tmp_path) == before
        assert store.checkpoint(tmp_path).rows == 4_000
        checkpoints.verify(tmp_path)
