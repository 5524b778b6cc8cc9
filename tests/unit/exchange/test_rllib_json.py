"""RLlib's JSON files: fragments of episodes, compressed columns, and what is no array."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import (
    Column,
    ConduitError,
    ConfigError,
    DtypeMismatch,
    ExchangeError,
    MissingColumn,
    Schema,
    StaleKey,
    Store,
    Table,
    windows,
)  # fmt: skip
from tests.exchange_support import STEPS
from tests.store_support import fresh_store, keys_of


def packed(value: Any, protocol: int = 4) -> str:
    """What RLlib's `pack` makes, without RLlib."""
    out = pa.BufferOutputStream()
    with pa.output_stream(out, compression="lz4") as stream:
        stream.write(pickle.dumps(value, protocol))
    return base64.b64encode(out.getvalue()).decode()


def fragment(eps: int, start: int, stop: int, *, ends: int = -1, **others: Any) -> dict[str, Any]:
    """Steps [start, stop) of an episode: what is observed at step t is 100 eps + t."""
    t = np.arange(start, stop)
    obs = np.stack([100 * eps + t] * 2, 1).astype(np.float32)
    return {
        "obs": obs, "new_obs": obs + 1, "actions": t % 3, "rewards": t / 2, "terminateds": t == ends,
        "truncateds": t < 0, "eps_id": np.full(len(t), eps), "t": t, "agent_index": t * 0, "unroll_id": t * 0,
        "infos": [{"any": "thing"}] * len(t), "action_logp": -t / 8, **others,
    }  # fmt: skip


def joined(*parts: dict[str, Any]) -> dict[str, Any]:
    def both(values: list[Any]) -> Any:
        return list(chain(*values)) if isinstance(values[0], list) else np.concatenate(values)

    return {name: both([part[name] for part in parts]) for name in parts[0]}


def line(batch: dict[str, Any], *, compressed: tuple[str, ...] = ("obs", "new_obs"), protocol: int = 4) -> str:
    def plain(name: str, value: Any) -> Any:
        if name in compressed:
            return packed(value, protocol)
        return value.tolist() if isinstance(value, np.ndarray) else value

    return json.dumps({"type": "SampleBatch", **{name: plain(name, value) for name, value in batch.items()}}) + "\n"


def transitions(table: Table) -> dict[float, tuple[float, float]]:
    """By what is observed: what is next, and the discount."""
    found: dict[float, tuple[float, float]] = {}
    for key in keys_of(table):
        with contextlib.suppress(StaleKey):  # an observation that ends an episode, or a step that leads nowhere
            row = table.rows(np.array([key]))
            found[float(row["obs"][0, 0])] = float(row["next_obs"][0, 0]), float(row["discount"][0])
    return found


def imported(store: Store, path: Path, **options: Any) -> Table:
    return store.import_table("t", path, window=windows.Transition(0.5), **options)


def expected(eps: int, start: int, stop: int, *, ends: int = -1) -> dict[float, tuple[float, float]]:
    return {100.0 * eps + t: (100.0 * eps + t + 1, 0.0 if t == ends else 0.5) for t in range(start, stop)}


