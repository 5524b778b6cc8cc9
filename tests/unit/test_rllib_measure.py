"""`conduit bench rllib` and `conduit demo`: options, records and pages of synthetic steps, what is said without ray."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conduit import cli
from conduit.rllib import demo, grid, session
from conduit.rllib.clock import EXPERIENCE, STAGES
from conduit.rllib.measure import GRID, QUICK, WEIGHTS, Cell, Plan, choose
from conduit.rllib.records import record
from conduit_store.errors import ConfigError, MissingExtra

ABOUT = {"python": "3.11", "cores": 2}


def step(each_ms: float, compute_ms: float) -> dict[str, float]:
    """A step all of whose stages but compute took `each_ms`."""
    stages = dict.fromkeys(STAGES, each_ms) | {"compute": compute_ms}
    return {**stages, "step": sum(stages.values())}


def line(plan: Plan | None = None) -> dict[str, Any]:
    """Stock takes 1, 2 and 3 ms for each stage and 8 ms for compute, Conduit 0.5 ms and 8 ms, in two rounds."""
    rounds = {
        "stock": [[step(1.0, 8.0), step(2.0, 8.0)], [step(3.0, 8.0)]],
        "conduit": [[step(0.5, 8.0), step(0.5, 8.0)], [step(0.5, 8.0)]],
    }
    return record(Cell("dqn", 32, 64, 0), plan or Plan(steps=3, rounds=2), rounds, 0.04, ABOUT)


class TestCells:
    def test_the_grid(self) -> None:
        assert len(GRID) == len({cell.name for cell in GRID}) == 38
        assert set(QUICK) <= set(GRID)
        assert GRID[0].name == "dqn/32/64x64/0"

    def test_patterns(self) -> None:
        assert [cell.name for cell in choose(quick=True, only=["sac/*"])] == ["sac/256/256x256/0"]
        assert len(choose(quick=False, only=["*/512/*/2"])) == 6
        assert {cell.algorithm for cell in GRID} == set(WEIGHTS)
        assert choose(quick=False) == GRID

    def test_several_patterns(self) -> None:
        found = choose(quick=False, only=["tqc/*/0", "dqn/32/*", "dqn/*/64x64/2"])
        assert [cell.name for cell in found] == [
            "dqn/32/64x64/0", "dqn/32/64x64/2", "dqn/32/256x256/0", "dqn/32/256x256/2", "dqn/256/64x64/2",
            "dqn/512/64x64/2", "tqc/256/64x64/0", "tqc/256/256x256/0",
        ]  # fmt: skip

    def test_a_pattern_without_a_cell_names_those_there_are(self) -> None:
        with pytest.raises(ConfigError, match=r"'bc/\*'.*dqn/32/256x256/0"):
            choose(quick=True, only=["dqn/*", "bc/*"])


class TestRecord:
    def test_medians_quartiles_and_counts(self) -> None:
        found = line()
        assert found["stock"]["sample"] == {"q1": 1.5, "median": 2.0, "q3": 2.5, "n": 3}
        assert found["stock"]["experience"]["median"] == 2.0 * len(EXPERIENCE)
        assert found["stock"]["step"]["median"] == 2.0 * (len(STAGES) - 1) + 8.0
        assert found["stock"]["without_compute"]["median"] == 2.0 * (len(STAGES) - 1)
        assert math.isclose(found["conduit"]["exposed_share"]["median"], 2.5 / 12.0, abs_tol=1e-4)

    def test_ratio_of_all_steps_and_of_rounds(self) -> None:
        assert line()["step_ratio"] == {"median": 0.5, "rounds": [0.6, 0.375]}

    def test_complete_means_every_step_of_both(self) -> None:
        assert line()["complete"]
        assert not line(Plan(steps=4, rounds=2))["complete"]

    def test_a_line_of_json(self) -> None:
        assert json.loads(json.dumps(line())) == line()


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the files of its fonts open: they are there before a test looks for what it leaves."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("rich")
    from conduit.rllib import plots

    plots.draw([line()], tmp_path_factory.mktemp("fonts") / "any.png")


@pytest.mark.usefixtures("fonts")
class TestPages:
    def test_markdown(self) -> None:
        from conduit.rllib import plots

        page = plots.markdown([line()], "rllib.png")
        assert "![stages and step ratio](rllib.png)" in page
        (row,) = (text for text in page.splitlines() if text.startswith("| dqn/32/64x64/0 | 24.00"))
        assert "| 24.00 | 12.00 | 50.0 % | 0.50 | 0.38..0.60 | 16.00 | 4.00 | 75.0 % |" in row
        assert "| 10.00 | 2.500 | 75.0 % | 0.040 | 42 % | 20.8 % |" in row
        assert "- cores: 2" in page
        assert "busy" not in page
        tables = [text.count("|") for text in page.splitlines() if text.startswith("|")]
        assert len(set(tables)) == 2, "a row with more or fewer cells than its head"

    def test_a_busy_machine_and_a_cell_cut_short_are_told(self) -> None:
        from conduit.rllib import plots

        page = plots.markdown([{**line(Plan(steps=4, rounds=2)), "waiting": 1.5, "glue_ms": None}], "rllib.png")
        assert "dqn/32/64x64/0 (cut short)" in page
        assert "busy in 1 of 1 cells: up to 1.5 threads" in page

    def test_a_loss_is_a_negative_cut(self) -> None:
        from conduit.rllib import plots

        assert plots.cut(10.0, 12.0) == "-20.0 %"
        assert plots.cut(0.0, 1.0) == "-"

    def test_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from conduit.rllib import plots

        for path in plots.write([line(), line()], tmp_path)[1:]:
            assert path.stat().st_size > 0
        plots.show([line()])
        assert "dqn/32/64x64/0" in capsys.readouterr().out

    def test_the_demo_s_report(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from conduit.rllib import demo_plots

        stock = demo.Training("stock RLlib", [step(2.0, 8.0)] * 3, env_steps=60, seconds=4.0)
        ours = demo.Training("through Conduit", [step(0.5, 8.0)] * 3, env_steps=60, seconds=1.0)
        for training in (stock, ours):
            training.take(20)
            training.take(40)
        assert ours.episodes == [(20, 20.0), (60, 40.0)]
        assert ours.mean_return == 30.0
        demo_plots.show([stock, ours])
        printed = capsys.readouterr().out
        assert "Experience path 75.0 % shorter, whole training step 50.0 % shorter." in printed
        demo_plots.draw([stock, ours], tmp_path / "demo.png", "60 env steps, seed 1", 10)
        assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


class TestOptions:
    def test_what_was_given_is_passed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given: list[dict[str, Any]] = []
        monkeypatch.setattr(grid, "run", lambda **options: given.append(options) or 0)
        assert cli.main(["bench", "rllib", "--quick", "--only=dqn/*", "--steps=40", "--rounds=2", "--out=x"]) == 0
        assert cli.main(["bench", "rllib", "--seed=7", "--threads=1"]) == 0
        assert cli.main(["bench", "rllib", "--only=tqc/*", "--only", "sac/256/*"]) == 0
        nothing = {"quick": False, "only": [], "steps": None, "rounds": None, "seed": 1, "threads": None, "out": None}
        assert given[0] == nothing | {"quick": True, "only": ["dqn/*"], "steps": 40, "rounds": 2, "out": Path("x")}
        assert given[1] == nothing | {"seed": 7, "threads": 1}
        assert given[2] == nothing | {"only": ["tqc/*", "sac/256/*"]}

    @pytest.mark.parametrize("argv", [["bench"], ["bench", "nonsense"], ["bench", "rllib", "--steps=0"]])
    def test_what_is_refused(self, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as end:
            cli.main(argv)
        assert end.value.code == 2
        assert "usage: conduit bench" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"only": ["bc/*"]}, "no cell"), ({"steps": 2, "rounds": 3}, "2 steps in 3 rounds")],
    )
    def test_refused_before_ray_is_imported(
        self, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(demo, "require", lambda _: None)
        with pytest.raises(ConfigError, match=message):
            grid.run(**options)


class TestWithoutRay:
    @pytest.fixture(autouse=True)
    def hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))

    def test_the_demo_names_the_extra_and_the_way_without(self) -> None:
        with pytest.raises(MissingExtra) as error:
            demo.run()
        assert "ray" in str(error.value)
        assert "pip install 'conduit-edp[rllib]'" in str(error.value)
        assert "conduit demo --plain" in str(error.value)

    @pytest.mark.parametrize("argv", [["demo"], ["bench", "rllib", "--quick"]])
    def test_one_line_and_status_2(self, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(argv) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert "pip install 'conduit-edp[rllib]'" in message


def test_importing_conduit_rllib_imports_neither_ray_nor_torch() -> None:
    code = "import conduit, conduit.rllib.grid, sys; sys.exit(bool({'ray', 'torch', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestInterrupts:
    def test_a_signal_before_anything_is_held_ends_the_process(self) -> None:
        code = (
            "import os, signal\nfrom conduit.rllib.session import Interrupts\n"
            "with Interrupts(): os.kill(os.getpid(), signal.SIGINT)"
        )
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")

    def test_then_the_first_is_noted_and_a_later_one_raises(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(session.atexit, "register", lambda *_: None)
        with session.Interrupts() as stop:
            stop.hold()
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.requested
            assert stop.status == 130
            monkeypatch.setattr(session, "AGAIN_S", -1.0)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            stop.ignore()
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.status == 143
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.timeout(200)
def test_a_tiny_cell(tmp_path: Path) -> None:
    """In a process of its own: ray leaves descriptors behind."""
    for needed in ("ray", "torch", "gymnasium", "matplotlib", "rich"):
        if importlib.util.find_spec(needed) is None:  # importing ray here would leave its threads behind
            pytest.skip(f"{needed} is not installed")
    options = ["--only=dqn/32/64x64/0", "--steps=8", "--rounds=2", "--threads=1", f"--out={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "conduit.cli", "bench", "rllib", *options], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (text,) = (tmp_path / "rllib.jsonl").read_text(encoding="utf-8").splitlines()
    found = json.loads(text)
    assert found["complete"]
    assert found["cell"] == "dqn/32/64x64/0"
    for side in ("stock", "conduit"):
        assert found[side]["step"]["n"] >= 8
        assert all(found[side][stage]["n"] == found[side]["step"]["n"] for stage in STAGES)
    assert found["conduit"]["experience"]["median"] < found["stock"]["experience"]["median"]
    assert 0 < found["glue_ms"] < 5
    assert (tmp_path / "rllib.md").is_file()
    assert (tmp_path / "rllib.png").is_file()
