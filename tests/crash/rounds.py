"""One round: strike one or two processes, see that the others go on, that the stopped go on too, and audit."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field

from tests.crash import rows
from tests.crash.board import Order, State
from tests.crash.points import LOCK_FREE, PREPARED, ROLES_AT, WRITING, strikes
from tests.crash.stage import DEADLINE_S, CrashFailure, Player, Stage

__all__ = ["Outcome", "Strike", "choose", "play"]

_HIT_S = 1.5  # a point not passed by then counts as missed
SURE_S = 20.0  # of one that is passed for sure, however busy the machine is
_SECOND_S = 0.15  # how long a stopped process is left so for the second of a pair to be struck as well
_IN_LOCK_S = 0.02  # how long the others are kept waiting for the index lock
_DEEPEST = 6


@dataclass(frozen=True)
class Strike:
    """Kill or stop the process of `role` when it passes `point` for the `nth` time."""

    role: str
    point: str
    action: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.action} {self.role} at {self.point}#{self.nth}"


@dataclass
class Outcome:
    """What a round showed: the strikes that landed, and the longest that the others took to go on."""

    struck: list[Strike] = field(default_factory=list)
    missed: list[Strike] = field(default_factory=list)
    others_s: float = 0.0
    patience_s: float = _HIT_S


def choose(chance: random.Random) -> tuple[Strike, ...]:
    """Return a random round: one strike, or two in every third."""
    point = chance.choice(list(ROLES_AT))
    first = (chance.choice(ROLES_AT[point]), point)
    plan = [first]
    if chance.random() < 0.4 and point not in PREPARED and first[0] != "creator":
        others = [(role, at) for role, at in strikes() if at not in PREPARED and role != "creator"]
        plan.append(chance.choice(others))
    return tuple(
        Strike(role, at, chance.choice(("kill", "stop")), 1 if at in PREPARED else chance.randint(1, _deepest(role)))
        for role, at in plan
    )


def _deepest(role: str) -> int:
    return len(rows.TABLES) if role == "creator" else _DEEPEST


def play(stage: Stage, plan: tuple[Strike, ...], patience_s: float = _HIT_S) -> Outcome:
    """Play one round and audit the store after it. A point not passed within `patience_s` counts as missed.

    Raises:
        CrashFailure: a promise did not hold.
    """
    outcome = Outcome(patience_s=patience_s)
    stage.sound = False
    if plan[0].role == "creator":
        _play_creator(stage, plan[0], outcome)
    elif plan[0].point in PREPARED:
        _play_prepared(stage, plan[0], outcome)
    else:
        players = {_start(stage, strike): strike for strike in plan}
        _strike(stage, players, outcome)
    for player in stage.survivors:
        player.check()
    stage.audit()
    stage.sound = True
    return outcome


def _start(stage: Stage, strike: Strike, *, paused: bool = False) -> Player:
    return stage.start(strike.role, arm=[(strike.point, strike.action, strike.nth)], paused=paused)


def _wait_struck(players: dict[Player, Strike], outcome: Outcome) -> tuple[list[Player], list[Player]]:
    """Wait until the processes are struck, or it is clear that they will not be: (dead, stopped) so far."""
    dead: list[Player] = []
    stopped: list[Player] = []
    begin = time.monotonic()
    patience = outcome.patience_s
    while len(dead) + len(stopped) < len(players) and time.monotonic() - begin < patience:
        for player, strike in players.items():
            if player in dead or player in stopped:
                continue
            if player.child.wait(0) is not None:
                if player.child.status != -signal.SIGKILL or strike.action != "kill":
                    player.check()
                dead.append(player)
            elif player.child.state() == "T":
                stopped.append(player)
            else:
                continue
            outcome.struck.append(strike)
            patience = time.monotonic() - begin + _SECOND_S if stopped else patience
        time.sleep(0.0002)
    return dead, stopped


def _strike(stage: Stage, players: dict[Player, Strike], outcome: Outcome) -> None:
    """Wait for the strikes, check the others, revive the stopped, send all who live home."""
    left = dict(players)
    while left:
        dead, stopped = _wait_struck(left, outcome)
        if not dead and not stopped:
            break
        struck = {player: left.pop(player) for player in dead + stopped}
        _others_go_on(stage, struck, list(left), outcome)
        for player in dead:
            stage.forget(player)
    _retire(stage, {player: left.get(player) for player in players if player.child.status is None}, outcome)


def _others_go_on(stage: Stage, struck: dict[Player, Strike], pending: list[Player], outcome: Outcome) -> None:
    """Measure how soon the survivors, and the stopped after SIGCONT, go on.

    A `pending` process may be stopped at any moment, with the lock: then there is no more to measure for now.
    """
    stopped = [player for player in struck if player.child.status is None]

    def interrupted() -> bool:
        return any(player.child.state() == "T" for player in pending)

    if all(struck[player].point in LOCK_FREE for player in stopped):
        outcome.others_s = max(outcome.others_s, stage.go_on(stage.survivors, unless=interrupted))
        if stopped:
            stage.lap(unless=interrupted)
        if stopped and not pending:
            for fault in stage.ask("light"):
                raise CrashFailure(fault)
    else:
        time.sleep(_IN_LOCK_S)
    for player in stopped:
        if player.role in WRITING and struck[player].point in LOCK_FREE and stage.guests() == [player]:
            _revive_alone(stage, player)
        player.child.signal(signal.SIGCONT)
    if stopped:
        outcome.others_s = max(outcome.others_s, stage.go_on(stage.survivors, unless=interrupted))
        stage.go_on(stopped, steps=1, unless=interrupted)


def _revive_alone(stage: Stage, player: Player) -> None:
    """Let a stopped writer go on while the survivors rest: what it appends now must be there afterwards."""
    stage.pause()
    since = [player.tried(table) for table in ("plain", "episodic")]  # the interrupted call's rows may be in, and gone
    player.child.signal(signal.SIGCONT)
    stage.go_on([player], steps=2)
    player.order(Order.PAUSE)
    player.must(State.PAUSED)
    stage.audit(player, since)
    player.order(Order.RUN)


def _retire(stage: Stage, players: dict[Player, Strike | None], outcome: Outcome) -> None:
    """Send processes home. Those given with a strike have not been struck; they still may be, on their last step."""
    for player in players:
        player.order(Order.QUIT)
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and not all(player.child.has_word() for player in players):
        for player, missed in players.items():
            if player.child.state() == "T":
                player.child.signal(signal.SIGCONT)
                outcome.struck += [missed] if missed is not None else []
                players[player] = None
        time.sleep(0.0003)
    for player, missed in players.items():
        if missed is not None and missed.action == "kill" and player.child.wait(0) == -signal.SIGKILL:
            outcome.struck.append(missed)
            stage.forget(player)
        else:
            outcome.missed += [missed] if missed is not None else []
            stage.leave(player)


def _play_prepared(stage: Stage, strike: Strike, outcome: Outcome) -> None:
    """Bring about what the point needs while the survivors rest, then let the victim run into it."""
    stage.pause()
    victim = _start(stage, strike, paused=True)
    victim.must(State.PAUSED)
    episodic = strike.role in ("episodes", "fragments", "vector", "updater")
    writes = "episodes" if episodic else "extend"
    match PREPARED[strike.point]:
        case "dead holder":
            # A sampler's first draw is from the episodic table, its second from the plain one.
            helper = stage.start("sampler", arm=[("draw_locked", "kill", 1 if episodic else 2)])
        case "stopped reader":
            helper = stage.start("sampler", arm=[("gather_begin", "stop", 1 if episodic else 2)])
        case "dead writer":
            helper = stage.start(writes, arm=[("append_published", "kill", 1)])
        case _:
            helper = stage.start("hog")
            stage.go_on([helper], steps=1)
    if helper.role != "hog":
        _await(helper, stopped=PREPARED[strike.point] == "stopped reader")
    victim.order(Order.RUN)
    dead, stopped = _wait_struck({victim: strike}, outcome)
    if helper.role == "hog" and strike.action == "kill":  # the pins of a dead process hold nothing
        helper.child.signal(signal.SIGKILL)
        _await(helper, stopped=False)
        stage.forget(helper)
    elif helper.role == "hog":
        stage.leave(helper)
    elif helper.child.status is None:
        helper.child.signal(signal.SIGCONT)
    else:
        stage.forget(helper)
    stage.resume()
    if helper.role == "hog":
        stage.lap()
    if dead or stopped:
        _others_go_on(stage, {victim: strike}, [], outcome)
    if dead:
        stage.forget(victim)
    else:
        _retire(stage, {victim: None if stopped else strike}, outcome)
    if helper.role == "sampler" and helper.child.status is None:
        stage.go_on([helper])
        stage.leave(helper)


def _await(player: Player, *, stopped: bool) -> None:
    end = time.monotonic() + DEADLINE_S
    while not (player.child.state() == "T" if stopped else player.child.wait(0) is not None):
        if time.monotonic() > end:
            raise CrashFailure(f"{player} was not struck in {DEADLINE_S} s")
        time.sleep(0.0002)
    if not stopped and player.child.status != -signal.SIGKILL:
        player.check()


def _play_creator(stage: Stage, strike: Strike, outcome: Outcome) -> None:
    """A creator is struck while it makes the tables of a store that another holds as well."""
    name = "made"
    creator = stage.start(
        "creator", arm=[(strike.point, strike.action, strike.nth)], paused=True, store=name, create=True
    )
    creator.must(State.PAUSED)
    heir = stage.start("creator", paused=True, store=name)
    heir.must(State.PAUSED)
    creator.order(Order.RUN)
    dead, stopped = _wait_struck({creator: strike}, outcome)
    heir.order(Order.RUN)
    if stopped:
        time.sleep(_IN_LOCK_S)
        creator.child.signal(signal.SIGCONT)
    outcome.others_s = stage.go_on([heir])
    if dead:
        stage.forget(creator)
    else:
        _retire(stage, {creator: None if stopped else strike}, outcome)
    nbytes = stage.leave(heir)["bytes"]
    if nbytes != stage.memory["bytes"]:
        raise CrashFailure(f"{nbytes} bytes are allocated after a creator's end, {stage.memory['bytes']} without it")
