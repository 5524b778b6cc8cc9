"""The crash campaign: random processes killed and stopped at random failpoints, for thousands of rounds.

    python -m tests.crash.campaign --rounds 3000 --seed 1

Round i of a seed is the same in every run, whatever came before it; `--first i --rounds 1` plays it alone.
After a failure it says how to repeat it, sets a new stage and goes on. Ctrl-C ends it after the round that is being
played, with the table so far; a second one at once.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.points import ROLES_AT
from tests.crash.rounds import Outcome, Strike, choose, play
from tests.crash.stage import CrashFailure, Stage

__all__ = ["main"]

_SWEEP_EVERY = 100  # rounds between two looks that every block comes back


@dataclass
class Tally:
    """What the campaign has seen of each failpoint."""

    kills: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    worst_s: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        for strike in outcome.struck:
            (self.kills if strike.action == "kill" else self.stops)[strike.point] += 1
            self.worst_s[strike.point] = max(self.worst_s.get(strike.point, 0.0), outcome.others_s)
        self.missed.update(strike.point for strike in outcome.missed)

    def fail(self, seed: int, index: int, plan: tuple[Strike, ...], failure: CrashFailure) -> None:
        self.failures.append(f"seed {seed} round {index}: {', '.join(map(str, plan))}: {failure}")
        again = f"python -m tests.crash.campaign --seed {seed} --first {index} --rounds 1"
        print(f"FAILED {self.failures[-1]}\n  again: {again}", file=sys.stderr, flush=True)

    def table(self) -> str:
        lines = [f"{'failpoint':24} {'hits':>6} {'kills':>6} {'stops':>6} {'missed':>6}  others went on within"]
        for point in ROLES_AT:
            kills, stops = self.kills[point], self.stops[point]
            worst = f"{self.worst_s[point] * 1e3:8.1f} ms" if point in self.worst_s else ""
            lines.append(f"{point:24} {kills + stops:6} {kills:6} {stops:6} {self.missed[point]:6}  {worst}")
        struck = f"{self.kills.total()} kills, {self.stops.total()} stops, {self.missed.total()} missed"
        return "\n".join([*lines, f"{struck}, {len(self.failures)} failures"])


class Progress:
    """One line a second on a terminal, one every ten elsewhere: rounds, rate, time left."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._begin = self._last = time.monotonic()
        self._every = 1.0 if sys.stderr.isatty() else 10.0

    def show(self, done: int, failures: int) -> None:
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        rate = done / (now - self._begin)
        left = (self._rounds - done) / rate
        print(
            f"{done:,} of {self._rounds:,} rounds, {rate:.1f}/s, {left:.0f} s left, {failures} failures",
            file=sys.stderr, end="\r" if self._every == 1.0 else "\n", flush=True,
        )  # fmt: skip


def plan_of(seed: int, index: int) -> tuple[Strike, ...]:
    """Return round `index` of the campaign `seed`."""
    return choose(random.Random(seed * 1_000_003 + index))


def campaign(first: int, rounds: int, seed: int, max_failures: int, directory: Path) -> Tally:
    """Play the rounds until `max_failures` have failed; `directory` is the runtime directory of the stores."""
    tally = Tally()
    progress = Progress(rounds)

    def interrupt(*_: object) -> None:
        tally.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    usual = signal.signal(signal.SIGINT, interrupt)
    stage: Stage | None = None
    try:
        for index in range(first, first + rounds):
            if tally.interrupted or len(tally.failures) >= max_failures:
                break
            plan = plan_of(seed, index)
            try:
                stage = stage or Stage(directory, seed)
                tally.add(play(stage, plan))
                if index % _SWEEP_EVERY == _SWEEP_EVERY - 1 or index == first + rounds - 1:
                    stage.all_blocks_come_back()
            except CrashFailure as failure:
                tally.fail(seed, index, plan, failure)
                if stage is not None:
                    stage.close()
                stage = None
            progress.show(index - first + 1, len(tally.failures))
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, usual)
        if stage is not None:
            stage.close()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.campaign", description="Random crashes, each with an audit after it."
    )
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--max-failures", type=int, default=10, help="give up after so many")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1_000_000)
    directory = Path(tempfile.mkdtemp(prefix="cdt-", dir="/tmp"))
    os.environ["CONDUIT_RUNTIME_DIR"] = str(directory)
    print(f"crash campaign: seed {seed}, {given.rounds:,} rounds", file=sys.stderr, flush=True)
    begin = time.monotonic()
    try:
        tally = campaign(given.first, given.rounds, seed, given.max_failures, directory)
    finally:
        shutil.rmtree(directory)
    print(tally.table())
    print(f"{time.monotonic() - begin:.0f} s, seed {seed}")
    if tally.interrupted:
        print("interrupted", file=sys.stderr)
        return 130
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
