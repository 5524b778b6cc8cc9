"""`python -m bench.offline`: how fast files train, beside what the disk and the decoder give.

One JSON line a case: MB/s of decoded rows through `conduit.offline` (a loader of 256 rows, nothing computed), through
pyarrow alone (every piece read once, in one thread), and MB/s of file bytes that the disk gives. Files
are dropped from the page cache before each turn, as far as the kernel follows the advice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import conduit
import conduit.offline
from conduit.offline import groups

FORMATS = {"parquet": "zstd", "arrow": "lz4", "arrow none": "none"}
CASES = {"vectors": ((64,), "float32", 600_000), "frames": ((84, 84), "uint8", 40_000)}


def write(folder: Path, shape: tuple[int, ...], dtype: str, rows: int, format: str) -> None:
    """Fill a table with episodes of 200 steps and export it."""
    rng = np.random.default_rng(0)
    names = ("obs", "action", "reward", "terminated", "truncated")
    kinds = (dtype, "int64", "float32", "bool", "bool")
    shapes = (shape, (), (), (), ())
    columns = tuple(conduit.Column(n, np.dtype(k), s) for n, k, s in zip(names, kinds, shapes, strict=True))
    schema = conduit.Schema(columns)
    with conduit.Store.create(f"bench-offline-{os.getpid()}", rows * schema.row_bytes * 2 + (64 << 20)) as store:
        table = store.create_table("t", schema, rows, mean_episode_length=200)
        step = 2_000
        for start in range(0, rows, step):
            obs = (rng.standard_normal((step, *shape)) * 40).astype(dtype)
            ended = np.arange(start, start + step) % 200 == 199
            rest = {"action": np.arange(step), "reward": np.ones(step, np.float32), "truncated": np.zeros(step, bool)}
            table.extend({"obs": obs, "next_obs": obs, "terminated": ended, **rest})
        kind = format.split()[0]
        folder.mkdir()
        table.export(folder / f"x.{kind}", kind, compression=FORMATS[format])


def forget(folder: Path) -> None:
    """Ask the kernel to drop the files from its cache."""
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def disk(folder: Path) -> float:
    """Seconds to read the files."""
    began = time.perf_counter()
    for file in folder.iterdir():
        with file.open("rb", buffering=0) as opened:
            while opened.read(1 << 22):
                pass
    return time.perf_counter() - began


def decoder(folder: Path) -> float:
    """Seconds in which pyarrow decodes every piece, in one thread."""
    began = time.perf_counter()
    pieces, schemas = groups.pieces_of(folder)
    for piece in pieces:
        groups.read(piece, next(iter(schemas.values())).names, None)
    return time.perf_counter() - began


def training(folder: Path, window: object) -> tuple[float, int]:
    """Seconds of an epoch, and its rows."""
    began, rows = time.perf_counter(), 0
    data = conduit.offline.open(folder, window=window, buffer="128MiB")  # type: ignore[arg-type]
    with data.loader(256) as loader:
        for batch in loader:
            rows += len(batch)
    return time.perf_counter() - began, rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.offline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cells whose name has this")
    args = parser.parse_args()
    for name, format in ((name, format) for name in CASES for format in FORMATS):
        if args.only not in f"{name}/{format}":
            continue
        shape, dtype, rows = CASES[name]
        with tempfile.TemporaryDirectory(dir=".") as temporary:
            folder = Path(temporary, "data")
            write(folder, shape, dtype, rows, format)
            stored = sum(file.stat().st_size for file in folder.iterdir())
            decoded = rows * (int(np.prod(shape)) * np.dtype(dtype).itemsize + 14)
            found: dict[str, list[float]] = {"disk": [], "decoder": [], "row": [], "transition": []}
            for _ in range(args.rounds):
                forget(folder)
                found["disk"].append(stored / disk(folder))
                forget(folder)
                found["decoder"].append(decoded / decoder(folder))
                for kind, window in (("row", conduit.windows.Row()), ("transition", conduit.windows.Transition())):
                    forget(folder)
                    seconds, came = training(folder, window)
                    assert came == rows
                    found[kind].append(decoded / seconds)
        speeds = {f"{kind}_MB_s": round(statistics.median(values) / 1e6) for kind, values in found.items()}
        sizes = {"rows": rows, "MB": decoded // 10**6, "file_MB": stored // 10**6}
        print(json.dumps({"case": f"{name}/{format}", **sizes, **speeds}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
