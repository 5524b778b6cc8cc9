"""How many bytes this process may still reserve: what the machine has, and what every cgroup above allows.

Reserving shared memory beyond a cgroup's limit is no error but the end of the process, so it is asked here
first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .errors import ConfigError, OutOfHostMemory, UnsupportedPlatform

__all__ = ["Headroom", "available_bytes", "check_fits", "parse_bytes"]

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)
_MAX_BYTES = 2**63 - 1  # what the kernel can count

# Beside the pages themselves the kernel charges their index (0.2 %) and each process's page tables (0.2 %);
# and the process that reserves must itself go on living.
_KERNEL_SHARE = 128
_SPARE_BYTES = 4 << 20


class Headroom(NamedTuple):
    """`bytes` that can still be reserved, and the `source` that allows no more."""

    bytes: int
    source: str


def parse_bytes(size: str | int) -> int:
    """Return a number of bytes: '4GiB' (powers of 1024), '512MB' (powers of 1000), '4096' or 4096.

    Raises:
        ConfigError: not such a size, a fraction of a byte, less than 1 or 2**63 or more.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        count: float = size
    else:
        match = _SIZE.fullmatch(size) if isinstance(size, str) else None
        scale = _UNITS.get(match[2].lower()) if match else None
        if match is None or scale is None:
            raise ConfigError(
                f"{size!r} is not a size in bytes. Write a whole number, or one with a unit: '4GiB', '512MB'"
            )
        count = float(match[1]) * scale if "." in match[1] else int(match[1]) * scale
    if not 1 <= count <= _MAX_BYTES or count != int(count):
        raise ConfigError(f"{size!r} is {count:,} bytes, and must be a whole number from 1 to {_MAX_BYTES:,}")
    return int(count)


def available_bytes(root: Path = Path("/")) -> Headroom:
    """Return what can still be reserved: the least of MemAvailable and of what each cgroup above has left.

    Of a cgroup (version 2 and 1) that is limit - usage + inactive file cache, which the kernel gives up
    first. A cgroup without a limit, or whose files cannot be read, limits nothing. `root` is where proc and
    the cgroup mounts are looked up.

    Raises:
        UnsupportedPlatform: no MemAvailable in proc/meminfo.
    """
    limits = [_machine_headroom(root), *_cgroup_headrooms(root)]
    return min(limits, key=lambda headroom: headroom.bytes)


def check_fits(nbytes: int, what: str, headroom: Headroom | None = None) -> None:
    """Return if `nbytes` can be reserved for `what`, with a little to spare for page tables.

    `headroom` is what there is; None asks the system.

    Raises:
        OutOfHostMemory: it does not fit; says what was asked, what is available and by which limit.
    """
    if headroom is None:
        headroom = available_bytes()
    extra = nbytes // _KERNEL_SHARE + _SPARE_BYTES
    if nbytes + extra > headroom.bytes:
        raise OutOfHostMemory(
            f"{what} needs {nbytes:,} bytes, and {extra:,} more for page tables; {headroom.bytes:,} are "
            f"available by {headroom.source}. Ask for less, free memory, or raise that limit"
        )


def _machine_headroom(root: Path) -> Headroom:
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    if match is None:
        raise UnsupportedPlatform(
            f"{root / 'proc/meminfo'} has no MemAvailable, so the free memory is unknown. Mount proc, on "
            "Linux 3.14 or later"
        )
    return Headroom(int(match[1]) * 1024, "MemAvailable of /proc/meminfo")


def _cgroup_headrooms(root: Path) -> Iterator[Headroom]:
    """Yield the headroom of every limited cgroup, from the process's own up to the mount."""
    mounts = list(_cgroup_mounts(_text(root / "proc/self/mountinfo")))
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for mount_version, mount_root, mount_point in mounts:
            if mount_version == version:
                top = root / mount_point.relative_to("/")
                for group in _ancestors(PurePosixPath(path), mount_root):
                    yield from _group_headroom(top, group, version)


def _cgroup_mounts(mountinfo: str) -> Iterator[tuple[int, PurePosixPath, PurePosixPath]]:
    """Yield (version, root within the hierarchy, mount point) of each mount that may account memory."""
    for line in mountinfo.splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.partition(" ")
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version is None or (version == 1 and "memory" not in options.split(" ")[-1].split(",")):
            continue
        mount_root, mount_point = (_unescaped(field) for field in fields.split(" ")[3:5])
        yield version, PurePosixPath(mount_root), PurePosixPath(mount_point)


def _ancestors(path: PurePosixPath, mount_root: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the cgroup `path` and those above it, relative to a mount that shows what is below `mount_root`.

    In a container the path may lie outside of what is mounted; then the mount's top is the nearest group that
    can be read.
    """
    inside = path.is_relative_to(mount_root) and ".." not in path.parts
    relative = path.relative_to(mount_root) if inside else PurePosixPath(".")
    yield relative
    yield from relative.parents


def _group_headroom(top: Path, group: PurePosixPath, version: int) -> Iterator[Headroom]:
    limit_name, usage_name, cache_name = (
        ("memory.max", "memory.current", "inactive_file")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    folder = top / group
    limit, usage = _text(folder / limit_name).strip(), _text(folder / usage_name).strip()
    if not limit.isdigit() or not usage.isdigit():
        return  # 'max', or no such file: the root group of version 2 has none
    cache = re.search(rf"^{cache_name} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
    left = int(limit) - int(usage) + (int(cache[1]) if cache else 0)
    yield Headroom(max(left, 0), f"cgroup {PurePosixPath('/') / group} ({limit_name} {int(limit):,})")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _unescaped(field: str) -> str:
    # mountinfo writes a space as \040
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
