"""`conduit checkpoint`, `restore` and `verify`: with a bar while they run, and a line at the end."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conduit.checkpoints import manifest as manifests
from conduit.checkpoints.reading import verify
from conduit.store import Store
from conduit_store.errors import ConduitError

__all__ = ["checkpoint", "restore", "verify_any"]


def checkpoint(name: str, folder: str, keep: int) -> int:
    """Save the live store `name`."""
    with Store.attach(name) as store, _bar(f"saving {name}") as progress:
        info = store.checkpoint(folder, keep=keep, progress=progress)
    print(
        f"checkpoint {info.number} of store {name!r} in {folder}: {info.rows:,} rows of {info.tables} tables, "
        f"{_mib(info.bytes)}, of which {_mib(info.written)} were new, in {info.seconds:.1f} s"
    )
    return 0


def restore(folder: str, name: str | None, host_memory: str | None, number: int | None) -> int:
    """Make a store of a checkpoint and hold it until Ctrl-C or SIGTERM."""
    with _bar("restoring") as progress:
        store = Store.restore(folder, name, host_memory, number=number, progress=progress)
    with store, suppress(KeyboardInterrupt):  # which is how it is told to end
        rows = sum(table.rows for table in store.metrics().tables.values())
        print(f"store {store.name!r} holds {rows:,} rows of {len(store.tables())} tables.", end=" ")
        print("It lives while a process holds it: this one does until Ctrl-C", flush=True)
        _until_told()
    return 0


def verify_any(what: str) -> int:
    """Check a folder of checkpoints, or a live store by its name."""
    if Path(what).is_dir() or "/" in what:
        manifest = verify(what)
        rows = sum(table.rows for table in manifest.tables)
        kept = len(manifests.numbers(Path(what)))
        print(
            f"checkpoint {manifest.number} of store {manifest.store!r} ({manifest.created}, {kept} in the folder) is "
            f"whole: {rows:,} rows of {len(manifest.tables)} tables, {_mib(manifest.bytes)}"
        )
        return 0
    with Store.attach(what) as store:
        wrong = [f"{name}: {fault}" for name in store.tables() for fault in store._table(name)._native.verify()]
        if wrong:
            raise ConduitError(f"store {what!r} is not consistent: {'; '.join(wrong)}")
        print(f"store {what!r} is consistent: {', '.join(store.tables()) or 'no tables'}")
    return 0


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


@contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int], object] | None]:
    """A progress bar on a terminal, if rich is installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
    except ImportError:
        yield None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _until_told() -> None:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    while not told.wait(3600):
        pass
    sys.stdout.flush()
