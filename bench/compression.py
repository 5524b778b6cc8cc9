"""What compression on disk costs and saves: `python -m bench.compression --folder DIR`. JSON lines.

Three kinds of rows (drawn frames of 84 x 84, token lists by Zipf, normal float32), each in a table of which memory
holds a part, as it is and compressed: bytes on disk, appended bytes a second, and batches from a warm page cache, of
single rows and of stacks or sequences of rows that follow each other.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import conduit
from bench.disks import batches
from conduit import Column, Schema, windows

_ENDS = (Column("reward", "float32"), Column("terminated", "bool"), Column("truncated", "bool"))
_PIECE = 500  # rows of an extend


def frames(chance: np.random.Generator, n: int) -> Any:
    """A playing field with some bricks, a bat and a ball that move."""
    made = np.zeros((n, 84, 84), np.uint8)
    made[:, :8] = 60
    made[:, 10:26] = np.repeat(np.arange(16, dtype=np.uint8) // 3 * 20 + 80, 84).reshape(16, 84)
    for i, (bat, x, y, gone) in enumerate(chance.integers(0, 70, (n, 4))):
        made[i, 78:81, bat : bat + 12] = 200
        made[i, y : y + 2, x : x + 2] = 255
        made[i, 10:26, gone : gone + 8] = 0
    return made


def tokens(chance: np.random.Generator, n: int) -> Any:
    return [chance.zipf(1.3, length).clip(max=50_000).astype(np.int32) for length in chance.integers(100, 900, n)]


def floats(chance: np.random.Generator, n: int) -> Any:
    return chance.standard_normal((n, 64), np.float32)


KINDS: dict[str, tuple[Column, int, Callable[[np.random.Generator, int], Any]]] = {
    "frames": (Column("obs", "uint8", (84, 84)), 84 * 84, frames),
    "tokens": (Column("obs", "int32", (None,), mean_length=500), 2_000, tokens),
    "floats": (Column("obs", "float32", (64,)), 256, floats),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the rows go")
    parser.add_argument("--mib", type=int, default=400, help="rows of a table (%(default)s)")
    parser.add_argument("--share", type=float, default=0.125, help="of it that memory holds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each case (%(default)s)")
    arguments = parser.parse_args()
    for kind in KINDS:
        for codec in (None, "lz4", "zstd"):
            print(json.dumps({"rows": kind, "compression": codec, **measure(kind, codec, arguments)}), flush=True)


def measure(kind: str, codec: str | None, arguments: argparse.Namespace) -> dict[str, Any]:
    column, nbytes, make = KINDS[kind]
    total = arguments.mib << 20
    n, host = total // nbytes, int(total * arguments.share)
    chance = np.random.default_rng(0)
    pool = [make(chance, _PIECE + 1) for _ in range(8)]
    ends = {"reward": np.zeros(_PIECE, np.float32), "terminated": np.arange(_PIECE) == _PIECE - 1,
            "truncated": np.zeros(_PIECE, bool)}  # fmt: skip
    several = windows.FrameStack(4) if kind == "frames" else windows.Sequence(16)
    with conduit.Store.create(f"bench-{os.getpid()}", host + (128 << 20)) as store:
        table = store.create_table(
            "t", Schema((column, *_ENDS)), n, max_writers=1, window={"one": windows.Row(), "several": several},
            mean_episode_length=_PIECE, disk=conduit.Disk(arguments.folder, host, compression=codec),
        )  # fmt: skip
        began = time.monotonic()
        for i in range(n // _PIECE):
            rows = pool[i % len(pool)]
            table.extend({"obs": rows[:-1], "next_obs": rows[1:], **ends}, timeout=60.0)
        took = time.monotonic() - began
        (path,) = arguments.folder.glob(f"conduit-bench-{os.getpid()}-*.blocks.arrow")
        disk = table.info().disk
        assert disk is not None
        path.read_bytes()
        one = batches(lambda: table.sample(256, window="one"), arguments.seconds)
        stacks = batches(lambda: table.sample(32, window="several"), arguments.seconds)
        return {
            "ratio": round(disk.blocks_written * table.spec.block_layout().block_bytes / disk.bytes_written, 2),
            "append_GBps": round(n * nbytes / took / 1e9, 3), "one_256_ms": one["median_ms"],
            "several_32_ms": stacks["median_ms"], "file_MB": path.stat().st_blocks * 512 >> 20,
        }  # fmt: skip


if __name__ == "__main__":
    main()
