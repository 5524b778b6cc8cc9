"""Sizes, and how much memory is left: against made-up proc and cgroup trees of both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_store import (
    ConfigError,
    Headroom,
    OutOfHostMemory,
    UnsupportedPlatform,
    available_bytes,
    check_fits,
    parse_bytes,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *(
            (1, 1),
            ("4096", 4096),
            ("64b", 64),
            ("1KiB", 1024),
            ("1kb", 1000),
            ("4GiB", 4 << 30),
            ("512MB", 512 * 10**6),
        ),
        *((" 2 TiB ", 2 << 40), ("0.5GiB", 1 << 29), (".5kib", 512), ("1.5kB", 1500), (2**63 - 1, 2**63 - 1)),
    ],
)
def test_parse_bytes(size: str | int, expected: int) -> None:
    assert parse_bytes(size) == expected


@pytest.mark.parametrize(
    "size", ["", "GiB", "4 Gi", "-4GiB", "1e9", "4GiB!", "4,5GiB", 4.0, None, True, b"4"]
)
def test_what_is_no_size_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not a size in bytes. Write a whole number"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [0, -1, "0", "0.3b", 2**63, "8388608TiB", "9" * 400 + ".5TiB"])
def test_sizes_out_of_range_are_refused(size: str | int) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 1 to 9,223,372,036,854,775,807"):
        parse_bytes(size)


# ---------------------------------------------------------------- trees


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def proc(root: Path, available_kib: int, cgroup: str, mounts: str) -> Path:
    write(
        root / "proc/meminfo", f"MemTotal: 9999999 kB\nMemFree: 1 kB\nMemAvailable:    {available_kib} kB\n"
    )
    write(root / "proc/self/cgroup", cgroup)
    write(root / "proc/self/mountinfo", mounts)
    return root


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = (
    "30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 30 0:29 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
    "35 30 0:32 / /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory\n"
)


def v2(root: Path, group: str, limit: object, used: int, inactive_file: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / group
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{used}\n")
    write(folder / "memory.stat", f"anon 1\ninactive_file {inactive_file}\nactive_file 5\n")


def v1(root: Path, group: str, limit: int, used: int, inactive_file: int = 0) -> None:
    folder = root / "sys/fs/cgroup/memory" / group
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{used}\n")
    write(folder / "memory.stat", f"inactive_file 3\ntotal_inactive_file {inactive_file}\n")


def test_without_cgroups_the_machine_decides(tmp_path: Path) -> None:
    assert available_bytes(proc(tmp_path, 100, "", "")) == Headroom(102_400, "MemAvailable of /proc/meminfo")


def test_v2_counts_inactive_file_cache_as_available(tmp_path: Path) -> None:
    proc(tmp_path, 10**9, "0::/app\n", V2_MOUNT)
    v2(tmp_path, "app", 100 * MIB, 60 * MIB, 10 * MIB)
    assert available_bytes(tmp_path) == Headroom(50 * MIB, "cgroup /app (memory.max 104,857,600)")


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ((100, 70), (90, 10), "/a"),
        ((100, 70), ("max", 10), "/a"),
        ((100, 10), (90, 70), "/a/b"),
        (("max", 9), (90, 70), "/a/b"),
    ],
)
def test_v2_nested_limits_the_tightest_decides(tmp_path: Path, outer: Any, inner: Any, expected: str) -> None:
    proc(tmp_path, 10**9, "0::/a/b/c\n", V2_MOUNT)
    for group, (limit, used) in {"a": outer, "a/b": inner, "a/b/c": ("max", 1)}.items():
        v2(tmp_path, group, limit if limit == "max" else limit * MIB, used * MIB)
    found = available_bytes(tmp_path)
    assert found.source.startswith(f"cgroup {expected} (memory.max ")
    assert found.bytes == (30 if expected == "/a" else 20) * MIB


def test_v2_limit_at_the_top_of_a_container(tmp_path: Path) -> None:
    proc(tmp_path, 10**9, "0::/\n", V2_MOUNT)
    v2(tmp_path, "", 64 * MIB, MIB)
    assert available_bytes(tmp_path).bytes == 63 * MIB


def test_v2_without_a_cgroup_namespace_the_mount_shows_only_a_part(tmp_path: Path) -> None:
    mount = V2_MOUNT.replace("0:28 / /sys", "0:28 /docker/abc /sys")
    proc(tmp_path, 10**9, "0::/docker/abc/inner\n", mount)
    v2(tmp_path, "", 64 * MIB, MIB)
    v2(tmp_path, "inner", 32 * MIB, MIB)
    assert available_bytes(tmp_path).source == "cgroup /inner (memory.max 33,554,432)"


@pytest.mark.parametrize("path", ["/../../elsewhere", "/elsewhere"])
def test_a_path_outside_of_the_mount_falls_back_to_its_top(tmp_path: Path, path: str) -> None:
    proc(tmp_path, 10**9, f"0::{path}\n", V2_MOUNT.replace("0:28 / /sys", "0:28 /docker /sys"))
    v2(tmp_path, "", 64 * MIB, MIB)
    assert available_bytes(tmp_path).bytes == 63 * MIB


def test_usage_above_the_limit_leaves_nothing(tmp_path: Path) -> None:
    proc(tmp_path, 10**9, "0::/a\n", V2_MOUNT)
    v2(tmp_path, "a", 64 * MIB, 65 * MIB)
    assert available_bytes(tmp_path).bytes == 0


def test_v1_nested_limits(tmp_path: Path) -> None:
    proc(tmp_path, 10**9, "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n", V1_MOUNT)
    v1(tmp_path, "", 9223372036854771712, MIB)
    v1(tmp_path, "a", 100 * MIB, 80 * MIB, 5 * MIB)
    v1(tmp_path, "a/b", 90 * MIB, 10 * MIB)
    assert available_bytes(tmp_path) == Headroom(25 * MIB, "cgroup /a (memory.limit_in_bytes 104,857,600)")


def test_both_versions_side_by_side_and_a_mount_point_with_a_space(tmp_path: Path) -> None:
    mounts = V1_MOUNT + "38 31 0:38 / /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n"
    proc(tmp_path, 10**9, "4:memory:/a\n0::/x\n", mounts)
    v1(tmp_path, "a", 100 * MIB, 10 * MIB)
    folder = tmp_path / "sys/fs/my groups/x"
    write(folder / "memory.max", str(50 * MIB))
    write(folder / "memory.current", "0")  # and no memory.stat
    assert available_bytes(tmp_path).bytes == 50 * MIB


def test_groups_whose_files_cannot_be_read_limit_nothing(tmp_path: Path) -> None:
    proc(tmp_path, 100, "0::/gone (deleted)\n", V2_MOUNT)
    assert available_bytes(tmp_path).bytes == 102_400


def test_without_meminfo_the_platform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedPlatform, match="has no MemAvailable"):
        available_bytes(tmp_path)


def test_this_machine_has_memory_left() -> None:
    assert available_bytes().bytes > 0


# ---------------------------------------------------------------- check_fits


def test_what_fits_is_let_through() -> None:
    check_fits(64 * MIB, "store 'a'", Headroom(80 * MIB, "here"))
    check_fits(1, "store 'a'")


def test_what_does_not_fit_is_refused_by_name_and_number() -> None:
    with pytest.raises(OutOfHostMemory) as caught:
        check_fits(128 * MIB, "store 'a'", Headroom(64 * MIB, "cgroup /a (memory.max 67,108,864)"))
    message = str(caught.value)
    assert "store 'a' needs 134,217,728 bytes" in message
    assert "67,108,864 are available by cgroup /a (memory.max 67,108,864). Ask for less" in message


def test_page_tables_are_counted() -> None:
    with pytest.raises(OutOfHostMemory, match="needs 67,108,864 bytes, and 4,718,592 more for page tables"):
        check_fits(64 * MIB, "store 'a'", Headroom(64 * MIB, "here"))


def test_more_than_this_machine_has_is_refused() -> None:
    with pytest.raises(OutOfHostMemory, match=r"available by (MemAvailable|cgroup)"):
        check_fits(1 << 60, "store 'a'")
