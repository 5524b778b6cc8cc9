"""The code in README.md, docs/sampling.md and docs/torchrl.md runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("(256, 4) (256, 4) [")
    assert done.stdout.rstrip().endswith("1.0")


def test_the_page_of_sampling_runs() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sampling.md").read_text(), re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "SampleToInsertRatio(4): 100 inserted x 4 - 256 sampled leaves 144, 256 asked; 28 more" in done.stdout


def test_the_page_of_torchrl_runs() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "torchrl.md").read_text(), re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=False, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_every_linked_file_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
