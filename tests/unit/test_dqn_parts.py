"""The parts of examples/dqn.py that need no store: learning rule, actors' policy, the report's sums."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for extra in ("gymnasium", "matplotlib", "rich"):
    pytest.importorskip(extra)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
dqn = importlib.import_module("dqn")
dqn_actor = importlib.import_module("dqn_actor")
record = importlib.import_module("dqn_support.record")
report = importlib.import_module("dqn_support.report")
sys.path.pop(0)


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the font files of its first picture open for good: not what a test here leaves behind."""
    report.write_report(finished([1.0]), tmp_path_factory.mktemp("first"), report.Console(file=io.StringIO()))


@pytest.fixture
def agent() -> Any:
    torch.manual_seed(0)
    return dqn.DoubleDQN(4, 2, dqn.Settings())


def batch_of(n: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "obs": torch.randn(n, 4, generator=generator),
        "next_obs": torch.randn(n, 4, generator=generator),
        "action": torch.randint(0, 2, (n,), generator=generator),
        "reward": torch.ones(n),
        "discount": torch.full((n,), 0.97),
        "weights": torch.ones(n),
    }


def test_policy_agrees_with_the_network(agent: Any) -> None:
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    policy = dqn_actor.Policy((4, *dqn_actor.HIDDEN, 2))
    policy.load(agent.parameters())
    with torch.no_grad():
        expected = agent.online(torch.from_numpy(obs)).argmax(1).numpy()
    np.testing.assert_array_equal(policy(obs), expected)
    assert len(set(expected)) == 2, "a constant policy would prove nothing"


def test_errors_are_those_of_double_dqn(agent: Any) -> None:
    batch = batch_of(16)
    with torch.no_grad():
        for parameter in agent.target.parameters():
            parameter.add_(0.1)
        rows = torch.arange(16)
        best = agent.online(batch["next_obs"]).argmax(1)
        goal = 1 + 0.97 * agent.target(batch["next_obs"])[rows, best]
        expected = (goal - agent.online(batch["obs"])[rows, batch["action"]]).abs()
    torch.testing.assert_close(agent.learn(batch), expected)


def test_no_bootstrap_after_termination(agent: Any) -> None:
    batch = batch_of(16)
    batch["discount"] = torch.zeros(16)
    with torch.no_grad():
        values = agent.online(batch["obs"])[torch.arange(16), batch["action"]]
    torch.testing.assert_close(agent.learn(batch), (1 - values).abs())


def test_learning_reduces_the_error(agent: Any) -> None:
    batch = batch_of(64)
    batch["discount"] = torch.zeros(64)
    first = agent.learn(batch).mean()
    for _ in range(100):
        agent.learn(batch)
    assert agent.learn(batch).mean() < 0.2 * first


def test_target_follows_slowly(agent: Any) -> None:
    old = [parameter.clone() for parameter in agent.target.parameters()]
    agent.learn(batch_of(8))
    rate = agent.settings.target_rate
    for before, now, new in zip(old, agent.target.parameters(), agent.online.parameters(), strict=True):
        torch.testing.assert_close(now, torch.lerp(before, new, rate))


def run_of(returns: list[float]) -> Any:
    run = record.Run(seed=1, target=400.0, budget=1_000)
    run.record([{"actor": i % 2, "return": value} for i, value in enumerate(returns)], 2.0, 500, 50)
    return run


@pytest.mark.parametrize(
    ("returns", "interrupted", "outcome", "status"),
    [
        ([500.0] * 19, False, "not solved", 1),
        ([500.0] * 19, True, "interrupted", 130),
        ([10.0] * 30 + [400.0] * 20, False, "solved", 0),
        ([10.0] + [410.0] * 19, False, "not solved", 1),
        ([], False, "not solved", 1),
    ],
)
def test_outcome(returns: list[float], interrupted: bool, outcome: str, status: int) -> None:
    run = run_of(returns)
    run.interrupted = interrupted
    assert (run.outcome, run.exit_status) == (outcome, status)


def test_episodes_after_the_solving_one_do_not_count() -> None:
    run = run_of([400.0] * 20 + [0.0] * 50)
    assert run.solved
    assert len(run.episodes) == 20


def finished(returns: list[float]) -> Any:
    run, clock = run_of(returns), record.Clock()
    clock.seconds = {"sample": 2.0, "wait": 0.5, "learn": 6.0, "priorities": 0.25, "publish": 0.25}
    clock.calls = dict.fromkeys(clock.seconds, 100)
    clock._started, clock._stopped = 5.0, 15.0
    replay = SimpleNamespace(draw_s=0.5, gather_s=0.75, sample_wait_s=0.25)
    spent = {"play_s": 3.0, "ingest_s": 1.0, "control_s": 0.5, "paused_s": 4.0, "appends": 100}
    run.finish(clock, replay, [spent, {**spent, "play_s": 5.0}, {}], interrupted=False)
    return run


def test_stages_add_up_to_all_of_the_time() -> None:
    run = finished([1.0])
    learner = {stage.name: stage.seconds for stage in run.learner}
    assert learner == {
        "draw": 0.5,
        "gather": 0.75,
        "hand over": 0.5,
        "wait": 0.75,
        "learn": 6.0,
        "priorities": 0.25,
        "publish": 0.25,
        "other": 1.0,
    }
    assert run.exposed_s == 2.5
    assert {stage.name: stage.seconds for stage in run.actors} == {
        "play": 4.0,
        "ingest": 1.0,
        "weights": 0.5,
        "paused": 4.0,
        "other": 0.5,
    }
    assert sum(learner.values()) == sum(stage.seconds for stage in run.actors) == run.seconds == 10.0


@pytest.mark.parametrize("returns", [[20.0], [400.0] * 25])
def test_report(returns: list[float], tmp_path: Path) -> None:
    out = io.StringIO()
    console = report.Console(file=out, width=100)
    path = report.write_report(finished(returns), tmp_path / "runs", console)
    assert path.name == "dqn.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    text = out.getvalue()
    for word in ("ingest", "draw", "gather", "learn", "exposed wait", "other", "25.0 %", str(path)):
        assert word in text


def test_no_plot_without_episodes(tmp_path: Path) -> None:
    out = io.StringIO()
    assert report.write_report(finished([]), tmp_path / "runs", report.Console(file=out, width=100)) is None
    assert out.getvalue().startswith("not solved: mean return 0.0")
    assert not (tmp_path / "runs").exists()


def test_progress_in_a_file_is_lines() -> None:
    out = io.StringIO()
    run = run_of([10.0, 20.0])
    with report.Progress(run, "store-1", report.Console(file=out, width=60)) as progress:
        for second in range(11):
            run.record([], float(second), 100 * second, 10 * second)
            progress.show()
    _, *lines, _ = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "actors are starting" in lines[0]
    assert "1,000 of 1,000 env steps, 0:00 left at most" in lines[2]
    assert "2 episodes, mean return 15.0; 100 env steps/s, 10 updates/s" in lines[2]


def test_progress_on_a_terminal_is_a_picture() -> None:
    out = io.StringIO()
    run = run_of([400.0] * 5)
    console = report.Console(file=out, width=100, force_terminal=True)
    with report.Progress(run, "store-1", console) as progress:
        run.record([], 1.0, 100, 10)
        progress.show()
    assert report.SPARKS[-1] in out.getvalue()
