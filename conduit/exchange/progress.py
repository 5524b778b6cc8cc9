"""How far an export or import is: a bar on stderr, or a call."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from conduit.values import check_function

__all__ = ["Progress", "shown"]

Progress = bool | Callable[[int, int | None], None]
"""False: nothing. True: a bar on stderr (by rich if that is installed). Else called with rows done, and of how many."""

_LINE_S = 2.0  # between two lines where there is no terminal, or no rich


@contextlib.contextmanager
def shown(progress: Progress, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many rows are done."""
    if not isinstance(progress, bool):
        check_function("progress", progress)
    if progress is False or progress is None:
        yield lambda done: None
    elif progress is not True:
        yield lambda done: progress(done, total)
    else:
        with contextlib.ExitStack() as stack:
            yield _bar(stack, what, total) or _lines(what, total)


def _bar(stack: contextlib.ExitStack, what: str, total: int | None) -> Callable[[int], None] | None:
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TimeRemainingColumn(),
    )
    bar = stack.enter_context(Bar(*columns, console=Console(stderr=True)))
    task = bar.add_task(what, total=total)
    return lambda done: bar.update(task, completed=done)


def _lines(what: str, total: int | None) -> Callable[[int], None]:
    last = time.monotonic()

    def tell(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_S:
            last = time.monotonic()
            print(f"{what}: {done:,}{'' if total is None else f' of {total:,}'} rows", file=sys.stderr, flush=True)

    return tell
