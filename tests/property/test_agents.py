"""Multi-agent writing against a model that looks back at the whole story of each agent (hypothesis)."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conduit import agents
from tests.store_support import EPISODIC, fresh_store, windows_of

NAMES = ("a0", "a1", "b0", "b1", "b2")


class Move(NamedTuple):
    """What an environment may do to one agent in one step; `acts` counts only where the agent can act."""

    acts: bool
    observed: bool
    reward: int
    end: str


ENDS = st.sampled_from(["", "", "", "", "terminated", "truncated"])
MOVES = st.builds(Move, st.booleans(), st.booleans(), st.integers(-3, 3), ENDS)
EVENTS = st.sampled_from(["", "", "", "all", "reset"])
STEPS = st.lists(st.tuples(st.tuples(*[MOVES] * len(NAMES)), EVENTS), max_size=25)


def expected(story: list[tuple[str, Any]]) -> list[tuple[int, float, int, str]]:
    """(obs, reward, next obs, end) of each step of one life; a reward is the last action's, or the first's."""
    acts = [i for i, (kind, _) in enumerate(story) if kind == "act"]
    steps = []
    for at, until in itertools.pairwise([*acts, len(story)]):
        begin = 0 if at == acts[0] else at
        obs = [value for kind, value in story[:at] if kind == "obs"][-1]
        after = [value for kind, value in story[:until] if kind == "obs"][-1]
        reward = sum(value for kind, value in story[begin:until] if kind == "reward")
        end = [value for kind, value in story[at:until] if kind == "end"]
        steps.append((obs, float(reward), after, end[0] if end else ""))
    return steps


@given(script=STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_step_of_every_agent_is_stored_once(script: list[tuple[tuple[Move, ...], str]]) -> None:
    serial = itertools.count()
    lives: dict[str, list[list[tuple[str, Any]]]] = {name: [] for name in NAMES}  # the last one may be running
    running: set[str] = set()
    early: dict[str, int] = {}

    def observe(name: str) -> int:
        value = next(serial)
        if name not in running:
            running.add(name)
            lives[name].append([("reward", early.pop(name, 0))])
        lives[name][-1].append(("obs", value))
        return value

    def finish(name: str, end: str) -> None:
        running.discard(name)
        lives[name][-1].append(("end", end))

    def can_act(name: str) -> bool:
        return name in running and lives[name][-1][-1][0] != "acted" and next(
            kind for kind, _ in reversed(lives[name][-1]) if kind in ("obs", "act")
        ) == "obs"  # fmt: skip

    with fresh_store("64MiB") as store:
        tables = agents.create(store, "t", dict.fromkeys("ab", EPISODIC), 1000)
        with tables.writer(policy_of=lambda name: name[0], max_agents=3) as writer:
            writer.reset({name: observe(name) for name in NAMES[:3]})
            ended: set[str] = set()
            for moves, event in script:
                by_name = dict(zip(NAMES, moves, strict=True))
                if event == "reset":
                    for name in list(running):
                        finish(name, "truncated")
                    ended.clear()
                    early.clear()
                    writer.reset({name: observe(name) for name, move in by_name.items() if move.observed})
                    continue
                actions = {name: 7 for name, move in by_name.items() if move.acts and can_act(name)}
                for name in actions:
                    lives[name][-1].append(("act", 7))
                rewards = {name: move.reward for name, move in by_name.items() if name not in ended}
                for name, reward in rewards.items():
                    if name in running:
                        lives[name][-1].append(("reward", reward))
                    else:
                        early[name] = early.get(name, 0) + reward
                before = set(running)
                ends = {name: move.end for name, move in by_name.items() if move.end and name in before}
                if event == "all":
                    ends = {name: ends.get(name, "terminated") for name in before}
                joins = [name for name in NAMES if name not in before and not by_name[name].end and event != "all"]
                obs = {n: observe(n) for n, move in by_name.items() if move.observed and (n in before or n in joins)}
                ended -= set(obs)
                for name, end in ends.items():
                    finish(name, end)
                    ended.add(name)
                truncated = {name: end == "truncated" for name, end in ends.items()}
                terminated: dict[str, bool] = {name: end == "terminated" for name, end in ends.items()}
                writer.step(actions, obs, rewards, terminated, truncated)
            for name in list(running):
                finish(name, "truncated")
        want = sorted(step for name in NAMES for life in lives[name] for step in expected(life))
        found = [
            (obs, row["reward"], row["next_obs"], "terminated" * row["terminated"] + "truncated" * row["truncated"])
            for table in tables.values()
            for obs, row in windows_of(table).items()
        ]
        assert sorted(found) == want
        for table in tables.values():
            table.verify()
