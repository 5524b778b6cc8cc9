"""Each failpoint once by kill and once by stop, and a sample of random rounds; `campaign` plays thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.campaign import plan_of
from tests.crash.points import PREPARED, ROLES_AT
from tests.crash.rounds import SURE_S, Strike, play
from tests.crash.stage import Stage
from tests.leaks import belongings, left_behind

pytestmark = pytest.mark.crash

_SAMPLE = 40
_SEED = 20_240


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stage]]:
    """One stage for all rounds; a failed one is replaced."""
    current: list[Stage] = []

    def fresh() -> Stage:
        for stage in current:
            stage.close()
        current[:] = [Stage(tmp_path_factory.mktemp("stage"), _SEED)]
        return current[0]

    fresh()
    yield lambda: current[0] if current[0].sound else fresh()
    for stage in current:
        stage.close()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(stages: Callable[[], Stage], session_runtime_dir: Path) -> Iterator[None]:
    """As for every test, but the stage, which a test may have spoilt, is set first."""
    stage = stages()
    before = belongings(session_runtime_dir)
    yield
    if stage.sound and (left := left_behind(before, session_runtime_dir)):
        pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)


@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize("point", ROLES_AT)
def test_each_failpoint(stages: Callable[[], Stage], point: str, action: str) -> None:
    roles = ROLES_AT[point]
    role = roles[(list(ROLES_AT).index(point) + (action == "stop")) % len(roles)]
    outcome = play(stages(), (Strike(role, point, action),), SURE_S)
    assert len(outcome.struck) == 1, f"{role} did not pass {point}"


@pytest.mark.parametrize(("role", "point"), [(role, point) for point in PREPARED for role in ROLES_AT[point]])
def test_each_prepared_failpoint_by_every_role(stages: Callable[[], Stage], role: str, point: str) -> None:
    outcome = play(stages(), (Strike(role, point, "kill"),), SURE_S)
    assert len(outcome.struck) == 1


@pytest.mark.parametrize("index", range(_SAMPLE))
def test_random_rounds(stages: Callable[[], Stage], index: int) -> None:
    play(stages(), plan_of(_SEED, index))


def test_every_block_comes_back(stages: Callable[[], Stage]) -> None:
    stages().all_blocks_come_back()
