"""`conduit gc`: removes the names that killed stores left behind.

Memory needs no such cleaning: it goes with the last process that holds it. A stale name costs a directory
entry, and `create` replaces it.
"""

from __future__ import annotations

from conduit_transport import names, shm

__all__ = ["collect"]


def collect(dry_run: bool = False) -> list[str]:
    """Removes names whose connect is refused, and returns them sorted; with `dry_run` only returns them.

    A name that any process listens on, even a stopped one, is left alone. Safe beside creators and other
    collectors. Blocks while another process is taking a name, 5 s at most for each.

    Raises:
        ConfigError: the runtime directory cannot be used.
        LockTimeout: a process was stopped while taking a name.
        OSError: a path could not be removed.
    """
    if dry_run:
        return [name for name in names.list_names() if not shm.is_live(name)]
    return [name for name in names.list_names() if shm.unlink(name)]
