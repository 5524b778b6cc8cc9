"""Where store names live: which directory, what is refused about it, and which names fit."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from conduit_store.errors import ConduitError, ConfigError
from conduit_transport import names


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CONDUIT_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_given_directory_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(tmp_path / "given"))
    assert names.runtime_dir() == tmp_path / "given"


def test_xdg_comes_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert names.runtime_dir() == tmp_path / "conduit"


@pytest.mark.parametrize("missing", [True, False])
def test_an_xdg_directory_that_is_not_ours_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: bool
) -> None:
    foreign = tmp_path / "xdg"
    if not missing:
        foreign.write_text("no directory")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(foreign))
    assert names.runtime_dir() == tmp_path / f"conduit-{os.geteuid()}"


@pytest.mark.parametrize("variable", ["CONDUIT_RUNTIME_DIR", "XDG_RUNTIME_DIR"])
def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    monkeypatch.setenv(variable, "")
    assert names.runtime_dir() == tmp_path / f"conduit-{os.geteuid()}"


def test_it_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert _mode(names.runtime_dir()) == 0o700
    finally:
        os.umask(before)


def test_a_relative_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", "run")
    with pytest.raises(ConfigError, match="'run' is relative"):
        names.runtime_dir()


def test_a_missing_parent_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(tmp_path / "no" / "run"))
    with pytest.raises(ConfigError, match="No such file"):
        names.runtime_dir()


def test_a_symlink_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(tmp_path / "link"))
    with pytest.raises(ConfigError, match="symlink"):
        names.runtime_dir()


def test_a_symlink_in_the_temporary_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(0o700)
    (tmp_path / f"conduit-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="symlink"):
        names.runtime_dir()


def test_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="not a directory"):
        names.runtime_dir()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_open_to_others_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "wide"
    path.mkdir()
    path.chmod(mode)
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(path))
    with pytest.raises(ConfigError, match=f"mode {mode:04o}.*chmod 700"):
        names.runtime_dir()


def test_another_users_directory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owner = os.geteuid()
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to uid {owner}, this process runs as uid {owner + 1}"):
        names.runtime_dir()


@pytest.mark.parametrize("name", ["run1", "a", "A-b_c.9", ".", "..", "x" * 63])
def test_allowed_names(name: str) -> None:
    assert names.check_name(name) == name


def test_the_socket_lies_in_the_runtime_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setenv("CONDUIT_RUNTIME_DIR", base)
        assert names.socket_path("run1") == Path(base, "run1.sock")


@pytest.mark.parametrize("name", ["", "x" * 65, "a/b", "../x", "a b", "run1\n", "ü", "a\0b", "*", None, 3])
def test_refused_names(name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 63"):
        names.socket_path(name)


def test_a_path_of_107_bytes_fits_and_108_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        directory = Path(base) / ("d" * (names.MAX_PATH_BYTES - len(f"{base}//.sock") - 63))
        directory.mkdir(0o700)
        monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(directory))
        fits = names.socket_path("n" * 63)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(fits))
        assert len(str(fits)) == 107
        monkeypatch.setenv("CONDUIT_RUNTIME_DIR", f"{directory}d")
        with pytest.raises(ConduitError, match=r"has 108 bytes, the kernel allows 107"):
            names.socket_path("n" * 63)


def test_listed_are_sockets_with_allowed_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        monkeypatch.setenv("CONDUIT_RUNTIME_DIR", base)
        assert names.list_names() == []
        for file in ("b.sock", "a.sock", "other", "c d.sock", ".sock"):
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(f"{base}/{file}")
        Path(base, "file.sock").write_text("")
        Path(base, "link.sock").symlink_to(f"{base}/a.sock")
        assert names.list_names() == ["a", "b"]
