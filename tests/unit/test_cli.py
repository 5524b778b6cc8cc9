"""The `conduit` command: what each subcommand prints, and how errors become one line and status 2."""

from __future__ import annotations

import importlib.util
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import conduit
from conduit import cli, demo, inspection
from conduit.checkpoints import commands
from conduit_transport import names


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Names of this test alone."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CONDUIT_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def stale() -> str:
    """A name whose holder is gone: its socket was bound, and closed without being removed."""
    path = names.socket_path("stale")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
    return "stale"


@pytest.fixture
def live() -> Iterator[str]:
    """The name of a live store: one plain table of 10 rows, 4 of them filled."""
    with conduit.Store.create("live", host_memory="16MiB") as store:
        table = store.create_table("numbers", conduit.Schema.from_example({"x": np.zeros(3)}), max_size=10)
        table.extend({"x": np.ones((4, 3))})
        yield store.name


def one_line(text: str) -> str:
    assert text.endswith("\n")
    assert text.count("\n") == 1, f"more than one line: {text!r}"
    return text.rstrip("\n")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"conduit {conduit.__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [[], ["nonsense"], ["info"], ["demo", "--steps=0"], ["demo", "--plain", "--actors=-1"], ["demo", "--actors=2"]],
)
def test_arguments_that_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "usage: conduit" in capsys.readouterr().err


class TestGc:
    def test_nothing_to_remove(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["gc"]) == 0
        assert capsys.readouterr().out == "nothing to remove\n"

    def test_dry_run_leaves_the_name(self, stale: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["gc", "--dry-run"]) == 0
        assert capsys.readouterr().out == "stale: stale\n"
        assert names.list_names() == [stale]

    @pytest.mark.usefixtures("stale")
    def test_removes_stale_names_only(self, live: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["gc"]) == 0
        assert capsys.readouterr().out == "removed: stale\n"
        assert names.list_names() == [live]


class TestLs:
    def test_says_where_names_would_be(self, runtime_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ls"]) == 0
        assert str(runtime_dir) in capsys.readouterr().out

    @pytest.mark.usefixtures("live", "stale")
    def test_live_and_stale(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["ls"]) == 0
        head, first, second = capsys.readouterr().out.splitlines()
        assert head.split() == ["store", "tables", "rows"]
        assert first.split() == ["live", "numbers", "4"]
        assert second.split(maxsplit=1)[1].strip() == "stale: run `conduit gc`"


class TestInfo:
    @pytest.mark.usefixtures("live")
    def test_fill_and_metrics(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["info", "live"]) == 0
        printed = capsys.readouterr().out
        lines = dict(re.findall(r"^(.*?) {2,}(.*?) *$", printed, re.MULTILINE))
        assert lines["store live"] == "numbers"
        assert lines["fill"] == "40.0 %"
        assert lines["rows"] == "4"
        assert lines["max_size"] == "10"
        assert lines["appended"] == "4"
        assert lines["append_s"].endswith(" s")

    def test_unknown_store(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["info", "nobody"]) == 2
        message = one_line(capsys.readouterr().err)
        assert message.startswith("conduit: ")
        assert "nobody" in message


class TestErrors:
    @pytest.mark.parametrize("argv", [["gc"], ["ls"], ["info", "live"]])
    def test_a_conduit_error_is_one_line(
        self, argv: list[str], runtime_dir: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        runtime_dir.chmod(0o755)
        assert cli.main(argv) == 2
        assert "0700" in one_line(capsys.readouterr().err)

    def test_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(inspection, "print_stores", interrupted)
        assert cli.main(["ls"]) == 130


class TestDemo:
    @pytest.mark.parametrize("options", [[], ["--plain"]])
    def test_missing_extra(
        self, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find(name))
        assert cli.main(["demo", *options]) == 2
        message = one_line(capsys.readouterr().err)
        assert "rich" in message
        assert "'conduit-edp[demo]'" in message

    def test_passes_on_what_was_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain: list[list[str]] = []
        rllib: list[dict[str, object]] = []
        monkeypatch.setattr(demo, "run", lambda argv: plain.append(argv) or 1)
        monkeypatch.setattr(demo, "run_rllib", lambda **options: rllib.append(options) or 0)
        assert cli.main(["demo", "--plain", "--steps=5", "--actors=3", "--out", "a b"]) == 1
        assert cli.main(["demo", "--plain"]) == 1
        assert plain == [["--steps=5", "--actors=3", "--out=a b"], []]
        assert cli.main(["demo", "--steps=5", "--out", "a b"]) == 0
        assert cli.main(["demo", "--seed=4"]) == 0
        assert rllib == [
            {"steps": 5, "seed": None, "out": Path("a b")},
            {"steps": None, "seed": 4, "out": None},
        ]

    def test_examples_are_found(self) -> None:
        assert (demo.examples_dir() / "dqn_actor.py").is_file()


def test_plain_grid_where_rich_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    inspection.print_grid(("store", "rows"), [("a", "1"), ("long-name", "12,345")])
    assert capsys.readouterr().out == "store        rows\na               1\nlong-name  12,345\n"


def test_checkpoint_verify_and_restore(
    live: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "saved")
    assert cli.main(["checkpoint", live, folder]) == 0
    assert re.match(r"checkpoint 1 of store 'live' in .*: 4 rows of 1 tables, ", one_line(capsys.readouterr().out))
    assert cli.main(["verify", folder]) == 0
    assert "is whole: 4 rows of 1 tables" in one_line(capsys.readouterr().out)
    assert cli.main(["verify", live]) == 0
    assert one_line(capsys.readouterr().out) == "store 'live' is consistent: numbers"

    def look() -> None:
        with conduit.Store.attach("again") as store:
            assert len(store["numbers"]) == 4

    monkeypatch.setattr(commands, "_until_told", look)
    assert cli.main(["restore", folder, "again"]) == 0
    assert one_line(capsys.readouterr().out).startswith("store 'again' holds 4 rows of 1 tables.")
    assert cli.main(["restore", folder, live]) == 2
    assert "conduit: " in one_line(capsys.readouterr().err)
    part = next((tmp_path / "saved").glob("numbers-*-0000.arrow"))
    part.write_bytes(part.read_bytes()[:-1])
    assert cli.main(["verify", folder]) == 2
    assert part.name in one_line(capsys.readouterr().err)
    assert cli.main(["verify", str(tmp_path)]) == 2


def test_an_interrupted_checkpoint_says_so_by_its_status(
    live: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(conduit.Store, "checkpoint", interrupted)
    assert cli.main(["checkpoint", live, str(tmp_path / "saved")]) == 130
