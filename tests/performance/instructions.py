"""Counts the instructions of the hottest calls: run under `valgrind --tool=cachegrind`, see test_instructions.py.

Each call is made a few and many times in forked children, whose counts go on from the parent's: what one more call
costs is their difference, and everything before cancels. Prints a line for each child: the call, how often, its pid.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import numpy as np

import conduit
from conduit import samplers, windows

BATCH = 256
FEW = 4
MANY = {"append": 1_004, "extend": 14, "sample": 24, "update": 24, "n_step": 24, "sequence": 14}


def calls(store: conduit.Store) -> dict[str, Callable[[int], object]]:
    """The calls by name; each takes its number."""
    one = np.zeros(4, np.float32)
    plain = conduit.Schema.from_example({"obs": one, "action": np.int64(0), "reward": np.float32(0)})
    table = store.create_table("plain", plain, 20_000, sampler=samplers.Prioritized(0.6, 0.4))
    rows = {"obs": np.ones((512, 4), np.float32), "action": np.arange(512), "reward": np.ones(512, np.float32)}
    steps = conduit.Schema.from_example(
        {
            "obs": np.zeros(4, np.float32), "action": np.int64(0), "reward": np.float32(0),
            "terminated": np.bool_(0), "truncated": np.bool_(0),
        }
    )  # fmt: skip
    episodes = store.create_table(
        "episodes", steps, 20_000, window={"n": windows.NStep(3, 0.99), "s": windows.Sequence(16)}
    )
    ends = np.arange(20_000) % 200 == 199
    obs = np.ones((20_000, 4), np.float32)
    episodes.extend(
        {
            "obs": obs, "action": np.arange(20_000), "reward": np.ones(20_000, np.float32), "terminated": ends,
            "truncated": np.zeros(20_000, bool), "next_obs": obs,
        }
    )  # fmt: skip
    for _ in range(45):  # full: every extend evicts
        table.extend(rows)
    writers: dict[int, conduit.Writer] = {}  # each process has its own
    row = {name: column[0] for name, column in rows.items()}
    keys = table.sample(BATCH).keys
    priorities = np.linspace(0.1, 2.0, BATCH, dtype=np.float32)

    def append(_: int) -> None:
        if (writer := writers.get(os.getpid())) is None:
            writer = writers[os.getpid()] = table.writer()
        writer.append(**row)

    return {
        "append": append,
        "extend": lambda _: table.extend(rows),
        "sample": lambda i: table.sample(BATCH),
        "update": lambda _: table.update_priorities(keys, priorities),
        "n_step": lambda _: episodes.sample(BATCH, window="n"),
        "sequence": lambda _: episodes.sample(32, window="s"),
    }


def main() -> None:
    with conduit.Store.create(f"instructions-{os.getpid()}", "32MiB") as store:
        made = calls(store)
        for call in made.values():  # what is done once is done
            for i in range(3):
                call(i)
        for name, call in made.items():
            for times in (FEW, MANY[name]):
                sys.stdout.flush()
                if (child := os.fork()) == 0:
                    code = 1
                    try:
                        for i in range(times):
                            call(i)
                        code = 0
                    finally:
                        os._exit(code)
                if os.waitpid(child, 0)[1] != 0:
                    raise RuntimeError(f"{name} failed")
                print(name, times, child)


if __name__ == "__main__":
    main()
