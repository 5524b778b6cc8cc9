"""What a process that the zygote forked does: attach, arm its failpoints, play its role as the board orders."""

from __future__ import annotations

import json
import random
import socket
import time
from pathlib import Path
from typing import Any

import conduit
from conduit_store.native import native
from tests.crash import audit, queue_roles, rows
from tests.crash.board import Board, Field, Order, State
from tests.crash.roles import ROLES

__all__ = ["main"]


def arm(points: list[tuple[str, str, int]]) -> None:
    for name, action, nth in points:
        native.failpoint_arm(name, action, nth)


def main(settings: dict[str, Any], link: socket.socket) -> None:
    """Live as one process of the test. `settings`: see `Stage.start`."""
    if settings["role"] == "auditor":
        audit.serve(settings, link)
        return
    if settings["role"] in queue_roles.ROLES:
        queue_roles.serve(settings, link)
        return
    board = Board(Path(settings["board"]), settings["lines"])
    line: int = settings["line"]
    native.set_lock_timeout(settings["lock_timeout_s"])
    arm(settings["arm_first"])
    store = rows.create_store(settings["store"]) if settings["create"] else conduit.Store.attach(settings["store"])
    role = ROLES[settings["role"]](store, board, line, random.Random(settings["seed"]))
    arm(settings["arm"])
    pause_s: float = settings["pause_s"]
    while (order := board.get(line, Field.ORDER)) != Order.QUIT:
        if order == Order.PAUSE:
            board.set(line, Field.STATE, State.PAUSED)
            time.sleep(0.0005)
            continue
        board.set(line, Field.STATE, State.RUNNING)
        role.step()
        board.words[line, Field.STEPS] += 1
        time.sleep(pause_s)
    arm([(name, "kill", 0) for name, _, _ in (*settings["arm_first"], *settings["arm"])])  # the 0th pass never comes
    nbytes = store.metrics().reserved_bytes
    role.close()
    store.close()
    hits = {name: native.failpoint_hits(name) for name in native.failpoint_names()}
    result = {"bytes": nbytes, "hits": {name: n for name, n in hits.items() if n}}
    board.set(line, Field.STATE, State.DONE)
    link.send(json.dumps({"result": result}).encode())
