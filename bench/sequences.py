"""W4: sequences of 512 to 4,096 tokens (int32 ids, float32 log-probabilities, a reward, a group), 2,000 in groups of 8.

    python -m bench.sequences [--seconds 2] [--rounds 5] [--only fill,sample,stream] [--sides conduit,cpprb,...]
                              [--out FOLDER]

One JSON line for each case and library, medians over rounds in turns; with --out also sequences.jsonl, .md and .png
there. `fill`: groups of 8 into a full table, sequences a second. `sample`: 32 random groups (256 sequences, 4.7 MB)
into torch tensors, ms. `stream`: groups of 8 from a producer process to a consumer that takes 32 groups at a time and
acknowledges them, sequences a second. Libraries: Conduit (packed), cpprb and torchrl (rows padded to 4,096; each in its
environment of `bench peers`), a padded NumPy ring, multiprocessing.Queue, Ray's object store and Arrow Flight
(`bench/peers/sequence_sides.py`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import describe
from bench.peers import setup
from bench.timing import beside

GROUPS, GROUP_SIZE, TAKEN = 250, 8, 32
LONGEST = 4_096
Group = dict[str, Any]  # "tokens", "logp": lists of arrays; "reward", "group": arrays


def make_groups(n: int = GROUPS) -> list[Group]:
    chance = np.random.default_rng(0)
    groups: list[Group] = []
    for number in range(n):
        lengths = chance.integers(512, LONGEST + 1, GROUP_SIZE)
        groups.append(
            {
                "tokens": [chance.integers(0, 50_000, length, dtype=np.int32) for length in lengths],
                "logp": [chance.standard_normal(length, dtype=np.float32) for length in lengths],
                "reward": chance.random(GROUP_SIZE, dtype=np.float32),
                "group": np.full(GROUP_SIZE, number),
            }
        )
    return groups


def padded(group: Group) -> dict[str, Any]:
    """A group as rows of 4,096, with their lengths."""
    rows: dict[str, Any] = {"reward": group["reward"], "length": np.array([len(t) for t in group["tokens"]])}
    for name in ("tokens", "logp"):
        rows[name] = np.zeros((GROUP_SIZE, LONGEST), group[name][0].dtype)
        for row, values in zip(rows[name], group[name], strict=True):
            row[: len(values)] = values
    return rows


class ConduitSide:
    """A table, and a queue beside it, whose rows vary in length."""

    def __init__(self) -> None:
        import conduit

        self.store = conduit.Store.create(f"bench-sequences-{os.getpid()}", "512MiB")
        mean = (512 + LONGEST) / 2
        schema = conduit.Schema(
            (
                conduit.Column("tokens", "int32", (None,), mean_length=mean),
                conduit.Column("logp", "float32", (None,), mean_length=mean),
                conduit.Column("reward", "float32"),
                conduit.Column("group", "int64"),
            )
        )
        self.table = self.store.create_table("rows", schema, GROUPS * GROUP_SIZE, max_writers=1)
        self.queue = self.store.create_queue("queue", schema, GROUPS * GROUP_SIZE, max_writers=1)
        self.keys: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"queue": self.queue}

    def fill(self, group: Group) -> None:
        self.table.extend(group)

    def sample(self, groups: Any) -> Any:
        if self.keys is None:  # of whole groups, in order
            keys = np.concatenate([view.keys for view in self.table.blocks()])
            numbers = np.concatenate([self.table.rows(view.keys)["group"] for view in self.table.blocks()])
            whole = [keys[numbers == number] for number in np.unique(numbers)]
            self.keys = np.array([each for each in whole if len(each) == GROUP_SIZE])
        return self.table.rows(self.keys[groups % len(self.keys)].ravel()).torch()

    def put(self, group: Group) -> None:
        self.queue.extend(group, timeout=None)

    def take(self) -> int:
        batch = self.queue.sample(TAKEN * GROUP_SIZE, group_by="group", group_size=GROUP_SIZE, timeout=60.0)
        seen = int(batch["tokens"].values[-1])
        batch.ack()
        return len(batch) if seen >= 0 else 0

    def close(self) -> None:
        self.store.close()


class PaddedRing:
    """Arrays of rows as long as the longest, in one process."""

    def __init__(self) -> None:
        n = GROUPS * GROUP_SIZE
        self.rows: dict[str, Any] = {
            "tokens": np.zeros((n, LONGEST), np.int32), "logp": np.zeros((n, LONGEST), np.float32),
            "length": np.zeros(n, np.int64), "reward": np.zeros(n, np.float32),
        }  # fmt: skip
        self.at = 0

    def fill(self, group: Group) -> None:
        for name, values in padded(group).items():
            self.rows[name][self.at : self.at + GROUP_SIZE] = values
        self.at = (self.at + GROUP_SIZE) % (GROUPS * GROUP_SIZE)

    def sample(self, groups: Any) -> Any:
        import torch

        at = (groups[:, None] * GROUP_SIZE + np.arange(GROUP_SIZE)).ravel()
        return {name: torch.from_numpy(values[at]) for name, values in self.rows.items()}

    def close(self) -> None:
        pass


class CpprbSide:
    """cpprb with rows as long as the longest; it draws rows, not groups."""

    def __init__(self) -> None:
        cpprb: Any = importlib.import_module("cpprb")

        columns = {
            "tokens": {"shape": LONGEST, "dtype": np.int32}, "logp": {"shape": LONGEST, "dtype": np.float32},
            "length": {"dtype": np.int64}, "reward": {"dtype": np.float32},
        }  # fmt: skip
        self.buffer = cpprb.ReplayBuffer(GROUPS * GROUP_SIZE, columns)

    def fill(self, group: Group) -> None:
        self.buffer.add(**padded(group))

    def sample(self, groups: Any) -> Any:
        import torch

        return {name: torch.from_numpy(a) for name, a in self.buffer.sample(len(groups) * GROUP_SIZE).items()}

    def close(self) -> None:
        pass


class MultiprocessingSide:
    """multiprocessing.Queue of packed groups. It acknowledges nothing."""

    def __init__(self) -> None:
        self.queue: Any = multiprocessing.get_context("spawn").Queue(GROUPS)

    def put(self, group: Group) -> None:
        packed = {name: np.concatenate(group[name]) for name in ("tokens", "logp")}
        lengths = np.array([len(tokens) for tokens in group["tokens"]])
        self.queue.put({**packed, "length": lengths, "reward": group["reward"], "group": group["group"]})

    def take(self) -> int:
        groups = [self.queue.get(timeout=60.0) for _ in range(TAKEN)]
        joined = {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
        return len(joined["length"]) if joined["tokens"][-1] >= 0 else 0

    def close(self) -> None:
        self.queue.close()
        self.queue.cancel_join_thread()


def _peer(name: str) -> Callable[[], Any]:
    """A side of bench/peers, loaded where it is measured."""

    def make() -> Any:
        return getattr(importlib.import_module("bench.peers.sequence_sides"), name)()

    return make


SIDES: dict[str, Callable[[], Any]] = {
    "conduit": ConduitSide,
    "cpprb": CpprbSide,
    "torchrl": _peer("TorchrlSide"),
    "numpy ring": PaddedRing,
    "multiprocessing.Queue": MultiprocessingSide,
    "ray objects": _peer("RaySide"),
    "flight": _peer("FlightSide"),
}
ELSEWHERE = ("cpprb", "torchrl")  # in environments of their own
_STORED = ("conduit", "cpprb", "torchrl", "numpy ring", "ray objects", "flight")
CASES = {"fill": _STORED, "sample": _STORED, "stream": ("conduit", "multiprocessing.Queue", "ray objects", "flight")}


def fill(side: Any, groups: list[Group], seconds: float) -> float:
    """Sequences a second; the table is full."""
    for group in groups:
        side.fill(group)
    done, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        side.fill(groups[done % len(groups)])
        done += 1
    return done * GROUP_SIZE / (now - start)


def sample(side: Any, groups: list[Group], seconds: float) -> float:
    """Median ms of a call."""
    for group in groups:
        side.fill(group)
    chance = np.random.default_rng(1)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 20:
        chosen = chance.integers(0, GROUPS, TAKEN)
        start = time.perf_counter()
        batch = side.sample(chosen)
        took.append(time.perf_counter() - start)
        del batch
    return statistics.median(took[5:]) * 1e3


def produce(side: Any) -> None:
    """Appends groups, each with a number of its own, until it is killed."""
    groups = make_groups(64)
    number = 0
    while True:
        group = groups[number % len(groups)]
        side.put({**group, "group": np.full(GROUP_SIZE, number)})
        number += 1


def stream(side: Any, groups: list[Group], seconds: float) -> float:
    """Sequences a second at the consumer; the producer makes groups of its own."""
    with beside(produce, side):
        for _turn in range(10):
            side.take()
        rows, start = 0, time.perf_counter()
        while (now := time.perf_counter()) - start < seconds:
            rows += side.take()
        return rows / (now - start)


MEASURES: dict[str, Callable[[Any, list[Group], float], float]] = {"fill": fill, "sample": sample, "stream": stream}


def measured(case: str, name: str, seconds: float, groups: list[Group]) -> float:
    """One round; cpprb and torchrl run in the environments that they were set up in."""
    if name in ELSEWHERE and sys.executable != str(setup.interpreter(name)):
        options = ["--only", case, "--sides", name, "--rounds", "1", "--seconds", str(seconds)]
        command = [str(setup.interpreter(name)), "-m", "bench.sequences", *options]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(json.loads(done.stdout.splitlines()[-1])["median"])  # torchrl logs there too
    side = SIDES[name]()
    try:
        return MEASURES[case](side, groups, seconds)
    finally:
        side.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sequences", description="Sequences of tokens (W4).")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES), help="of fill, sample, stream")
    parser.add_argument("--sides", default=",".join(SIDES), help="libraries")
    parser.add_argument("--out", type=Path, help="folder of the results")
    given = parser.parse_args()
    elsewhere = sys.executable in [str(setup.interpreter(name)) for name in ELSEWHERE]
    wanted: list[str] = []
    for name in given.sides.split(","):
        if elsewhere or name not in ELSEWHERE or setup.is_ready(name):
            wanted.append(name)
        else:
            print(f"{name} is left out: {setup.failure(name) or 'not set up'}", file=sys.stderr)
    groups = make_groups()
    lines: list[dict[str, Any]] = []
    for case in given.only.split(","):
        names = [name for name in CASES[case] if name in wanted]
        seen: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(given.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                seen[name].append(measured(case, name, given.seconds, groups))
        unit = "ms" if case == "sample" else "sequences/s"
        for name, values in seen.items():
            line = {"case": f"{case}/W4", "library": name, "unit": unit, "median": round(statistics.median(values), 4)}
            lines.append({**line, "rounds": [round(value, 4) for value in values]})
            print(json.dumps(lines[-1]), flush=True)
    if given.out is not None:
        from bench.report import write_bars

        write_bars(given.out, "sequences", "Sequences of tokens (W4)", describe(), lines)


if __name__ == "__main__":
    main()
