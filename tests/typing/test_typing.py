"""The types that users see, by mypy --strict over two small files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Large packages that the API names in a few places are Any here: reading them would take most of the time.
CONFIG = f"""
[mypy]
strict = True
mypy_path = {ROOT}:{ROOT}/store:{ROOT}/transport
follow_imports = silent
[mypy-torch.*,pyarrow.*,gymnasium.*]
follow_imports = skip
ignore_missing_imports = True
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy says, by file and line; one run for both files."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "mypy.ini").write_text(CONFIG)
    for name in ("accepted", "rejected"):
        (folder / f"{name}.py").write_text(next(HERE.glob(f"{name}.*")).read_text())
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "accepted.py", "rejected.py"],
        check=False, capture_output=True, text=True, cwd=folder, timeout=110,
        env={**os.environ, "MYPYPATH": "", "MYPY_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert not done.stderr
    said: dict[str, dict[int, str]] = {"accepted.py": {}, "rejected.py": {}}
    for line in done.stdout.splitlines():
        match = re.match(r"([a-z_/]+\.py):(\d+): error: (.*)", line)
        if match is not None:
            said.setdefault(match[1], {})[int(match[2])] = match[3]
    return said


def test_what_users_write_is_accepted(found: dict[str, dict[int, str]]) -> None:
    assert found["accepted.py"] == {}


def test_mistakes_are_refused(found: dict[str, dict[int, str]]) -> None:
    lines = (HERE / "rejected.txt").read_text().splitlines()
    expected = [number for number, line in enumerate(lines, 1) if "# error" in line]
    assert len(expected) > 10
    assert sorted(found["rejected.py"]) == expected, found["rejected.py"]
