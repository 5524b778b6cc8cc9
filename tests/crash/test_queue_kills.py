"""Producers and consumers of a queue, killed and stopped at every failpoint and at random moments.

After each round: no row that was in is lost, none that was acknowledged came again, an append is in whole or not at
all, and everything derived agrees with the ground truth.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import conduit
from conduit import Store
from tests.crash.board import Board, Field, Order
from tests.crash.points import LOCK_FREE, QUEUE_ROLES_AT
from tests.crash.queue_roles import MAX_SIZE, SCHEMA, VARYING, checked
from tests.crash.zygote import Child, Zygote

pytestmark = pytest.mark.crash

_GROUPS = ("a", "b")
_LEASE_S = 0.25
_STEPS = 40  # of the survivors, after a strike
_PATIENCE_S = 30.0
_numbers = itertools.count()
_RANDOM_ROUNDS = 12
_STRIKES = [(point, role) for point, roles in QUEUE_ROLES_AT.items() for role in roles]


@pytest.fixture(scope="module")
def zygote(session_runtime_dir: Path) -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(zygote: Zygote, session_runtime_dir: Path) -> Iterator[None]:
    """As for every test, but the zygote, which all share, is there first."""
    from tests.leaks import belongings, left_behind

    before = belongings(session_runtime_dir)
    yield
    if left := left_behind(before, session_runtime_dir):
        pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)


class Round:
    """A queue, two producers and a consumer of each group that survive, and whoever is struck."""

    def __init__(self, zygote: Zygote, path: Path, seed: int) -> None:
        self.zygote, self.path, self.seed = zygote, path, seed
        number = next(_numbers)
        self.store = Store.create(f"queues-{os.getpid()}-{number}", "8MiB", max_processes=16)
        self.queue = self.store.create_queue(
            "q", (SCHEMA, VARYING)[number % 2], MAX_SIZE, consumers=_GROUPS, lease_timeout=_LEASE_S, max_writers=4
        )
        self.board = Board(path / "board", 16, create=True)
        self.players: dict[int, Child] = {}
        for role, group in (("producer", ""), ("producer", ""), ("consumer", "a"), ("consumer", "b")):
            self.start(role, group)

    def start(self, role: str, group: str = "a", arm: tuple[Any, ...] = ()) -> int:
        line = len(self.players)
        self.board.set(line, Field.WRITER, line + 1 if role == "producer" else 0)
        self.players[line] = self.zygote.fork(
            role=role, line=line, lines=16, board=str(self.path / "board"), store=self.store.name, arm=list(arm),
            group=group, journal=str(self.path / f"journal-{line}"), seed=self.seed * 100 + line,
        )  # fmt: skip
        return line

    def go_on(self, lines: list[int], steps: int = _STEPS) -> None:
        """Wait until each of these has done so many steps more; what they have to say is raised."""
        goals = {line: self.board.get(line, Field.STEPS) + steps for line in lines}
        end = time.monotonic() + _PATIENCE_S
        for line, goal in goals.items():
            while self.board.get(line, Field.STEPS) < goal:
                if self.players[line].has_word():
                    self.players[line].answer(1.0)
                assert time.monotonic() < end, f"process {line} ({self.players[line].state()}) does not go on"
                time.sleep(0.0005)

    def wait_struck(self, line: int, state: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while self.players[line].state() != state:
            if state != "Z" and self.players[line].has_word():
                self.players[line].answer(1.0)
            assert time.monotonic() < end, f"process {line} was not struck"
            time.sleep(0.0005)

    def finish(self) -> None:
        """Send all who live home, take what is left, and audit."""
        for line in self.players:
            self.board.set(line, Field.ORDER, Order.QUIT)
        for player in self.players.values():
            if player.wait(0) is None:
                try:
                    player.answer(_PATIENCE_S)
                finally:
                    player.wait(_PATIENCE_S)
        self.queue.verify()
        mine: list[Any] = []
        end = time.monotonic() + _PATIENCE_S
        while len(self.queue):
            for group in _GROUPS:
                asked = time.monotonic_ns()
                batch = self.queue.drain(consumer=group, timeout=0.01)
                ids = checked(batch)
                mine.append(["d", group, asked, ids])
                batch.ack()
                mine.append(["a", group, time.monotonic_ns(), ids])
            assert time.monotonic() < end, f"{len(self.queue)} rows do not come back: {self.queue.info()}"
        self.queue.verify()
        self.audit(mine)

    def audit(self, mine: list[Any]) -> None:
        records = list(mine)
        for line in self.players:
            journal = self.path / f"journal-{line}"
            if journal.exists():
                records += [json.loads(text) for text in journal.read_text().splitlines()]
        for group in _GROUPS:
            acked: dict[tuple[int, int], list[int]] = defaultdict(list)
            begun: set[tuple[int, int]] = set()
            delivered: dict[tuple[int, int], list[int]] = defaultdict(list)
            for kind, of, at, ids in records:
                if of != group:
                    continue
                for writer, serial in ids:
                    row = (writer, serial)
                    if kind == "d":
                        delivered[row].append(at)
                    elif kind == "a":
                        acked[row].append(at)
                    else:
                        begun.add(row)
            for row, times in acked.items():
                assert len(times) == 1, f"row {row} was acknowledged {len(times)} times"
                late = [at for at in delivered[row] if at > times[0]]
                assert not late, f"row {row} was acknowledged and delivered again"
            for line in self.players:
                writer = self.board.get(line, Field.WRITER)
                if writer == 0:
                    continue
                tried, done = self.board.get(line, Field.PLAIN_TRIED), self.board.get(line, Field.PLAIN_ACKED)
                seen = {serial for of, serial in delivered if of == writer}
                assert seen >= set(range(done)), f"rows of writer {writer} are lost: {set(range(done)) - seen}"
                open_rows = {serial for serial in seen if serial >= done}
                assert open_rows in (set(), set(range(done, tried))), f"an append of writer {writer} is in by half"
                for serial in seen:
                    row = (writer, serial)
                    assert row in acked or row in begun, f"row {row} has gone without an acknowledgement"

    def close(self) -> None:
        for player in self.players.values():
            player.signal(signal.SIGKILL)
        for player in self.players.values():
            player.end()
        self.store.close()
        self.board.close()


@pytest.fixture
def stage(zygote: Zygote, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Round]:
    made = Round(zygote, tmp_path, seed=sum(map(ord, request.node.name)))
    yield made
    made.close()


@pytest.mark.parametrize("nth", [1, 7])
@pytest.mark.parametrize(("point", "role"), _STRIKES)
def test_a_kill_at_each_failpoint(stage: Round, point: str, role: str, nth: int) -> None:
    victim = stage.start(role, arm=((point, "kill", nth),))
    stage.wait_struck(victim, "Z")
    assert stage.players[victim].wait(_PATIENCE_S) == -signal.SIGKILL
    stage.go_on([0, 1, 2, 3])
    stage.finish()


@pytest.mark.parametrize(("point", "role"), [strike for strike in _STRIKES if strike[0] in LOCK_FREE])
def test_a_stop_outside_the_lock_holds_up_nobody(stage: Round, point: str, role: str) -> None:
    victim = stage.start(role, arm=((point, "stop", 3),))
    stage.wait_struck(victim, "T")
    stage.go_on([0, 1, 2, 3])
    time.sleep(2 * _LEASE_S)  # its lease, if it has one, ends
    stage.go_on([0, 1, 2, 3])
    stage.players[victim].signal(signal.SIGCONT)
    stage.go_on([victim], 5)
    stage.finish()


@pytest.mark.parametrize("index", range(_RANDOM_ROUNDS))
def test_kills_at_random_moments(stage: Round, index: int) -> None:
    chance = random.Random(index)
    for _ in range(4):
        role = chance.choice(("producer", "consumer"))
        victim = stage.start(role, chance.choice(_GROUPS))
        stage.go_on([victim], 1)
        time.sleep(chance.random() * 0.01)
        stage.players[victim].signal(signal.SIGKILL)
        stage.players[victim].wait(_PATIENCE_S)
        stage.go_on([0, 1, 2, 3], 5)
    stage.finish()


def test_everybody_dies(stage: Round) -> None:
    stage.go_on([0, 1, 2, 3])
    for player in stage.players.values():
        player.signal(signal.SIGKILL)
    for player in stage.players.values():
        player.wait(_PATIENCE_S)
    conduit.Queue.verify(stage.queue)
    stage.finish()
