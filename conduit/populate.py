"""Touch the pages of a new table's rows in the background, so that appends do not meet untouched ones.

Those of large tables are put into huge pages meanwhile, and their index too: pages.hpp says why.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref

from conduit_store.errors import StoreClosed
from conduit_store.native import native

__all__ = ["start"]

_HUGE_PAGES_FROM = 8 << 20  # bytes of rows: about what a processor finds without a walk through page tables
_STEP = 16 << 20  # bytes between two looks at whether to stop

_exiting = threading.Event()
_populators: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _end_populators() -> None:
    """Wait for threads that touch pages: one that came back from the core after the interpreter's end would abort."""
    _exiting.set()
    for thread in list(_populators):
        thread.join()


def start(attachment: native.Attachment, core: native.Table, name: str) -> threading.Thread:
    """Begin; returns the thread, which also stops, at its next slice, once the store is closed."""
    thread = threading.Thread(
        target=_populate, args=(attachment, core), name=f"conduit-populate-{name}", daemon=True
    )
    _populators.add(thread)
    thread.start()
    return thread


def _populate(attachment: native.Attachment, core: native.Table) -> None:
    with contextlib.suppress(StoreClosed):
        offset, end = core.data_offset, core.data_offset + core.data_bytes
        join = core.data_bytes >= _HUGE_PAGES_FROM
        for at in range(0, core.control_bytes if join else 0, _STEP):
            if _exiting.is_set():
                return
            core.join_index(at, _STEP)
        for at in range(offset // _STEP * _STEP, end, _STEP):
            if _exiting.is_set():
                return
            first = max(at, offset)
            attachment.populate(first, min(at + _STEP, end) - first, join)
