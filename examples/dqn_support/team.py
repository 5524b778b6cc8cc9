"""The DQN example's actor processes, and the Ctrl-C that ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any, Self

ACTOR = Path(__file__).resolve().parents[1] / "dqn_actor.py"
GRACE_S = 3.0  # what actors that have started get to end by themselves, before they are terminated


class ActorFailed(RuntimeError):
    """An actor process ended before it was told to."""


class StopRequest:
    """Ctrl-C and SIGTERM as a flag, so that they never interrupt a step half way.

    After the first one, further ones are ignored until the block is left: ending takes at most some seconds.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


class Team:
    """Actor processes that play into one store; a context manager that leaves none behind."""

    def __init__(self, store_name: str, actors: int, envs_per_actor: int, seed: int) -> None:
        self.ready = 0
        self.spent: list[dict[str, float]] = [{} for _ in range(actors)]
        self._news: deque[dict[str, Any]] = deque()
        same = (f"--envs={envs_per_actor}", f"--seed={seed}", f"--parent={os.getpid()}")
        command = [sys.executable, str(ACTOR), store_name, *same]
        self._commands = [[*command, f"--index={index}"] for index in range(actors)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        # One thread is enough for products this small, and leaves the other cores to the others.
        env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        for command in self._commands:
            # A session of its own: Ctrl-C reaches the learner alone, and the learner ends the actors.
            process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, start_new_session=True)
            reader = threading.Thread(target=self._read, args=(process,), daemon=True)
            reader.start()
            self._processes.append(process)
            self._readers.append(reader)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.news(ended=True)
        may_take_s = GRACE_S if kind is None and self.ready == len(self._processes) else 0.0
        deadline = time.monotonic() + may_take_s
        for end in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
            for process in self._processes:
                if end is not None and process.poll() is None:
                    end(process)
                    deadline = time.monotonic() + GRACE_S
            for process in self._processes:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
        for reader in self._readers:
            reader.join()
        self.news(ended=True)

    def news(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """The episodes finished since the last call, oldest first, each with `actor` and `return`.

        Raises:
            ActorFailed: an actor is gone although nobody has `ended` the team.
        """
        episodes = []
        while self._news:
            line = self._news.popleft()
            self.ready += "ready" in line
            self.spent[line["actor"]] = line.get("spent", {})
            if "return" in line:
                episodes.append(line)
        for index, process in enumerate(self._processes):
            if not ended and process.poll() is not None:
                raise ActorFailed(f"actor {index} (pid {process.pid}) ended with status {process.returncode}")
        return episodes

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._news.append(json.loads(line))
