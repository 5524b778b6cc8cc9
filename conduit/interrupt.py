"""Ctrl-C in the `conduit` command: one line and status 130, also while the modules are loaded that it needs.

The package is loaded before any of the command's own lines can run, in a fraction of a second or, from a slow disk, in
several. So this is the first module that it imports, and it acts then: only where the program is the command that is
installed beside this Python.
"""

import os
import signal
import sys

__all__ = ["MESSAGE", "STATUS", "late"]

MESSAGE = "conduit: interrupted"
STATUS = 130  # as shells have it for SIGINT


def _early() -> None:
    """From here on Ctrl-C ends the process at once: nothing has been begun that would have to be undone."""
    script, python = (os.path.abspath(path) for path in (sys.argv[0], sys.executable))
    command = os.path.join(os.path.dirname(python), "conduit")
    if script == command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def late() -> None:
    """From here on it raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os.write(2, f"{MESSAGE}\n".encode())
    os._exit(STATUS)


_early()
