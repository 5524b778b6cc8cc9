"""How an export goes: nothing half written, in bounded memory, beside writers; and the two commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import conduit
from conduit import Column, Schema, Store, Table, cli, windows
from tests.exchange_support import STEPS, file_of, steps_table
from tests.store_support import column_of, fresh_store, vector_writer

FORMATS = ("parquet", "parquet folder", "arrow", "arrow-stream", "numpy")
NUMBERS = Schema((Column("a", np.dtype("i8")), Column("b", np.dtype("i8"), (30,)), Column("c", np.dtype("i8"))))


def numbers(n: int, start: int = 0) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    a = np.arange(start, start + n)
    return {"a": a, "b": np.repeat(a, 30).reshape(-1, 30) * 7, "c": -a}


def test_what_is_there_stays(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.import_table("t", numbers(10))
        path = tmp_path / "x.parquet"
        path.write_bytes(b"precious")
        with pytest.raises(conduit.NameTaken, match=r"x\.parquet is there already.*overwrite"):
            table.export(path)
        assert path.read_bytes() == b"precious"
        assert table.export(path, overwrite=True) == 10
        assert pq.read_table(path).num_rows == 10
        (tmp_path / "parts").mkdir()
        (tmp_path / "parts" / "old").touch()
        assert table.export(tmp_path / "parts", "parquet", overwrite=True) == 10
        assert [file.name for file in (tmp_path / "parts").iterdir()] == ["part-00000.parquet"]
        with pytest.raises(conduit.ConfigError, match="is no folder"):
            table.export(tmp_path / "not there" / "x.parquet")
        with pytest.raises(conduit.ConfigError, match=r"does not tell its format"):
            table.export(tmp_path / "x")
        assert {file.name for file in tmp_path.iterdir()} == {"x.parquet", "parts"}


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_that_is_stopped_leaves_nothing(tmp_path: Path, format: str) -> None:
    class Stop(BaseException):
        pass

    def stop(done: int, total: int | None) -> None:
        raise Stop

    with fresh_store() as store:
        table = store.import_table("t", numbers(100))
        (tmp_path / file_of(format)).mkdir() if " " in format else (tmp_path / file_of(format)).write_bytes(b"precious")
        with pytest.raises(Stop):
            table.export(
                tmp_path / file_of(format), "parquet" if " " in format else None, overwrite=True, progress=stop
            )
        assert [file.name for file in tmp_path.iterdir()] == [file_of(format)]
        assert " " in format or (tmp_path / file_of(format)).read_bytes() == b"precious"
        assert table.info().blocks_pinned == 0


@pytest.mark.parametrize("format", ["parquet", "arrow", "numpy"])
def test_a_compression_that_is_none(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        table = store.import_table("t", numbers(10))
        with pytest.raises(conduit.ConfigError, match=r"compression .*magic.*none"):
            table.export(tmp_path / file_of(format), compression="magic")
        assert list(tmp_path.iterdir()) == []
        for name in ("none", "deflate" if format == "numpy" else "zstd"):
            table.export(tmp_path / file_of(format), compression=name, overwrite=True)
            assert len(store.import_table(f"{name}", tmp_path / file_of(format))) == 10


def test_progress(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    with fresh_store() as store:
        table = store.import_table("t", numbers(1_000))
        table.export(tmp_path / "x.parquet", progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (1_000, 1_000)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        told.clear()
        store.import_table("u", tmp_path / "x.parquet", progress=lambda done, total: told.append((done, total)))
        assert told[-1] == (1_000, 1_000)


def test_an_import_that_is_stopped_says_what_it_left(tmp_path: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with fresh_store() as store:
        with pytest.raises(KeyboardInterrupt) as stopped:
            store.import_table("t", numbers(1_000), progress=stop)
        assert stopped.value.__notes__ == ["table 't' has been created, and is empty"]
        assert len(store["t"]) == 0


def test_files_of_a_folder_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit.exchange import parquet, pieces

    monkeypatch.setattr(pieces, "_ROWS", 100)
    monkeypatch.setattr(parquet, "_FILE_BYTES", 250 * NUMBERS.row_bytes)
    with fresh_store() as store:
        table = store.import_table("t", numbers(1_000))
        table.export(tmp_path / "parts", "parquet")
        files = sorted((tmp_path / "parts").iterdir())
        assert [pq.ParquetFile(file).metadata.num_rows for file in files] == [300, 300, 300, 100]
        assert {pq.ParquetFile(files[0]).metadata.row_group(i).num_rows for i in range(3)} == {100}
        again = store.import_table("again", tmp_path / "parts")
        assert column_of(again, "a").tolist() == list(range(1_000))


def test_rows_are_whole_while_writers_go_on(tmp_path: Path) -> None:
    """The table wraps around several times while it is exported, again and again."""
    with fresh_store("64MiB") as store:
        table = store.create_table("t", NUMBERS, 40_000)
        stop = threading.Event()

        def write() -> None:
            for start in range(0, 10**9, 500):
                if stop.wait(0.005):  # up to 100,000 rows a second
                    return
                table.extend(numbers(500, start))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            while len(table) < 40_000 and writer.is_alive():
                time.sleep(0.01)
            for i in range(3):
                table.export(tmp_path / f"{i}.parquet")
        finally:
            stop.set()
            writer.join()
        assert any(pq.read_metadata(tmp_path / f"{i}.parquet").num_rows for i in range(3))
        for i in range(3):
            found = store.import_table(f"t{i}", tmp_path / f"{i}.parquet").to_numpy()
            a = found["a"]
            assert len(a) <= 40_000
            assert (np.diff(a) > 0).all()
            assert (found["b"] == 7 * a[:, None]).all()
            assert (found["c"] == -a).all()


def test_episodes_are_right_while_writers_go_on() -> None:
    """Each row knows its environment and its number: a link to a wrong row would show."""
    with fresh_store() as store:
        table = store.create_table("t", STEPS, 3_000, mean_episode_length=5, window=windows.Transition())
        stop = threading.Event()

        def write() -> None:
            envs = np.arange(4, dtype="f4")
            with vector_writer(table, 4, autoreset="same_step") as writer:
                for t in range(10**9):
                    if stop.wait(1e-4):  # some 10,000 rows a second, and the interpreter for others
                        return
                    ended = (np.arange(4) + t) % 7 == 0
                    obs = np.stack([envs, np.full(4, t), np.zeros(4)], 1).astype("f4")
                    writer.append(
                        obs=obs, action=np.full(4, t), reward=np.zeros(4, "f4"), terminated=ended,
                        truncated=np.zeros(4, bool), mask=np.zeros((4, 2, 2), bool),
                        final_obs=obs + np.array([0, 1, 0], "f4"),
                    )  # fmt: skip

        writing = threading.Thread(target=write)
        writing.start()
        try:
            while len(table) < 3_000 and writing.is_alive():
                time.sleep(0.01)
            taken = [table.to_numpy() for _ in range(5)]
        finally:
            stop.set()
            writing.join()
        for found in taken:
            order = np.lexsort((found["step"], found["episode"]))
            episode, t, env = found["episode"][order], found["action"][order], found["obs"][order, 0]
            same = np.diff(episode) == 0
            assert (np.diff(env)[same] == 0).all()
            assert (np.diff(t)[same] == 1).all()
            ends = found["final_row"]
            assert (found["final_obs"][:, 1] == found["action"][ends] + 1).all()
            assert (found["final_obs"][:, 0] == found["obs"][ends, 0]).all()
            assert set(np.flatnonzero(found["terminated"])) >= set(ends)


def fill(store: Store) -> Table:
    return store.import_table("t", numbers(1_000))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fresh_store() as store:
        table = steps_table(store)
        path = str(tmp_path / "x.parquet")
        assert cli.main(["export", store.name, "t", path]) == 0
        assert capsys.readouterr().out == f"{len(table)} rows of {store.name}/t in {path}\n"
        assert cli.main(["import", path, store.name, "u", "--max-size=50"]) == 0
        assert capsys.readouterr().out == f"50 rows of {path} in {store.name}/u\n"
        assert cli.main(["export", store.name, "t", path]) == 2
        assert "--overwrite" in capsys.readouterr().err
        assert cli.main(["export", store.name, "t", path, "--overwrite", "--compression=snappy"]) == 0
        assert cli.main(["import", path, store.name, "v", "--rename", "action=move"]) == 0
        assert "move" in store["v"].schema
        assert cli.main(["import", str(tmp_path / "y.parquet"), store.name, "w"]) == 2
        assert "nothing was imported" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "import"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert re.search(rf"examples:\n  conduit {command} ", capsys.readouterr().out)


def test_ctrl_c_leaves_no_half_file(tmp_path: Path) -> None:
    """The command is interrupted in the middle: exit status 130, and nothing beside what was there."""
    code = textwrap.dedent("""
        import sys, conduit.cli
        from conduit.exchange import parquet
        write = parquet.Sink.write
        def told(self, piece):
            write(self, piece)
            print("writing", flush=True)
            sys.stdin.read()
        parquet.Sink.write = told
        sys.exit(conduit.cli.main(sys.argv[1:]))
    """)
    with fresh_store() as store:
        fill(store)
        command = [sys.executable, "-c", code, "export", store.name, "t", str(tmp_path / "x.parquet")]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            assert [file.name for file in tmp_path.iterdir()] == [f"x.parquet.partial-{process.pid}"]
            os.kill(process.pid, signal.SIGINT)
            assert process.wait() == 130
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()
        assert list(tmp_path.iterdir()) == []
