"""Producers and consumers of a queue, for the kill tests: what each of them does is on paper before and after.

A producer's line of the board says which serials it has handed over and which are in. A consumer's journal has a line
for each delivery ("d", with the time before it was asked for), for each acknowledgement that begins ("i") and for each
that has returned ("a", with the time after); a killed process leaves whole lines.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np

import conduit
from conduit_store.errors import AppendTimeout, LeaseExpired, SampleTimeout
from conduit_store.native import native
from tests.crash.board import Board, Field, Order, State

__all__ = ["MAX_SIZE", "ROLES", "SCHEMA", "VARYING", "checked", "row_ids", "serve"]

MAX_SIZE = 40
_LARGEST = 20  # rows of an append: more than two blocks hold
SCHEMA = conduit.Schema.from_example({"writer": np.int64(0), "serial": np.int64(0), "payload": np.zeros(64, np.int64)})
VARYING = conduit.Schema((*SCHEMA.columns, conduit.Column("tail", "int64", (None,), mean_length=16)))


def _payload(writer: Any, serial: Any) -> Any:
    return (writer * 1_000_003 + serial * 7_919)[:, None] + np.arange(64)


def _rows(schema: conduit.Schema, writer: Any, serial: Any) -> dict[str, Any]:
    """Rows of a writer; of `VARYING` each with a tail of 0 to 32 elements more."""
    payload = _payload(writer, serial)
    rows = {"writer": writer, "serial": serial, "payload": payload}
    if "tail" in schema:
        rows["tail"] = [row[: which * 7 % 33] - 1 for row, which in zip(payload, serial, strict=True)]
    return rows


def row_ids(batch: conduit.QueueBatch) -> list[tuple[int, int]]:
    """(writer, serial) of each row."""
    return list(zip(batch["writer"].tolist(), batch["serial"].tolist(), strict=True))


def checked(batch: conduit.QueueBatch) -> list[tuple[int, int]]:
    """The rows of a batch, which must be whole, and in order for each writer."""
    expected = _rows(VARYING, batch["writer"], batch["serial"])
    if not (batch["payload"] == expected["payload"]).all():
        raise AssertionError("a torn row was delivered")
    if "tail" in batch and not all(map(np.array_equal, batch["tail"], expected["tail"])):
        raise AssertionError("a row was delivered with a tail that is torn")
    ids = row_ids(batch)
    for writer in {writer for writer, _ in ids}:
        serials = [serial for other, serial in ids if other == writer]
        if serials != sorted(set(serials)):
            raise AssertionError(f"rows of writer {writer} are out of order: {serials}")
    return ids


class Producer:
    """Appends its rows: by extend where its id is odd, else one by one. A process's extend is a producer of its own."""

    def __init__(self, queue: conduit.Queue, board: Board, line: int, settings: dict[str, Any]) -> None:
        self.queue, self.board, self.line = queue, board, line
        self.writer_id = board.get(line, Field.WRITER)
        self.chance = random.Random(settings["seed"])
        self.next = 0
        self.writer = queue.writer(timeout=0.02)

    def step(self) -> None:
        n = self.chance.choice((1, 3, 8, _LARGEST)) if self.writer_id % 2 else 1
        self.board.set(self.line, Field.PLAIN_TRIED, self.next + n)
        serial = np.arange(self.next, self.next + n)
        writer = np.full(n, self.writer_id)
        rows = _rows(self.queue.schema, writer, serial)
        try:
            if self.writer_id % 2 == 0:
                self.writer.append(**{name: column[0] for name, column in rows.items()})
            else:
                self.queue.extend(rows, timeout=0.02)
        except AppendTimeout:  # nothing is in: the same rows again
            self.board.set(self.line, Field.PLAIN_TRIED, self.next)
            return
        self.next += n
        self.board.set(self.line, Field.PLAIN_ACKED, self.next)

    def close(self) -> None:
        self.writer.close()


class Taker:
    """Takes batches of one consumer group; acknowledges most, some in parts, gives others back."""

    def __init__(self, queue: conduit.Queue, board: Board, line: int, settings: dict[str, Any]) -> None:
        self.queue, self.group = queue, settings["group"]
        self.chance = random.Random(settings["seed"])
        self.journal = os.open(settings["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, kind: str, at: int, ids: list[tuple[int, int]]) -> None:
        os.write(self.journal, json.dumps([kind, self.group, at, ids]).encode() + b"\n")

    def step(self) -> None:
        asked = time.monotonic_ns()
        try:
            batch = self.queue.sample(self.chance.randint(1, 16), consumer=self.group, timeout=0.02, partial=True)
        except SampleTimeout:
            return None
        ids = checked(batch)
        self.note("d", asked, ids)
        way = self.chance.random()
        keys, chosen = None, ids
        if way < 0.25:
            return batch.release()
        if way < 0.5:
            keep = [i for i in range(len(ids)) if self.chance.random() < 0.5] or [0]
            keys, chosen = batch.keys[keep], [ids[i] for i in keep]
        self.note("i", 0, chosen)
        try:
            batch.ack(keys)
        except LeaseExpired:
            return None
        self.note("a", time.monotonic_ns(), chosen)
        return batch.release()

    def close(self) -> None:
        os.close(self.journal)


ROLES: dict[str, type[Any]] = {"producer": Producer, "consumer": Taker}


def serve(settings: dict[str, Any], link: socket.socket) -> None:
    """Live as one producer or consumer until told to quit."""
    board = Board(Path(settings["board"]), settings["lines"])
    line: int = settings["line"]
    native.set_lock_timeout(10.0)
    store = conduit.Store.attach(settings["store"])
    role = ROLES[settings["role"]](store.queue("q"), board, line, settings)
    for name, action, nth in settings["arm"]:
        native.failpoint_arm(name, action, nth)
    board.set(line, Field.STATE, State.RUNNING)
    while board.get(line, Field.ORDER) != Order.QUIT:
        role.step()
        board.words[line, Field.STEPS] += 1
    role.close()
    store.close()
    link.send(json.dumps({"result": None}).encode())
