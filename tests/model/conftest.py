"""Every exploration of a run is listed at its end, with the number of states."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Say what was explored, and what came of it; the whole result is on the test's own output (pytest -rP)."""

    def say(what: str, result: object) -> None:
        text = str(result)
        print(f"{what}: {text}")
        steps = text.count("\n")
        line = text.splitlines()[0] + (f" (in {steps} steps)" if steps else "")
        request.config.stash.setdefault(_LINES, []).append(f"{what}: {line}")

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("models explored")
        for line in lines:
            terminalreporter.line(line)
