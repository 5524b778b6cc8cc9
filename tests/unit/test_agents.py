"""Several agents: errors that change nothing, arrays that environments reuse, joint steps, other processes."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conduit import (
    AppendTimeout,
    CapacityError,
    Column,
    ConfigError,
    DtypeMismatch,
    EpisodeError,
    MissingColumn,
    Schema,
    ShapeMismatch,
    Store,
    StoreClosed,
    Table,
    UnknownColumn,
    UnknownTable,
    ValueOutOfRange,
    agents,
    windows,
)
from tests.store_support import EPISODIC, PLAIN, fresh_store, schema, windows_of

DUO: dict[str, Schema] = dict.fromkeys(("x", "y"), EPISODIC)


def test_a_bad_reward_changes_nothing_and_a_closed_writer_says_so() -> None:
    with fresh_store("32MiB") as store:
        tables = agents.create(store, "t", DUO, 100)
        writer = tables.writer()
        writer.reset({"x": 0, "y": 0})
        for reward in (None, "much", 1e300):
            with pytest.raises((DtypeMismatch, ValueOutOfRange), match="the reward of agent 'y'"):
                writer.step({"x": 1, "y": 1}, {"x": 1, "y": 1}, {"x": 1.0, "y": reward})  # type: ignore[dict-item]
        writer.step({"x": 1, "y": 1}, {"x": 1, "y": 1}, {"x": 1.0, "y": 2.0})
        writer.close()
        assert [windows_of(tables[name])[0]["reward"] for name in "xy"] == [1.0, 2.0]
        assert len(tables.sample(np.int64(3))["x"]) == 3  # type: ignore[arg-type]
        for call in (lambda: writer.reset({"x": 0}), lambda: writer.step({"x": 1}, {"x": 1})):
            with pytest.raises(StoreClosed, match="this writer of 't' is closed"):
                call()


def test_arrays_are_copied_when_they_are_given() -> None:
    with fresh_store("32MiB") as store:
        arrays = schema(obs=("f4", (2,)), action=("i8", (1,)), reward="f4", terminated="?", truncated="?")
        tables = agents.create(store, "t", {"x": arrays}, 10)
        obs, action = np.zeros(2, np.float32), np.zeros(1, np.int64)
        with tables.writer() as writer:
            writer.reset({"x": obs})
            for _ in range(3):
                obs += 1
                writer.step({"x": action}, {"x": obs}, {"x": 1.0})
                action += 1
        rows = tables["x"].sample(200)
        order = np.unique(rows["obs"][:, 0], return_index=True)[1]
        assert rows["obs"][order, 0].tolist() == [0, 1, 2]
        assert rows["action"][order, 0].tolist() == [0, 1, 2]
        assert rows["next_obs"][order, 1].tolist() == [1, 2, 3]


def test_what_is_refused_changes_nothing() -> None:
    with fresh_store("32MiB") as store:
        tables = agents.create(store, "t", DUO, 100)
        writer = tables.writer(policy_of={"x": "x", "y": "y", "x2": "x"}, max_agents=1)
        writer.reset({"x": 0})
        for error, words, given in (
            (EpisodeError, "never had one", ({"y": 1}, {})),
            (ConfigError, "'ghost' belongs to policy None", ({}, {"ghost": 1})),
            (CapacityError, "2 agents of policy 'x'", ({"x": 1}, {"x2": 5})),
            (UnknownColumn, "logp", ({"x": 1}, {"x": 1})),
        ):
            extra: dict[str, Any] = {"logp": {"x": 0.0}} if error is UnknownColumn else {}
            with pytest.raises(error, match=words):
                writer.step(given[0], given[1], **extra)
        writer.step({"x": 1}, {"y": 10}, {"x": 1.0})
        with pytest.raises(EpisodeError, match="acted on its last one"):
            writer.step({"x": 1}, {})
        writer.step({}, {"x": 1}, {}, {"x": True})
        with pytest.raises(EpisodeError, match="'x' acts without a new observation: it has ended"):
            writer.step({"x": 1}, {})
        with pytest.raises(EpisodeError, match="after its end"):
            writer.step({}, {}, {"x": 1.0})
        writer.close()
        writer.close()
        assert {policy: len(table) for policy, table in tables.items()} == {"x": 1, "y": 0}
        row = windows_of(tables["x"])[0]
        assert (row["terminated"], row["reward"], row["next_obs"]) == (True, 1.0, 1)


def test_a_step_that_found_no_space_goes_in_with_the_next() -> None:
    with fresh_store("64MiB") as store:
        tables = agents.create(store, "t", {"x": EPISODIC}, 64, max_writers=1)
        table = tables["x"]
        with tables.writer(timeout=0.05) as writer:
            writer.reset({"x": 0})
            views: list[Any] = []
            t, failed = 0, 0
            while not failed:
                t += 1
                try:
                    writer.step({"x": t}, {"x": t}, {"x": float(t)})
                except AppendTimeout:
                    failed = t
                views += [block.to_arrow() for block in table.blocks()]
            views.clear()
            for t in range(failed + 1, failed + 4):
                writer.step({"x": t}, {"x": t}, {"x": float(t)})
        actions = [row["action"] for row in windows_of(table).values()]
        assert actions[-6:] == list(range(failed - 2, failed + 4))
        table.verify()


def test_tables_are_found_by_name_and_travel() -> None:
    with fresh_store("32MiB") as store:
        tables = agents.create(store, "t", DUO, 10)
        again = agents.attach(store, "t")
        assert list(again) == ["x", "y"]
        assert again["x"] is tables["x"]
        assert list(pickle.loads(pickle.dumps(again))) == ["x", "y"]
        with pytest.raises(UnknownTable, match=r"no policy 'xx' under 't'.*Did you mean 'x'"):
            tables["xx"]
        assert "xx" not in tables
        with pytest.raises(UnknownTable, match=r"no tables u\.\*; it has t\.x, t\.y"):
            agents.attach(store, "u")
        with pytest.raises(ConfigError, match="steps of agents need obs"):
            agents.create(store, "v", {"x": PLAIN}, 10)
        with pytest.raises(ConfigError, match="no schemas"):
            agents.create(store, "v", {}, 10)
        with pytest.raises(ConfigError, match="schemas are 5"):
            agents.create(store, "v", 5, 10)  # type: ignore[arg-type]


SPACES = {"x": gym.spaces.Box(-9, 9, (2,)), "y": gym.spaces.Dict({"a": gym.spaces.Discrete(50)})}
ACTIONS = {"x": gym.spaces.Discrete(3), "y": gym.spaces.Discrete(3)}


def joint(store: Store, **options: Any) -> Table:
    return store.create_table("joint", agents.joint_schema(SPACES, ACTIONS), 100, **options)


def test_joint_steps_hold_every_agent_of_the_same_step() -> None:
    with fresh_store() as store:
        table = joint(store, window=windows.NStep(2, 0.5))
        with agents.JointWriter(table) as writer:
            writer.reset({"x": np.full(2, 1, np.float32), "y": {"a": 1}})
            writer.step({"x": 1, "y": 2}, {"x": np.full(2, 2, np.float32)}, {"x": 1.0, "y": 2.0}, {"y": True})
            writer.step({"x": 1}, {"x": np.full(2, 3, np.float32)}, {"x": 4.0})
            writer.step({"x": 2}, {"x": np.full(2, 4, np.float32)}, {"x": 8.0}, {}, {"x": True})
        batch = table.sample(100)
        first = batch["obs/x"][:, 0].argsort(kind="stable")[[0]]
        assert {name: batch[name][first[0]].tolist() for name in ("obs/y/a", "next_obs/y/a", "reward", "discount")} == {
            "obs/y/a": 1, "next_obs/y/a": 0, "reward": 3.0 + 0.5 * 4.0, "discount": 0.25,
        }  # fmt: skip
        assert batch["next_obs/x"][first[0]].tolist() == [3, 3]
        assert np.array_equal(batch["present/y"], batch["obs/x"][:, 0] == 1)
        assert np.array_equal(batch["terminateds/y"], batch["obs/x"][:, 0] == 1)
        last = batch["obs/x"][:, 0] == 3
        assert batch["truncated"][last].all()
        assert not batch["terminated"].any()
        assert (batch["next_obs/x"][last] == 4).all()
        assert np.array_equal(batch["rewards/x"][last], np.full(last.sum(), 8.0))


def test_joint_episodes_end_with_all() -> None:
    with fresh_store() as store:
        table = joint(store, window=windows.Transition(0.5))
        writer = agents.JointWriter(table)
        with pytest.raises(EpisodeError, match="call reset"):
            writer.step({}, {})
        obs = {"x": np.zeros(2, np.float32), "y": {"a": 1}}
        writer.reset(obs)
        writer.step({"x": 1, "y": 1}, obs, {}, {"__all__": True})
        with pytest.raises(EpisodeError, match="call reset"):
            writer.step({"x": 1, "y": 1}, obs)
        writer.reset(obs)
        writer.step({"x": 2, "y": 2}, obs, {"x": 1.0})
        writer.close()
        batch = table.sample(50)
        ended = batch["action/x"] == 1
        assert (batch["terminated"] == ended).all()
        assert (batch["discount"] == np.where(ended, 0, np.float32(0.5))).all()
        with pytest.raises(UnknownColumn, match="agent 'z' is not in table 'joint', which has x, y"):
            agents.JointWriter(table).reset({"z": 0})
        writer = agents.JointWriter(table)
        with pytest.raises(MissingColumn, match="obs/y/a"):
            writer.reset({"x": np.zeros(2, np.float32), "y": {}})
        writer.reset(obs)
        rows = len(table)
        refused: list[tuple[type[Exception], Any]] = [
            (ShapeMismatch, ({"x": 1}, {"x": np.zeros(3, np.float32)}, {})),
            (DtypeMismatch, ({"x": 1}, obs, {"x": None})),
            (UnknownColumn, ({"z": 1}, obs, {})),
        ]
        for error, bad in refused:
            with pytest.raises(error):
                writer.step(bad[0], bad[1], bad[2], {"__all__": True})
        assert len(table) == rows
        writer.step({"x": 1}, obs, {"x": 1.0})
        writer.close()
        assert len(table) == rows + 1
        with pytest.raises(StoreClosed):
            writer.reset(obs)
        with pytest.raises(ConfigError, match="joint_schema"):
            agents.JointWriter(store.create_table("p", PLAIN, 10))
        with pytest.raises(ConfigError, match="of the same agents"):
            agents.joint_schema(SPACES, {})
        with pytest.raises(ConfigError, match="has a / in its name"):
            agents.joint_schema({"a/b": SPACES["x"]}, {"a/b": ACTIONS["x"]})


def test_schema_of_policies_from_spaces() -> None:
    made = Schema.from_spaces(SPACES["y"], ACTIONS["y"])
    with fresh_store() as store:
        tables = agents.create(store, "t", {"y": made}, 10, window=windows.NStep(1, 0.9))
        with tables.writer() as writer:
            writer.reset({"y": {"a": 3}})
            writer.step({"y": 1}, {"y": {"a": 4}})
            with pytest.raises(MissingColumn, match="obs/a"):
                writer.step({"y": 1}, {"y": {"b": 4}})
        assert tables.sample({"y": 3})["y"]["next_obs/a"].tolist() == [4] * 3


def test_observations_and_actions_that_are_categories() -> None:
    made = Schema((
        Column("obs/x", "int64"), Column("obs/room", "category"), Column("action", "category"),
        Column("reward", "float32"), Column("terminated", "bool"), Column("truncated", "bool"),
    ))  # fmt: skip
    with fresh_store() as store:
        tables = agents.create(store, "house", {"all": made}, 50)
        with tables.writer(policy_of=lambda _: "all") as writer:
            writer.reset({"p": {"x": 0, "room": "hall"}, "q": {"x": 10, "room": "attic"}})
            writer.step({"p": "left"}, {"p": {"x": 1, "room": "stairs"}, "q": {"x": 11, "room": "hall"}})
            writer.step({"p": "up", "q": "down"}, {"p": {"x": 2, "room": "attic"}}, {}, {"__all__": True})
        batch = tables["all"].sample(100)
        names = ("obs/room", "action", "next_obs/room")
        found = set(zip(batch["obs/x"].tolist(), *(batch.decode(name).tolist() for name in names), strict=True))
    assert found == {(0, "hall", "left", "stairs"), (1, "stairs", "up", "attic"), (11, "hall", "down", "hall")}
