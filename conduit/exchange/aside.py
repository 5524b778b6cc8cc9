"""Files and folders written aside and renamed when they are whole, so that nobody meets a half of one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from conduit_store.errors import ConfigError, NameTaken

__all__ = ["aside"]


@contextlib.contextmanager
def aside(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a name beside `path` to write a file or a folder to; when the block is left, that becomes `path`.

    It is on disk by then (fsync). Whatever ends the block otherwise, Ctrl-C too, leaves `path` as it was and removes
    the other; a killed process leaves a name that ends in `.partial-<pid>`.

    Raises:
        NameTaken: `path` is there, and `overwrite` is false. ConfigError: there is no such folder to write into.
    """
    if path.exists() and not overwrite:
        raise NameTaken(f"{path} is there already: give another path, or overwrite=True (--overwrite)")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is no folder: make it first, or give another path")
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    _remove(partial)  # of a killed process with the same id
    try:
        yield partial
        for file in sorted(partial.rglob("*")) if partial.is_dir() else [partial]:
            _sync(file)
        _sync(partial)
        if path.is_dir():
            old = path.with_name(f"{path.name}.old-{os.getpid()}")
            path.rename(old)
            partial.rename(path)
            _remove(old)
        else:
            partial.replace(path)
        _sync(path.parent)
    finally:
        _remove(partial)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
