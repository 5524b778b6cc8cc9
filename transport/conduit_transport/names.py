"""Where the names of this node's stores live: one directory for each user, one socket in it for each name.

    <runtime dir>/            0700, ours, no symlink
        .lock                 flock'd for the moment in which a name is taken or freed
        <name>.sock           leads to the processes that hold the store

Every process of a run must resolve the same directory: a login shell has XDG_RUNTIME_DIR where a daemon may
not, so set CONDUIT_RUNTIME_DIR for runs that mix them.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from conduit_store.errors import ConfigError

__all__ = ["MAX_PATH_BYTES", "check_name", "list_names", "runtime_dir", "socket_path"]

MAX_PATH_BYTES = 107  # sun_path of struct sockaddr_un, less its final NUL
_NAME = re.compile(r"[A-Za-z0-9._-]{1,63}")
_SUFFIX = ".sock"
_ENV = "CONDUIT_RUNTIME_DIR"


def check_name(name: str) -> str:
    """Returns `name` if a store may be called so.

    Raises:
        ConfigError: not 1 to 63 of A-Z a-z 0-9 . _ -
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"store name {name!r} is not allowed: use 1 to 63 of the characters A-Z a-z 0-9 . _ -")
    return name


def runtime_dir() -> Path:
    """The directory of this user's store names, made (mode 0700) where it is missing.

    The first that is given: $CONDUIT_RUNTIME_DIR; $XDG_RUNTIME_DIR/conduit, where that is this user's
    (after `su` or `sudo` it is often another's, and then skipped); <temporary directory>/conduit-<uid>.
    Only its last component is ever made.

    Raises:
        ConfigError: it cannot be made, is relative, a symlink, no directory, another user's, or open to
            group or others.
    """
    path, source = _choose()
    try:
        _make(path)
        found = os.lstat(path)
    except OSError as error:
        raise ConfigError(
            f"runtime directory '{path}' (from {source}) cannot be used: {error.strerror}. "
            f"Set {_ENV} to a directory of your own"
        ) from error
    _check_private(path, source, found)
    return path


def socket_path(name: str) -> Path:
    """The socket that leads to the store `name`, whether or not it exists.

    Raises:
        ConfigError: a name that is not allowed, a path beyond 107 bytes, or what `runtime_dir` raises.
    """
    path = runtime_dir() / (check_name(name) + _SUFFIX)
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise ConfigError(
            f"socket path '{path}' has {length} bytes, the kernel allows {MAX_PATH_BYTES}. "
            f"Use a shorter store name, or set {_ENV} to a shorter directory"
        )
    return path


def list_names() -> list[str]:
    """Names that have a socket here, sorted; stale ones (whose holders were killed) are among them.

    Raises:
        ConfigError: as `runtime_dir`.
    """
    names = []
    with os.scandir(runtime_dir()) as entries:
        for entry in entries:
            name = entry.name.removesuffix(_SUFFIX)
            if name != entry.name and _NAME.fullmatch(name) and _is_socket(entry):
                names.append(name)
    return sorted(names)


def _choose() -> tuple[Path, str]:
    given = os.environ.get(_ENV)
    if given:
        path = Path(given)
        if not path.is_absolute():
            raise ConfigError(
                f"{_ENV}={given!r} is relative, so processes in other directories would not meet. Give an absolute path"
            )
        return path, _ENV
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg and _is_ours(xdg):
        return Path(xdg) / "conduit", "XDG_RUNTIME_DIR"
    import tempfile  # rarely needed, and 5 ms at import

    return Path(tempfile.gettempdir()).absolute() / f"conduit-{os.geteuid()}", "the temporary directory"


def _is_ours(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and os.path.isabs(path)


def _make(path: Path) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return


def _check_private(path: Path, source: str, found: os.stat_result) -> None:
    """Whoever can write here can pose as a store, so nothing but a private directory of ours will do."""
    where = f"runtime directory '{path}' (from {source})"
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(f"{where} is a symlink to '{os.readlink(path)}': set {_ENV} to the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{where} is not a directory: remove it, or set {_ENV} to another path")
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{where} belongs to uid {found.st_uid}, this process runs as uid {os.geteuid()}. "
            f"Run as that user, or set {_ENV} to a directory of your own"
        )
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{where} has mode {stat.S_IMODE(found.st_mode):04o}, others must have no access (0700). "
            f"Run: chmod 700 '{path}'"
        )


def _is_socket(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:  # gone since it was listed
        return False
