"""The peers of the benchmarks: none is left out without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import __main__ as command
from bench import cases, driver, measure, report, targets
from bench.peers import setup
from bench.report import write_bars
from bench.workloads import W1, make_rows, split


def test_every_driver_has_a_class_an_import_and_cases() -> None:
    assert set(cases.DRIVERS) == set(driver.CLASSES) == set(driver.IMPORTS)
    for name in cases.DRIVERS:
        assert any(cases.takes_part(name, case) for case in cases.all_cases()), name
        if (environment := setup.environment(name)) is not None:
            assert setup.pins(environment)
    assert set(targets.PEERS) == set(cases.DRIVERS) - {"conduit", "numpy-ring"}


def test_a_peer_that_cannot_be_installed_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH_PEERS_DIR", str(tmp_path))

    def build(peer: str) -> None:
        (tmp_path / peer).mkdir()
        if peer == "reverb":
            raise RuntimeError("reverb: exit 1 of pip:\nERROR: No matching distribution found")

    monkeypatch.setattr(setup, "build", build)
    assert setup.set_up(("reverb", "sb3")) == ["reverb"]
    assert not (tmp_path / "reverb").exists()
    assert (tmp_path / "sb3").exists()
    assert "No matching distribution found" in capsys.readouterr().out
    assert command.ready(["conduit", "reverb", "sb3"]) == ["conduit"]
    said = capsys.readouterr().err
    assert "reverb is left out: ERROR: No matching distribution found" in said
    assert "sb3 is left out: not set up" in said  # `build` has made no interpreter
    monkeypatch.setattr(setup, "build", lambda peer: None)
    assert setup.set_up(("reverb",)) == []
    assert setup.failure("reverb") is None


def test_rows_are_steps_one_after_the_other() -> None:
    rows = make_rows(W1, 64)
    np.testing.assert_array_equal(rows["next_obs"][:-1], rows["obs"][1:])
    assert len(split(rows, 32)) == 2
    case = cases.Case("sample", "W1", prioritized=False, batch=64)
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(values.copy()) for name, values in rows.items()}
    measure.check_rows(tensors, rows, case)
    tensors["next_obs"][3, 0] += 1
    with pytest.raises(RuntimeError, match="1 of 64"):
        measure.check_rows(tensors, rows, case)


def record(case: str, driver: str, us: float, ceiling: float | None = None) -> targets.Record:
    """One line of a results file: a call of `us` microseconds in each of three rounds."""
    found = next(c for c in cases.all_cases() if c.name == case)
    per_s = 1e6 / us
    line = {"case": case, "driver": driver, **found.to_json(), "unit": "us", "median": us, "rounds": [us] * 3}
    line |= {"batches_per_s": per_s, "rounds_batches_per_s": [per_s] * 3, "arriving_rows_per_s": 30_000.0}
    line |= {"rows_per_s": per_s * found.batch, "rounds_rows_per_s": [per_s * found.batch] * 3}
    return line | ({"ceiling": {"median": ceiling}} if ceiling else {})


def test_targets_hold_or_not_by_the_numbers() -> None:
    held = targets.verdicts(
        [
            record("sample/W1/prioritized/256", "conduit", 30.0, ceiling=20.0),
            record("sample/W1/prioritized/256", "cpprb", 180.0),
            record("sample/W1/prioritized/256", "torchrl", 150.0),  # the best peer: 5x
            record("sample/W1/prioritized/256", "numpy-ring", 50.0),  # no peer
            record("append/W1/prioritized/1", "conduit", 2.0),
            record("append/W1/prioritized/1", "cpprb", 8.0),  # 4x, where 5x is asked for
            record("paced/W1/4-writers", "conduit", 100.0, ceiling=40.0),
            record("paced/W1/4-writers", "reverb", 900.0),
            record("stack/W3/prioritized/256", "conduit", 1_000.0, ceiling=700.0),
        ]
    )
    assert [(v.measured, v.holds, v.against) for v in held] == [
        ("5.00x", True, "torchrl"),
        ("67%", False, "C, one core"),
        ("70%", False, "C, one core"),
        ("4.00x", False, "cpprb"),
        ("9.00x", True, "reverb"),
    ]


def test_each_case_stands_beside_the_limit_and_the_best_peer() -> None:
    lines = [
        record("append/W1/prioritized/32", "conduit", 4.0, ceiling=1.0),
        record("append/W1/prioritized/32", "cpprb", 8.0),
        record("append/W1/prioritized/32", "reverb", 80.0),
    ]
    assert report.summary_rows(lines) == [
        ["append/W1/prioritized/32", "rows/s", "8.00 M", "32.00 M", "25%", "cpprb", "4.00 M", "2.00x"]
    ]
    assert report.driver_rows(lines, ["conduit", "reverb"]) == [
        ["append/W1/prioritized/32", "rows/s", "8.00 M", "400,000"]
    ]


LINES = [
    {"case": "fill/W4", "library": "conduit", "unit": "sequences/s", "median": 1234.0},
    {"case": "fill/W4", "library": "other", "unit": "sequences/s", "median": 2.5},
    {"case": "sample/W4", "library": "conduit", "unit": "ms", "median": 0.5},
]
MACHINE = {"machine": {"cpu": "one"}}


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the files of its fonts open: they are there before a test looks for what it leaves."""
    pytest.importorskip("matplotlib")
    write_bars(tmp_path_factory.mktemp("fonts"), "any", "Any", MACHINE, LINES)


@pytest.mark.usefixtures("fonts")
def test_a_table_and_a_plot_of_lines(tmp_path: Path) -> None:
    data, page, picture = write_bars(tmp_path, "sequences", "Sequences", MACHINE, LINES)
    assert len(data.read_text().splitlines()) == 4
    assert "| fill/W4 | sequences/s | 1,234 | 2.5 |" in page.read_text()
    assert "| sample/W4 | ms | 0.5 | - |" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
