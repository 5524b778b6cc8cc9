"""Every failpoint is alive, and the tables of who passes it are true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.points import LOCK_FREE, PREPARED, QUEUE_ROLES_AT, ROLES_AT, RUN_POINTS, TIER_POINTS
from tests.crash.stage import Stage

pytestmark = pytest.mark.crash

_STEPS = {"attacher": 4, "reader": 60, "saver": 3}
_NAMES = """
import os
os.environ["CONDUIT_NATIVE"] = "test"
from conduit_store.native import native
print(*native.failpoint_names())
"""


def test_the_tables_name_every_failpoint() -> None:
    names = subprocess.run([sys.executable, "-c", _NAMES], check=True, capture_output=True, text=True).stdout.split()
    assert sorted([*ROLES_AT, *QUEUE_ROLES_AT, *RUN_POINTS, *TIER_POINTS]) == sorted(names)
    assert set(names) >= LOCK_FREE
    assert set(names) >= set(PREPARED)


def test_roles_pass_their_failpoints(tmp_path: Path) -> None:
    """What must be prepared, and the creator's points, are shown by the rounds of test_rounds.py."""
    stage = Stage(tmp_path, seed=1)
    try:
        roles = {role for point, roles in ROLES_AT.items() if point not in PREPARED for role in roles} - {"creator"}
        hits: dict[str, dict[str, int]] = {}
        for role in sorted(roles):
            player = stage.start(role)
            stage.go_on([player], steps=_STEPS.get(role, 100))
            hits[role] = stage.leave(player)["hits"]
            stage.audit()
        missing = [
            f"{point} by {role}"
            for point, roles_at in ROLES_AT.items()
            for role in roles_at
            if point not in PREPARED and role != "creator" and point not in hits[role]
        ]
        assert missing == []
        stage.all_blocks_come_back()
    finally:
        stage.close()
