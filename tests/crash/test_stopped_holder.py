"""A process stopped inside the index lock: the others wait, then say who holds it, and go on when it does."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.crash.board import Order
from tests.crash.stage import Stage

pytestmark = pytest.mark.crash


def test_the_holder_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    stage = Stage(tmp_path, seed=2)
    try:
        for player in stage.survivors[1:]:
            player.order(Order.QUIT)  # the lock's timeout would end them with an error
        stopped = stage.start("updater", arm=[("update_locked", "stop", 1)])
        waiting = stage.start("sampler")
        begin = time.monotonic()
        while stopped.child.state() != "T":
            assert time.monotonic() - begin < 10
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match=rf"LockTimeout: .*held by .*(slot \d|pid {stopped.child.pid})") as error:
            waiting.child.answer(20.0)
        assert re.search(r"\d+\.\d+ s", str(error.value)), "the message gives the limit"
        stopped.child.signal(signal.SIGCONT)
        assert stage.go_on([stopped]) < 10
    finally:
        stage.close()
