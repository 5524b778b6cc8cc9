"""Minari, RLlib and TensorDict: what they write comes in, what goes out they read, and nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conduit
from conduit import Column, Schema, Store, Table, windows
from tests.exchange_support import NESTED, STEPS, steps_table, windows_of_rows
from tests.store_support import fresh_store

WINDOW = windows.NStep(3, 0.9)
PACKAGES = {"minari": "minari", "rllib": "ray.rllib", "tensordict": "tensordict"}


def need(format: str) -> None:
    pytest.importorskip(PACKAGES[format])


def episodes_of(table: Table) -> dict[bytes, dict[str, Any]]:
    """The episodes of a table that have ended, by their observations, as the libraries give them."""
    rows = table.to_numpy()
    found = {}
    for place, end in enumerate(rows["final_row"]):
        own = np.flatnonzero(rows["episode"] == rows["episode"][end])
        own = own[np.argsort(rows["step"][own])]
        columns = {name: rows[name][own] for name in table.schema.names}
        columns["obs"] = np.concatenate([columns["obs"], rows["final_obs"][place][None]])
        found[columns["obs"].tobytes()] = columns
    assert len(found) > 10
    return found


@pytest.mark.parametrize("format", PACKAGES)
@pytest.mark.parametrize("schema", [STEPS, NESTED], ids=["flat", "nested"])
def test_every_window_survives(tmp_path: Path, format: str, schema: Schema) -> None:
    """But for a step whose successor is not known: it could not be drawn before either."""
    need(format)
    with fresh_store() as store:
        table = steps_table(store, schema=schema)
        rows = table.export(tmp_path / "x", format)
        assert 0 < len(table) - rows <= 3  # of three environments
        again = store.import_table("again", tmp_path / "x", schema=schema, window=WINDOW)
        again.verify()
        assert len(again) == rows
        assert windows_of_rows(again, priorities=False) == windows_of_rows(table, priorities=False)
        assert sorted(store.import_table("untold", tmp_path / "x").schema.names) == sorted(schema.names)


@pytest.mark.parametrize("format", PACKAGES)
def test_no_rows(tmp_path: Path, format: str) -> None:
    need(format)
    with fresh_store() as store:
        table = store.create_table("t", STEPS, 10)
        assert table.export(tmp_path / "x", format) == 0
        again = store.import_table("again", tmp_path / "x", schema=STEPS)
        assert len(again) == 0


@pytest.mark.parametrize("format", PACKAGES)
def test_what_they_do_not_have(tmp_path: Path, format: str) -> None:
    need(format)
    timed = Schema((*STEPS.columns, Column("when", np.dtype("M8[us]"))))
    with fresh_store() as store:
        plain = store.create_table("plain", STEPS, 10, window=windows.Row())
        for table in (plain, store.create_table("timed", timed, 10)):
            with pytest.raises(conduit.ConfigError, match="Export to 'parquet'"):
                table.export(tmp_path / "x", format)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", PACKAGES)
def test_damage(tmp_path: Path, format: str) -> None:
    """Each file of the folder cut, emptied and taken away: a typed error that names the folder."""
    need(format)
    with fresh_store() as store:
        table = steps_table(store, steps=20)
        table.export(tmp_path / "x", format)
        files = [file for file in sorted((tmp_path / "x").rglob("*")) if file.is_file()]
        for index, file in enumerate(files):
            data = file.read_bytes()
            for damaged in (b"", data[: len(data) // 2], data[:-1], None):
                if damaged is None:
                    file.unlink()
                else:
                    file.write_bytes(damaged)
                with pytest.raises(conduit.ConduitError, match=str(tmp_path / "x")):
                    store.import_table(f"t{index}", tmp_path / "x", format=format, exist_ok=True)
            file.write_bytes(data)
        assert len(store.import_table("whole", tmp_path / "x")) > 0


def test_minari_reads_it(tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    with fresh_store() as store:
        table = steps_table(store)
        rows = table.export(tmp_path / "mine-v0", "minari")
        dataset = minari.MinariDataset(tmp_path / "mine-v0" / "data")
        assert dataset.total_steps == rows
        assert dataset.spec.dataset_id == "mine-v0"
        known = episodes_of(table)
        for theirs in list(dataset.iterate_episodes())[: len(known)]:
            mine = known.pop(theirs.observations.tobytes())
            assert np.array_equal(theirs.actions, mine["action"])
            assert np.array_equal(theirs.rewards, mine["reward"])
            assert np.array_equal(theirs.terminations, mine["terminated"])
            assert np.array_equal(theirs.truncations, mine["truncated"])
            assert np.array_equal(theirs.infos["mask"][1:], mine["mask"])
            assert theirs.observations.dtype == np.float32
        assert not known


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_minari_datasets_come_in(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    space = spaces.Dict({"goal": spaces.Box(-1, 1, (2,), np.float64), "place": spaces.Discrete(9)})
    spaces_of = {"observation_space": space, "action_space": spaces.Discrete(3)}
    storage = MinariStorage.new(tmp_path / "data", data_format=kind, **spaces_of)
    lengths = (3, 1, 5)
    for number, n in enumerate(lengths):
        place = np.arange(n + 1) + 100 * number
        storage.update_episodes([
            EpisodeBuffer(
                observations={"goal": np.zeros((n + 1, 2)), "place": place},
                actions=list(range(n)),
                rewards=[float(number)] * n,
                terminations=[False] * (n - 1) + [number != 1],
                truncations=[False] * (n - 1) + [number == 1],
            )
        ])  # fmt: skip
    with fresh_store() as store:
        table = store.import_table("t", tmp_path, window=windows.Transition())
        assert table.schema.names == ("obs/goal", "obs/place", "action", "reward", "terminated", "truncated")
        assert (table.schema.column("reward").dtype, table.schema.column("action").dtype) == (np.float64, np.int64)
        batch = table.sample(200)
        assert (batch["next_obs/place"] == batch["obs/place"] + 1).all()
        steps = {100 * number + i for number, n in enumerate(lengths) for i in range(n)}
        assert set(batch["obs/place"].tolist()) == steps
        assert (batch["reward"] == batch["obs/place"] // 100).all()


def test_rllib_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("ray.rllib")
    import msgpack
    import msgpack_numpy
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    with fresh_store() as store:
        table = steps_table(store)
        table.export(tmp_path / "x", "rllib")
        items = pq.read_table(tmp_path / "x")["item"].to_pylist()
        known = episodes_of(table)
        for item in items[: len(known)]:
            theirs = SingleAgentEpisode.from_state(msgpack.unpackb(item, object_hook=msgpack_numpy.decode)).to_numpy()
            mine = known.pop(theirs.get_observations().tobytes())
            assert np.array_equal(theirs.get_actions(), mine["action"])
            assert np.array_equal(theirs.get_rewards(), mine["reward"])
            assert np.array_equal(theirs.get_extra_model_outputs("mask"), mine["mask"])
            assert (theirs.is_terminated, theirs.is_truncated) == (mine["terminated"][-1], mine["truncated"][-1])
            assert theirs.get_observations().dtype == np.float32
        assert not known


@pytest.mark.parametrize("finished", [False, True])
def test_rllib_episodes_come_in(tmp_path: Path, finished: bool) -> None:
    """As its offline env runner writes them: msgpack of the states, one a row."""
    pytest.importorskip("ray.rllib")
    import msgpack
    import msgpack_numpy
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    items = []
    for number in range(4):
        episode = SingleAgentEpisode()
        episode.add_env_reset({"x": np.full(2, 100 * number, np.float32)}, infos={})
        for i in range(number + 1):
            episode.add_env_step(
                {"x": np.full(2, 100 * number + i + 1, np.float32)}, np.int64(i), float(number),
                terminated=i == number and number % 2 == 0, truncated=False,
                extra_model_outputs={"logp": np.float32(i)},
            )  # fmt: skip
        kept = episode.to_numpy() if finished else episode
        items.append(msgpack.packb(kept.get_state(), default=msgpack_numpy.encode))
    pq.write_table(pa.table({"item": items}), tmp_path / "run-000001-00001.parquet")
    with fresh_store() as store:
        table = store.import_table("t", tmp_path, window=windows.Transition())
        assert table.schema.names == ("obs/x", "action", "reward", "terminated", "truncated", "logp")
        assert len(table) == 10
        batch = table.sample(200)
        assert (batch["next_obs/x"] == batch["obs/x"] + 1).all()
        assert (batch["logp"] == batch["action"]).all()
        assert set(batch["obs/x"][:, 0].tolist()) == {100 * n + i for n in range(4) for i in range(n + 1)}
        last = batch["action"] == batch["obs/x"][:, 0] // 100
        assert (batch["terminated"] == (last & (batch["obs/x"][:, 0] // 100 % 2 == 0))).all()


def test_steps_of_rllib_are_parquet(tmp_path: Path) -> None:
    need("rllib")
    pq.write_table(pa.table({"obs": [1.0], "eps_id": ["a"]}), tmp_path / "x.parquet")
    with fresh_store() as store, pytest.raises(conduit.ExchangeError, match=r"no column 'item'.*format='parquet'"):
        store.import_table("t", tmp_path, format="rllib")


def test_tensordict_reads_it(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    with fresh_store() as store:
        table = steps_table(store)
        rows = table.export(tmp_path / "x", "tensordict")
        held = table.to_tensordict()
        mapped = tensordict.TensorDict.load_memmap(str(tmp_path / "x"))
        found: Any  # its indices are keys and rows
        for found in (mapped, held):
            assert list(found.batch_size) == [rows]
            assert found["next", "reward"].shape == found["next", "done"].shape == (rows, 1)
            known = episodes_of(table)
            for number in range(len(known)):
                own = found[found["collector", "traj_ids"] == number]
                obs, following = own["observation"].numpy(), own["next", "observation"].numpy()
                mine = known.pop(obs.tobytes() + following[-1:].tobytes())
                assert following[:-1].tobytes() == obs[1:].tobytes()
                assert np.array_equal(own["next", "reward"].numpy()[:, 0], mine["reward"])
                assert np.array_equal(own["next", "terminated"].numpy()[:, 0], mine["terminated"])
                assert own["next", "done"].numpy()[:, 0].tolist() == [False] * (len(own) - 1) + [True]
                assert np.array_equal(own["mask"].numpy(), mine["mask"])
        assert isinstance(mapped["observation"], tensordict.MemoryMappedTensor)


def transitions(store: Store, name: str, data: Any, obs: str = "obs") -> set[tuple[float, float]]:
    table = store.import_table(name, data, window=windows.Transition())
    table.verify()
    batch = table.sample(300)
    return set(zip(batch[obs].tolist(), batch[f"next_{obs}"].tolist(), strict=True))


def test_tensordicts_of_others_come_in() -> None:
    pytest.importorskip("tensordict")
    import torch
    from tensordict import TensorDict

    obs = torch.arange(6.0)
    done = torch.tensor([[False], [True], [False], [False], [True], [False]])
    following = {
        "pixels": obs + 10, "reward": torch.zeros(6, 1), "done": done, "terminated": done,
        "truncated": torch.zeros_like(done),
    }  # fmt: skip
    data = TensorDict({"pixels": obs, "action": torch.zeros(6, 2), "done": done, "next": following}, [6])
    expected = {(0, 1), (1, 11), (2, 3), (3, 4), (4, 14), (5, 15)}
    with fresh_store() as store:
        assert transitions(store, "t", data, "obs/pixels") == expected
        two = torch.stack([data[:3], data[3:]])  # environments by steps
        assert transitions(store, "u", two, "obs/pixels") == expected
        plain = store.import_table("v", TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3]))
        assert plain.schema.names == ("a", "b/c")
        with pytest.raises(conduit.ExchangeError, match="'done' alone"):
            store.import_table("w", data.exclude(("next", "terminated")))
        with pytest.raises(conduit.ExchangeError, match="batch size"):
            store.import_table("w", TensorDict({"a": torch.zeros(2, 2, 2)}, [2, 2, 2]))


@pytest.mark.parametrize("format", PACKAGES)
def test_a_package_that_is_missing(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from conduit.exchange import formats

    monkeypatch.setitem(sys.modules, {"rllib": "msgpack_numpy"}.get(format, PACKAGES[format]), None)
    monkeypatch.delitem(sys.modules, f"conduit.exchange.{formats.FORMATS[format].module}", raising=False)
    with fresh_store() as store:
        table = store.create_table("t", STEPS, 10)
        with pytest.raises(conduit.MissingExtra, match=rf"conduit-edp\[{format}\]"):
            table.export(tmp_path / "x", format)
