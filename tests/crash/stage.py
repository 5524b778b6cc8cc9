"""The stage of a crash test: one store, four processes that survive, an auditor, and whoever is sent to die."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conduit_transport import names
from tests.crash import rows
from tests.crash.board import Board, Field, Order, State
from tests.crash.zygote import Child, Zygote

__all__ = ["DEADLINE_S", "CrashFailure", "Player", "Stage"]

DEADLINE_S = 10.0  # what is asked for is 1 s; a noisy machine may be late, the times are reported
_LINES = 16
_SURVIVORS = ("writers", "sampler", "updater", "reader", "remover")
_REMEMBERED = 64  # dead writers whose rows may still be live

Point = tuple[str, str, int]  # failpoint, "kill" or "stop", at which pass


def _never() -> bool:
    return False


class CrashFailure(AssertionError):
    """What was promised did not hold."""


@dataclass(eq=False)
class Player:
    """One process that plays a role."""

    role: str
    line: int
    child: Child
    board: Board = field(repr=False)

    def order(self, order: Order) -> None:
        self.board.set(self.line, Field.ORDER, order)

    def steps(self) -> int:
        return self.board.get(self.line, Field.STEPS)

    def acked(self, table: str) -> int:
        return self.board.get(self.line, Field.PLAIN_ACKED if table == "plain" else Field.EPISODIC_ACKED)

    def tried(self, table: str) -> int:
        return self.board.get(self.line, Field.PLAIN_TRIED if table == "plain" else Field.EPISODIC_TRIED)

    def must(self, state: State) -> None:
        """Wait for a state, or say what the process does instead."""
        end = time.monotonic() + DEADLINE_S
        while not self.board.wait(self.line, state, 0.05):
            self.check()
            if time.monotonic() > end:
                raise CrashFailure(f"{self} did not come to {state!r} in {DEADLINE_S} s")

    def check(self) -> None:
        """Raise what a process that should be running has to say."""
        if self.child.has_word() or self.child.wait(0) is not None:
            try:
                word = self.child.answer(1.0)
            except RuntimeError as error:
                raise CrashFailure(f"{self}: {error}") from None
            raise CrashFailure(f"{self} ended on its own: {word}")

    def __str__(self) -> str:
        return f"{self.role} (pid {self.child.pid}, {self.child.state()}, {self.steps()} steps)"


class Stage:
    """Everything a round needs; `close` ends all processes. `sound` is false after a round that failed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.sound = True
        self._seed = seed
        self._writer_ids = 0
        self._past: dict[int, tuple[list[int], list[int]]] = {}
        self.board = Board(directory / "board", _LINES, create=True)
        self._board_path = directory / "board"
        self.zygote = Zygote()
        self._players: list[Player] = []
        self._free = list(range(_LINES))
        self.auditor = self.zygote.fork(role="auditor", store="crash")
        try:
            self.auditor.answer(60.0)
            self.survivors = [self.start(role, pause_s=0.001) for role in _SURVIVORS]
            for player in self.survivors:
                player.must(State.RUNNING)
            self.go_on(self.survivors, steps=5)
            self.memory = self.ask("memory")
        except BaseException:
            self.close()
            raise

    def start(
        self,
        role: str,
        *,
        arm: Sequence[Point] = (),
        arm_first: Sequence[Point] = (),
        paused: bool = False,
        pause_s: float = 0.0,
        store: str = "crash",
        create: bool = False,
        lock_timeout_s: float = 10.0,
    ) -> Player:
        """Start a process. `arm_first`: points armed before it attaches (or creates), `arm`: after."""
        line = self._free.pop()
        self._writer_ids += 1
        self.board.clear(line)
        self.board.set(line, Field.WRITER, self._writer_ids)
        self.board.set(line, Field.ORDER, Order.PAUSE if paused else Order.RUN)
        child = self.zygote.fork(
            role=role, line=line, lines=_LINES, board=str(self._board_path), store=store, create=create,
            arm=list(arm), arm_first=list(arm_first), pause_s=pause_s, lock_timeout_s=lock_timeout_s,
            seed=self._seed * 100_003 + self._writer_ids,
        )  # fmt: skip
        player = Player(role, line, child, self.board)
        self._players.append(player)
        return player

    def guests(self) -> list[Player]:
        """Return the processes that are not survivors, dead ones too until they are forgotten."""
        return [player for player in self._players if player not in self.survivors]

    def go_on(self, players: Iterable[Player], *, steps: int = 2, unless: Callable[[], bool] = _never) -> float:
        """Return the seconds until each of `players` has completed `steps` more operations, or `unless` holds."""
        begin = time.monotonic()
        goals = [(player, player.steps() + steps) for player in players]
        while goals := [(player, goal) for player, goal in goals if player.steps() < goal]:
            for player, _ in goals:
                player.check()
            if unless():
                break
            if time.monotonic() - begin > DEADLINE_S:
                late = ", ".join(str(player) for player, _ in goals)
                raise CrashFailure(f"{late} did not go on in {DEADLINE_S} s")
            time.sleep(0.0003)
        return time.monotonic() - begin

    def lap(self, unless: Callable[[], bool] = _never) -> None:
        """Let the surviving writer pass twice through both tables, unless `unless` comes to hold."""
        writer = self.survivors[0]
        goals = {table: writer.acked(table) + 2 * rows.MAX_SIZE for table in ("plain", "episodic")}
        end = time.monotonic() + 2 * DEADLINE_S
        while any(writer.acked(table) < goal for table, goal in goals.items()) and not unless():
            writer.check()
            if time.monotonic() > end:
                raise CrashFailure(f"{writer} did not pass through the tables: {self.ask('info')}")
            time.sleep(0.0005)

    def pause(self) -> None:
        """Bring the survivors to rest between two operations."""
        for player in self.survivors:
            player.order(Order.PAUSE)
        for player in self.survivors:
            player.must(State.PAUSED)

    def resume(self) -> None:
        for player in self.survivors:
            player.order(Order.RUN)

    def leave(self, player: Player) -> Any:
        """Have a running process end properly; return what it reports."""
        player.order(Order.QUIT)
        try:
            result = player.child.answer(DEADLINE_S)
        except (RuntimeError, TimeoutError) as error:
            raise CrashFailure(f"{player}: {error}") from None
        if player.child.wait(DEADLINE_S) != 0:
            raise CrashFailure(f"{player} ended with {player.child.status}")
        self.forget(player)
        return result

    def forget(self, player: Player) -> None:
        """Let go of a process that has ended, and remember what it had written."""
        self._past |= self._written(player)
        while len(self._past) > _REMEMBERED:
            del self._past[next(iter(self._past))]
        player.child.end()
        self._players.remove(player)
        self._free.append(player.line)

    def _written(self, player: Player) -> dict[int, tuple[list[int], list[int]]]:
        """By writer id: serials acknowledged and tried, of plain rows and of episodes."""
        words = [int(word) for word in self.board.words[player.line]]
        plain = [words[Field.PLAIN_ACKED], words[Field.PLAIN_TRIED]]
        return {words[Field.WRITER]: (plain, [words[Field.EPISODIC_ACKED], words[Field.EPISODIC_TRIED]])}

    def ask(self, what: str, **arguments: Any) -> Any:
        """Have the auditor do something."""
        try:
            return self.auditor.ask(3 * DEADLINE_S, what=what, **arguments)
        except (RuntimeError, TimeoutError) as error:
            raise CrashFailure(f"auditor, {what}: {error}") from None

    def audit(self, guest: Player | None = None, since: Sequence[int] = ()) -> None:
        """Compare the store with what it must be; the survivors rest meanwhile.

        `guest`: another process, at rest, that alone has appended last: from its serials `since` (plain, episodic) on.

        Raises:
            CrashFailure: torn or lost rows, wrong counts, memory that did not come back.
        """
        self.pause()
        written = dict(self._past)
        guests = [guest] if guest is not None else []
        for player in self.survivors + guests:
            written |= self._written(player)
        tables: dict[str, dict[int, list[int]]] = {"plain": {}, "episodic": {}}
        for writer, (plain, episodic) in written.items():
            tables["plain"][writer] = plain
            tables["episodic"] |= dict.fromkeys(rows.siblings(writer), episodic)
        due = {writer: since for player in guests for writer in self._written(player)}
        faults: list[str] = self.ask("rows", writers=tables, since=due)
        memory = self.ask("memory")
        if memory["bytes"] != self.memory["bytes"]:
            faults.append(f"{memory['bytes']} bytes are allocated, {self.memory['bytes']} at the start")
        if memory["descriptors"] != self.memory["descriptors"]:
            faults.append(
                f"descriptors of the auditor: {memory['descriptors']}, {self.memory['descriptors']} at the start"
            )
        if memory["slots"] > len(_SURVIVORS) + 6:
            faults.append(f"{memory['slots']} process slots are in use: those of the dead are not taken again")
        alive = len(self.survivors + guests) + 1
        if memory["alive"] != alive:
            faults.append(f"{memory['alive']} processes count as alive, {alive} are")
        self.resume()
        if faults:
            raise CrashFailure("; ".join(faults))

    def all_blocks_come_back(self) -> None:
        """Wait until every block has been used anew, and the survivors are still well."""
        faults: list[str] = self.ask("reused", within_s=2 * DEADLINE_S)
        if faults:
            raise CrashFailure("; ".join(faults))

    def close(self) -> None:
        """End all processes: the players by kill, the auditor, which then is the last to hold the store, properly."""
        for player in self._players:
            player.child.signal(signal.SIGKILL)
        for player in self._players:
            player.child.end()
        self.auditor.hang_up()
        if self.auditor.wait(DEADLINE_S) != 0 or not self.sound:
            for name in names.list_names():
                names.socket_path(name).unlink(missing_ok=True)
        self.auditor.end()
        self.zygote.close()
        self.board.close()