@pytest.mark.parametrize("compressed", [("obs", "new_obs"), ()])
def test_fragments_are_joined(tmp_path: Path, compressed: tuple[str, ...]) -> None:
    """Two environments in turns, whose episodes go on from line to line; one stops in the middle."""
    lines = [
        joined(fragment(1, 0, 3), fragment(2, 0, 3)),
        joined(fragment(1, 3, 5, ends=4), fragment(3, 0, 2), fragment(2, 3, 6)),
        joined(fragment(3, 2, 4), fragment(9, 7, 9)),
    ]
    (tmp_path / "x.json").write_text("\n".join(line(batch, compressed=compressed) for batch in lines))
    with fresh_store() as store:
        table = imported(store, tmp_path / "x.json")
        assert table.schema.names == ("obs", "action", "reward", "terminated", "truncated", "action_logp")
        assert str(table.schema.column("obs").dtype) == ("float32" if compressed else "float64")
        assert transitions(table) == {
            **expected(1, 0, 5, ends=4), **expected(2, 0, 6), **expected(3, 0, 4), **expected(9, 7, 9)
        }  # fmt: skip
        rows = table.to_numpy()
        whole = {(int(obs[0]) // 100, step) for obs, step in zip(rows["obs"], rows["step"], strict=True)}
        assert whole == {(e, t) for e, n in ((1, 5), (2, 6), (3, 4)) for t in range(n)} | {(9, 1), (9, 2)}
        assert len(set(rows["episode"])) == 4
        assert np.array_equal(rows["reward"], rows["obs"][:, 0] % 100 / 2)


def test_the_next_line_of_another_step(tmp_path: Path) -> None:
    """Where steps are missing in between, an episode ends as at a time limit: its observation is known."""
    (tmp_path / "x.json").write_text(line(fragment(1, 0, 3)) + line(fragment(1, 5, 8, ends=7)))
    with fresh_store() as store:
        table = imported(store, tmp_path / "x.json")
        assert transitions(table) == {**expected(1, 0, 3), **expected(1, 5, 8, ends=7)}


def test_without_next_observations_and_links(tmp_path: Path) -> None:
    """One environment's rows; "dones" of old files; the last step leads nowhere that is known."""
    lines = ""
    for start in (0, 3):
        batch = fragment(0, start, start + 3, ends=3)
        batch["dones"] = batch.pop("terminateds")
        lines += line({name: batch[name] for name in ("obs", "actions", "rewards", "dones")})
    (tmp_path / "x.json").write_text(lines)
    with fresh_store() as store:
        table = imported(store, tmp_path / "x.json")
        assert len(table) == 6
        assert set(transitions(table)) == {0.0, 1.0, 2.0, 4.0}
        assert not table.to_numpy()["truncated"].any()


def test_numbers_become_those_of_the_schema(tmp_path: Path) -> None:
    batch = fragment(1, 0, 3)
    wide = {"obs": [[1.5, 2, 3]] * 3, "new_obs": np.zeros((3, 3)), "mask": [[[True] * 2] * 2] * 3}
    (tmp_path / "x.json").write_text(line({**batch, **wide}, compressed=()))
    with fresh_store() as store:
        table = imported(store, tmp_path / "x.json", schema=STEPS)
        assert table.schema == STEPS
        assert table.to_numpy()["obs"][0].tolist() == [1.5, 2, 3]
        whole = Schema(tuple(Column("reward", "int32") if c.name == "reward" else c for c in STEPS))
        with pytest.raises(DtypeMismatch, match=r"line 1 of .*x.json.*'reward'"):
            store.import_table("u", tmp_path / "x.json", schema=whole)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nested_and_every_protocol(tmp_path: Path, protocol: int) -> None:
    image = np.asfortranarray(np.arange(24, dtype=">u2").reshape(2, 3, 4))
    obs = {"image": image, "pose": (np.ones((2, 2)), [np.float32(0.5), np.float32(0.25)])}
    batch = fragment(1, 0, 2)
    (tmp_path / "x.json").write_text(line({**batch, "obs": obs, "new_obs": obs}, protocol=protocol))
    with fresh_store() as store:
        table = imported(store, tmp_path)
        assert table.schema.names[:3] == ("obs/image", "obs/pose/0", "obs/pose/1")
        rows = table.to_numpy()
        assert np.array_equal(rows["obs/image"], image)
        assert rows["obs/pose/1"].tolist() == [0.5, 0.25]


def test_policies(tmp_path: Path) -> None:
    def of(**policies: dict[str, Any]) -> str:
        batches = {name: json.loads(line(batch)) for name, batch in policies.items()}
        return json.dumps({"type": "MultiAgentBatch", "count": 2, "policy_batches": batches}) + "\n"

    (tmp_path / "one.json").write_text(of(a=fragment(1, 0, 2)))
    (tmp_path / "two.json").write_text(of(a=fragment(1, 0, 2), b=fragment(1, 0, 2)))
    with fresh_store() as store:
        assert transitions(imported(store, tmp_path / "one.json")) == expected(1, 0, 2)
        with pytest.raises(ExchangeError, match="policies a, b"):
            store.import_table("two", tmp_path / "two.json")


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/dev/shm/never-made",)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (_Evil(), "it holds posix.mkdir: only arrays"),
        (np.array([{}, {}], object), "dtype 'O8' holds no plain numbers"),
        ("text", "it holds a str"),
        ({"a": {1, 2}}, "it holds a set"),
    ],
)
def test_a_pickle_of_something_else(tmp_path: Path, value: Any, says: str) -> None:
    batch = json.loads(line(fragment(1, 0, 2)))
    (tmp_path / "x.json").write_text(json.dumps({**batch, "obs": packed(value)}))
    with fresh_store() as store, pytest.raises(ExchangeError, match=rf"obs in line 1 of .*{says}"):
        imported(store, tmp_path / "x.json")
    assert not Path("/dev/shm/never-made").exists()


@pytest.mark.parametrize(
    ("second", "error", "says"),
    [
        ('{"type": "SampleBatch"', ExchangeError, "line 2"),
        ('{"type": "Rows"}', ExchangeError, "no SampleBatch"),
        ('{"type": "SampleBatch", "obs": [1]}', MissingColumn, "no rewards, terminateds"),
        (line({**fragment(1, 2, 4), "actions": [1]}), ExchangeError, r"'action' has shape \(1,\), and 2 rows"),
        (line({**fragment(1, 2, 4), "actions": [[1], [2]]}), ConduitError, "line 2"),
        (line({**fragment(1, 2, 4), "t": [0.5, 1.5]}), ExchangeError, "t is float64"),
    ],
)
def test_damage(tmp_path: Path, second: str, error: type[Exception], says: str) -> None:
    (tmp_path / "x.json").write_text(line(fragment(1, 0, 2)) + second)
    with fresh_store() as store:
        with pytest.raises(error, match=says):
            imported(store, tmp_path / "x.json")
        assert store.tables() == [] or len(store["t"]) == 0


def test_it_is_only_read(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", STEPS, 4)
        with pytest.raises(ConfigError, match="export to 'rllib'"):
            table.export(tmp_path / "x.json")
        assert list(tmp_path.iterdir()) == []


def test_what_rllib_writes(tmp_path: Path) -> None:
    writer_module = pytest.importorskip("ray.rllib.offline.json_writer")
    batches = pytest.importorskip("ray.rllib.policy.sample_batch")
    writer = writer_module.JsonWriter(str(tmp_path))
    for batch in (joined(fragment(1, 0, 3), fragment(2, 0, 2, ends=1)), fragment(1, 3, 6, ends=5)):
        kept = {name: array for name, array in batch.items() if name != "infos"}
        writer.write(batches.SampleBatch({**kept, "infos": np.array(batch["infos"])}))
    writer.cur_file.close()
    with fresh_store() as store:
        table = imported(store, tmp_path)
        assert transitions(table) == {**expected(1, 0, 6, ends=5), **expected(2, 0, 2, ends=1)}
