"""Exports, imports, checkpoints and training from files take as much memory for many rows as for few.

A process of its own may have so many bytes of memory of its own (RLIMIT_DATA, in which the store's shared memory does
not count), and moves a set several times as large.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from conduit import Column, Schema
from tests.exchange_support import file_of
from tests.store_support import fresh_store

STEPS = Schema(
    (
        Column("obs", "float32", (1_024,)), Column("action", "int64"), Column("reward", "float32"),
        Column("terminated", "bool"), Column("truncated", "bool"),
    )
)  # fmt: skip
VARYING = Schema((Column("obs", "float32", (None,), mean_length=1_024), *STEPS.columns[1:]))
ROWS, EPISODE = 20_000, 25
LIMIT = 28 << 20  # of memory, for a set of 82 MB

CHILD = textwrap.dedent("""
    import gc, importlib, os, resource, sys
    from pathlib import Path
    import numpy as np, pyarrow as pa, pyarrow.parquet
    pa.set_cpu_count(1)  # each thread takes memory of its own
    pa.set_io_thread_count(1)
    import conduit, conduit.offline, conduit.checkpoints
    from conduit.exchange import formats, pieces

    pieces._BYTES = 2 << 20  # small pieces, so that what would grow stands out
    FORMAT, STORE, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    module = importlib.import_module(f"conduit.exchange.{formats.FORMATS[FORMAT.split()[0]].module}")
    if hasattr(module, "_BYTES"):
        module._BYTES = 2 << 20


    def own():
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmData:")[2].split()[0]) << 10


    def move(store, table):
        path = FOLDER / sys.argv[4]
        kind = FORMAT.split()[0]
        rows = store[table].export(path, kind, compression=sys.argv[5] or None, overwrite=True)
        into = store["into"]
        into.clear()
        assert into.import_from(path, kind) == rows
        if kind in ("parquet", "arrow"):
            with conduit.offline.open(path, buffer="4MiB", threads=1).loader(256) as loader:
                assert sum(map(len, loader)) == rows
        return rows


    with conduit.Store.attach(STORE) as store:
        move(store, "few")
        gc.collect()
        limit = own() + int(sys.argv[6])
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try:
            np.zeros(2 * int(sys.argv[6]), np.uint8)
            raise SystemExit("nothing holds the limit")
        except MemoryError:
            pass
        print(move(store, "many"))
""")


@pytest.mark.parametrize(
    ("format", "package", "compression", "schema"),
    [
        ("parquet folder", None, "snappy", STEPS),
        ("arrow", None, "", STEPS),
        ("arrow-stream", None, "", STEPS),
        ("numpy", None, "", STEPS),
        ("minari", "minari", "", STEPS),
        ("rllib", "ray.rllib", "", STEPS),
        ("tensordict", "tensordict", "", STEPS),
        ("tensordict", "tensordict", "", VARYING),
    ],
)
def test_memory_does_not_grow_with_the_rows(
    tmp_path: Path, format: str, package: str | None, compression: str, schema: Schema
) -> None:
    if package is not None:
        pytest.importorskip(package)
    with fresh_store("220MiB") as store:
        for name, rows in (("few", 1_000), ("many", ROWS), ("into", ROWS)):
            table = store.create_table(name, schema, rows, mean_episode_length=EPISODE)
            step = np.arange(1_000)
            for start in range(0, rows if name != "into" else 0, 1_000):
                obs = np.repeat((start + step).astype(np.float32)[:, None], 1_024, 1)
                table.extend(
                    {
                        "obs": obs, "next_obs": obs + 1, "action": step, "reward": step.astype(np.float32),
                        "terminated": step % EPISODE == EPISODE - 1, "truncated": step < 0,
                    }
                )  # fmt: skip
        given = [format, store.name, str(tmp_path), file_of(format), compression, str(LIMIT)]
        # The system's allocator, told to give back at once what is freed.
        settings = ["ARROW_DEFAULT_MEMORY_POOL=system", "MALLOC_MMAP_THRESHOLD_=262144", "MALLOC_ARENA_MAX=1"]
        line = ["env", *settings, sys.executable, "-c", CHILD, *given]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, f"{ROWS}\n"), done.stderr[-2_000:]
        assert len(store["into"]) == ROWS
