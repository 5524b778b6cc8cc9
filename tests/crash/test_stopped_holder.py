"""A process stopped inside the index lock: the others wait, then say who holds it, and go on when it does."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.crash.board import Order
from tests.crash.stage import Stage

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("point", "holder"),
    [("update_locked", r"pid {pid} \(process slot \d+\)"), ("lock_taken", "thread {pid}")],
    ids=["signed", "not yet signed"],
)
def test_the_holder_is_named_and_nothing_is_lost(tmp_path: Path, point: str, holder: str) -> None:
    stage = Stage(tmp_path, seed=2)
    try:
        for player in stage.survivors[1:]:
            player.order(Order.QUIT)  # so that the table is at rest but for the writer, which waits for longer
        stopped = stage.start("updater", arm=[(point, "stop", 1)])
        begin = time.monotonic()
        while stopped.child.state() != "T":
            assert time.monotonic() - begin < 10
            time.sleep(0.001)
        waiting = stage.start("sampler", lock_timeout_s=0.3)
        said = rf"LockTimeout: index lock of table '(plain|episodic)' .* 0\.300 s: held by {holder}\. "
        with pytest.raises(RuntimeError, match=said.format(pid=stopped.child.pid)):
            waiting.child.answer(20.0)
        stopped.child.signal(signal.SIGCONT)
        assert stage.go_on([stopped]) < 10
    finally:
        stage.close()
