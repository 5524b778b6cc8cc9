"""A page that the processes of a crash test share beside the store: what each shall do, does and has done.

It is a file, so that what a killed process last wrote stays readable. Each process has a line; a word has one
writer, and is written whole.
"""

from __future__ import annotations

import mmap
import time
from enum import IntEnum
from pathlib import Path

import numpy as np

__all__ = ["Board", "Field", "Order", "State"]


class Order(IntEnum):
    """What a process shall do."""

    RUN = 0
    PAUSE = 1
    QUIT = 2


class State(IntEnum):
    """What a process does."""

    STARTING = 0
    RUNNING = 1
    PAUSED = 2
    DONE = 3


class Field(IntEnum):
    """The words of a line."""

    ORDER = 0  # written by the driver
    STATE = 1  # the others by the process
    STEPS = 2  # operations completed
    WRITER = 3  # id under which it writes rows; unique over the life of the store
    PLAIN_TRIED = 4  # serials below this were handed to append
    PLAIN_ACKED = 5  # serials below this were acknowledged
    EPISODIC_TRIED = 6
    EPISODIC_ACKED = 7


class Board:
    """`lines` lines of int64 words. Creating it clears the file."""

    def __init__(self, path: Path, lines: int, *, create: bool = False) -> None:
        nbytes = lines * len(Field) * 8
        if create:
            path.write_bytes(bytes(nbytes))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), nbytes)
        self.words = np.frombuffer(self._map, np.int64).reshape(lines, len(Field))

    def get(self, line: int, field: Field) -> int:
        return int(self.words[line, field])

    def set(self, line: int, field: Field, value: int) -> None:
        self.words[line, field] = value

    def clear(self, line: int) -> None:
        self.words[line] = 0

    def wait(self, line: int, state: State, timeout: float) -> bool:
        """Return whether the process of `line` comes to `state` within `timeout` seconds."""
        end = time.monotonic() + timeout
        while self.get(line, Field.STATE) != state:
            if time.monotonic() > end:
                return False
            time.sleep(0.0002)
        return True

    def close(self) -> None:
        del self.words
        self._map.close()
