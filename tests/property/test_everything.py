"""Everything at once: tables of any shape, written, drawn from, saved, reshaped, forked and attached, beside a model.

    everything/shapes.py    tables chosen by chance, and their rows
    everything/model.py     what may be drawn of such a table, and what a window of it holds
    everything/checks.py    batches and tables held against the model
    everything/writing.py   how rows come in, and
    everything/actions.py   what else is done to a table and its model

What a seed does is the same each time, but for the moments at which threads move rows to disk and prepare batches.
`make everything` plays 2,000 seeds, about 7 minutes; CONDUIT_EVERYTHING_SEEDS=3000:9000, or =3007, says which.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from pathlib import Path

import pytest

from tests.property.everything.actions import Run

SEEDS = range(40)
CAMPAIGN = os.environ.get("CONDUIT_EVERYTHING_SEEDS", "1000:3000")
MOST_FAULTS = 5  # then a campaign ends
REPORT_EVERY_S = 10.0


def play(seed: int, folder: Path) -> None:
    with Run(seed, folder) as run:
        run.play(60 if run.shape.on_disk else 30)  # so many that there is something on disk


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_at_once(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many seeds. Of each that fails it shows the fault, the table's shape and the actions, and goes on."""
    first, _, end = CAMPAIGN.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    failed: list[int] = []
    begin = last = time.monotonic()
    for done, seed in enumerate(seeds):
        if time.monotonic() - last > REPORT_EVERY_S:
            last = time.monotonic()
            with capsys.disabled():
                print(f"\n{done} of {len(seeds)} seeds in {last - begin:.0f} s, failed: {failed}", end="", flush=True)
        folder = tmp_path / str(seed)  # stays where the whole process crashes, and says where
        folder.mkdir()
        try:
            play(seed, folder)
            shutil.rmtree(folder)
        except Exception:
            failed.append(seed)
            with capsys.disabled():
                print(f"\n{traceback.format_exc()}", flush=True)
            if len(failed) == MOST_FAULTS:
                break
    assert not failed, f"seeds {failed} failed"
