"""Ctrl-C in the commands that read and write files: one line, status 130, and no half of anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from conduit import Column, Schema, Store, Table
from tests.store_support import fresh_store

ROWS = Schema((Column("x", "int64", (8,)),))

# Where each command stops in the middle and waits; what it has written by then is there.
STOPS = {
    "export": ("conduit.exchange.parquet", "Sink.write"),
    "import": ("conduit.exchange.inflow", "Inflow.append"),
    "checkpoint": ("conduit.checkpoints.work", "TableWork.finish"),
    "restore": ("conduit.checkpoints.restoring", "_put_back"),
    "verify": ("conduit.checkpoints.reading", "_check_columns"),
}
STOPPING = textwrap.dedent("""
    import importlib, sys
    module, path = sys.argv.pop(1), sys.argv.pop(1)
    holder = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    whole = getattr(holder, name)
    def stops(*args, **kwargs):
        made = whole(*args, **kwargs)
        print("here", flush=True)
        sys.stdin.read()
        return made
    setattr(holder, name, stops)
    from conduit import cli
    sys.exit(cli.main(sys.argv[1:]))
""")


def filled(store: Store, name: str = "t") -> Table:
    table = store.create_table(name, ROWS, 1_000)
    table.extend({"x": np.arange(8_000).reshape(1_000, 8)})
    return table


def interrupted(command: str, *arguments: str) -> str:
    """Run a command, interrupt it in the middle, and return what it says."""
    line = [sys.executable, "-c", STOPPING, *STOPS[command], command, *arguments]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "here\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130
        return process.stderr.read()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_export(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"what was there")
    with fresh_store() as store:
        filled(store)
        said = interrupted("export", store.name, "t", str(tmp_path / "x.parquet"), "--overwrite")
        assert said == "conduit: interrupted\n"
        assert files(tmp_path) == {"x.parquet": b"what was there"}


def test_import(tmp_path: Path) -> None:
    with fresh_store() as store:
        filled(store).export(tmp_path / "x.parquet")
        said = interrupted("import", str(tmp_path / "x.parquet"), store.name, "again")
        assert said == "conduit: interrupted; table 'again' has been created, and is empty\n"
        assert len(store["again"]) == 0
        assert store["again"].import_from(tmp_path / "x.parquet") == 1_000


def test_checkpoint(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = filled(store)
        store.checkpoint(tmp_path)
        before = files(tmp_path)
        table.extend({"x": np.zeros((10, 8), np.int64)})
        assert interrupted("checkpoint", store.name, str(tmp_path)) == "conduit: interrupted\n"
        assert files(tmp_path) == before


@pytest.mark.parametrize("command", ["restore", "verify"])
def test_restore_and_verify(tmp_path: Path, command: str) -> None:
    with fresh_store() as store:
        filled(store)
        store.checkpoint(tmp_path)
        name = f"{store.name}-again"
        before = files(tmp_path)
        given = [str(tmp_path), *([name] if command == "restore" else [])]
        assert interrupted(command, *given) == "conduit: interrupted\n"
        assert files(tmp_path) == before
        Store.restore(tmp_path, name).close()  # the name is free


def test_a_restored_store_is_held_until_ctrl_c(tmp_path: Path) -> None:
    with fresh_store() as store:
        filled(store)
        store.checkpoint(tmp_path)
        line = [sys.executable, "-m", "conduit.cli", "restore", str(tmp_path), f"{store.name}-again"]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "holds 1,000 rows of 1 tables" in process.stdout.readline()
            os.kill(process.pid, signal.SIGINT)
            assert process.wait() == 0
            assert process.stderr.read() == ""


EARLY = textwrap.dedent("""
    import os, signal, sys
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "{module}":
                os.kill(os.getpid(), signal.SIGINT)
    sys.meta_path.insert(0, Finder())
    from conduit.cli import main
    sys.exit(main(["ls"]))
""")


@pytest.mark.parametrize("module", ["conduit.agents", "numpy", "conduit.cli", "conduit.inspection"])
@pytest.mark.parametrize("installed", [True, False])
def test_while_modules_are_loaded(tmp_path: Path, module: str, installed: bool) -> None:
    """Only the installed command does anything about Ctrl-C: a program of somebody's own is left alone."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    (tmp_path / "lib").symlink_to(Path(sys.prefix) / "lib")
    script = tmp_path / ("bin" if installed else "other") / "conduit"
    script.parent.mkdir(exist_ok=True)
    script.write_text(EARLY.format(module=module))
    done = subprocess.run([str(python), str(script)], check=False, capture_output=True, text=True)
    if installed or module == "conduit.inspection":  # the latter within the command
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "conduit: interrupted\n")
    else:
        assert done.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in done.stderr
