"""Episodes whose rows vary in length: through RLlib, Minari, TensorDict and their folders, and as others write them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conduit
import conduit.offline
from conduit import Column, ConfigError, ExchangeError, Schema, Store, Table, windows
from tests.store_support import fresh_store, keys_of

ENDS = (Column("reward", "f4"), Column("terminated", "?"), Column("truncated", "?"))
TEXTS = Schema((
    Column("obs/text", "string", mean_length=8), Column("obs/place", "i8"), Column("action", "string", mean_length=4),
    *ENDS, Column("note", "string", mean_length=3, nullable=True),
))  # fmt: skip
EVERY = Schema((
    Column("obs/tokens", "i4", (None,), mean_length=10), Column("obs/frames", "u1", (None, 2, 3), mean_length=2),
    Column("obs/text", "string", mean_length=8), Column("obs/place", "i8"),
    Column("action", "f4", (None,), mean_length=3), *ENDS,
    Column("flags", "?", (None,), mean_length=3), Column("blob", "binary", mean_length=4),
    Column("goal", "f4", (None,), mean_length=2, nullable=True),
))  # fmt: skip
WINDOW = windows.NStep(3, 0.9)


def value(column: Column, rng: np.random.Generator) -> Any:
    length = int(rng.integers(0, 6))
    if column.nullable and rng.random() < 0.3:
        return None
    if column.text is not None:
        return "é" * length if column.text == "string" else rng.bytes(length)
    if column.ragged:
        return rng.integers(0, 2, (length, *column.shape[1:])).astype(column.dtype)
    return column.dtype.type(0)


def filled(store: Store, schema: Schema, name: str = "t") -> Table:
    """Episodes of two environments side by side, the last of them running."""
    rng = np.random.default_rng(1)
    table = store.create_table(name, schema, 2_000, window=WINDOW, mean_episode_length=3)
    writers = [table.writer() for _ in range(2)]
    for place in range(150):
        step = {column.name: value(column, rng) for column in schema.valued}
        step |= {"obs/place": place, "reward": place % 7, "terminated": place % 10 > 7, "truncated": False}
        writer = writers[place % 2]
        writer.append(**step)
        if step["terminated"]:
            writer.end({c.name.removeprefix("obs/"): value(c, rng) for c in schema.obs} | {"place": -place})
    for writer in writers:
        writer.close()
    return table


def windows_in(table: Table) -> dict[int, list[Any]]:
    """Every window that can be drawn, by the place of its first step."""
    found: dict[int, list[Any]] = {}
    for key in keys_of(table):
        try:
            batch = table.rows(np.array([key]))
        except conduit.StaleKey:
            continue
        found[int(batch["obs/place"][0])] = of_row(batch, 0)
    return found


def of_row(batch: Any, row: int) -> list[Any]:
    return [(name, np.asarray(batch[name][row]).tolist()) for name in sorted(batch)]


PACKAGES = {"rllib": "ray.rllib", "tensordict": "tensordict", "minari": "minari"}


@pytest.mark.parametrize("format", ["parquet", "arrow", "numpy", *PACKAGES])
def test_every_window_survives(tmp_path: Path, format: str) -> None:
    pytest.importorskip(PACKAGES.get(format, "numpy"))
    schema = TEXTS if format == "minari" else EVERY
    with fresh_store("64MiB") as store:
        table = filled(store, schema)
        rows = table.export(tmp_path / "x", format)
        assert len(table) - rows <= 2  # steps of running episodes, whose successor is not known
        again = store.import_table("again", tmp_path / "x", format=format, schema=schema, window=WINDOW)
        again.verify()
        assert windows_in(again) == windows_in(table)
        assert len(windows_in(table)) > 140
        untold = store.import_table("untold", tmp_path / "x", format=format)
        kinds = {column.name: (column.dtype_name, column.shape) for column in untold.schema}
        assert kinds == {column.name: (column.dtype_name, column.shape) for column in schema}


def test_a_tensordict_in_memory_and_back() -> None:
    """Nested tensors of layout jagged, and lists of text: whatever the lengths are."""
    pytest.importorskip("tensordict")
    torch = pytest.importorskip("torch")
    with fresh_store("64MiB") as store:
        table = filled(store, EVERY)
        data: Any = table.to_tensordict()
        tokens, following = data["observation", "tokens"], data["next", "observation", "tokens"]
        assert (tokens.layout, tokens.dtype, len(data["observation", "text"])) == (torch.jagged, torch.int32, len(data))
        rows = tokens.unbind()
        place = data["observation", "place"]
        expected = windows_in(table)
        for at in range(len(data)):
            known = dict(expected[int(place[at])])
            assert (rows[at].tolist(), data["observation", "text"][at]) == (known["obs/tokens"], known["obs/text"])
        traj = data["collector", "traj_ids"]
        for at in range(len(data) - 1):
            if traj[at] == traj[at + 1]:
                assert following[at].tolist() == rows[at + 1].tolist()
        again = store.import_table("again", data, schema=EVERY, window=WINDOW)
        assert windows_in(again) == expected


def test_a_folder_of_tensordict_has_each_element_once(tmp_path: Path) -> None:
    tensordict = pytest.importorskip("tensordict")
    with fresh_store("64MiB") as store:
        table = filled(store, EVERY)
        table.export(tmp_path / "x", "tensordict")
        expected = windows_in(table)
    data = tensordict.TensorDict.load_memmap(str(tmp_path / "x"))
    elements = tensordict.TensorDict.load_memmap(str(tmp_path / "x" / ":elements"))["observation", "tokens"]
    starts, lengths = data["observation", "tokens:start"], data["observation", "tokens:lengths"]
    for at, place in enumerate(data["observation", "place"].tolist()):
        row = elements[starts[at] : starts[at] + lengths[at]]
        assert row.tolist() == dict(expected[place])["obs/tokens"]
    last = data["next", "done"][:, 0]
    finals = data["next", "observation", "tokens:lengths"][last].sum()
    assert len(elements) == lengths.sum() + finals


@pytest.mark.parametrize("empty", [EVERY, TEXTS])
def test_no_rows(tmp_path: Path, empty: Schema) -> None:
    pytest.importorskip("tensordict")
    with fresh_store() as store:
        table = store.create_table("t", empty, 10)
        for number, format in enumerate(["tensordict", "rllib"]):
            assert table.export(tmp_path / format, format) == 0
            assert len(store.import_table(f"again{number}", tmp_path / format, schema=empty)) == 0
        assert len(table.to_tensordict()) == 0


def test_damaged_places_of_elements(tmp_path: Path) -> None:
    pytest.importorskip("tensordict")
    with fresh_store("64MiB") as store:
        filled(store, EVERY).export(tmp_path / "x", "tensordict")
        file = tmp_path / "x" / "observation" / "tokens%3Astart.memmap"
        starts = np.fromfile(file, np.int64)
        for bad in (-1, 1 << 40):
            starts[3] = bad
            starts.tofile(file)
            with pytest.raises(ExchangeError, match="elements"):
                store.import_table(f"t{bad < 0}", tmp_path / "x")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """A folder may hold pickled objects beside its tensors: those are left out."""
    tensordict = pytest.importorskip("tensordict")
    torch = pytest.importorskip("torch")
    bomb = tmp_path / "bomb"

    class Bomb:
        def __reduce__(self) -> Any:
            return bomb.touch, ()

    data = tensordict.TensorDict({"a": torch.arange(3), "text": ["x", "é", ""]}, [3])
    data["bomb"] = tensordict.NonTensorData(Bomb(), batch_size=[3])
    data.memmap(str(tmp_path / "x"))
    assert list((tmp_path / "x").rglob("*.pickle")) or list((tmp_path / "x").rglob("*.pkl"))
    with fresh_store() as store:
        table = store.import_table("t", tmp_path / "x", format="tensordict")
        assert table.schema.names == ("a", "text")
        assert list(table.rows(keys_of(table))["text"]) == ["x", "é", ""]
    assert not bomb.exists()


def test_nested_tensors_of_others() -> None:
    """Strided ones too, and jagged ones with holes; text also of environments by steps."""
    tensordict = pytest.importorskip("tensordict")
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings(action="ignore"):  # of torch, that it will change
        strided = torch.nested.nested_tensor([torch.full((n, 3), n) for n in (2, 0, 1)])
    holes = torch.nested.nested_tensor_from_jagged(torch.arange(9), torch.tensor([0, 3, 6, 9]), torch.tensor([1, 3, 0]))
    with fresh_store() as store:
        table = store.import_table("t", tensordict.TensorDict({"strided": strided, "holes": holes}, [3]))
        batch = table.rows(keys_of(table))
        assert [row.tolist() for row in batch["holes"]] == [[0], [3, 4, 5], []]
        assert [row.shape for row in batch["strided"]] == [(2, 3), (0, 3), (1, 3)]
        two = [tensordict.TensorDict({"text": tensordict.NonTensorStack(*text)}, [2]) for text in ("ab", "cd")]
        stacked = store.import_table("u", torch.stack(two))
        assert list(stacked.rows(keys_of(stacked))["text"]) == ["a", "b", "c", "d"]


def test_rllib_episodes_of_others(tmp_path: Path) -> None:
    """Rows of the first episode may happen to be equally long: `schema` says that they vary."""
    pytest.importorskip("ray.rllib")
    import msgpack
    import msgpack_numpy
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    items = []
    for number, lengths in enumerate([(2, 2, 2), (0, 3, 1)]):
        episode = SingleAgentEpisode()
        rows = [{"x": np.arange(n, dtype=np.int32), "say": "é" * n} for n in lengths]
        episode.add_env_reset(rows[0], infos={})
        for at, row in enumerate(rows[1:]):
            episode.add_env_step(row, number, float(at), terminated=at == 1, truncated=False)
        items.append(msgpack.packb(episode.get_state(), default=msgpack_numpy.encode))
    told = Schema((
        Column("obs/x", "i4", (None,), mean_length=2), Column("obs/say", "string", mean_length=2),
        Column("action", "i8"), Column("reward", "f8"), *ENDS[1:],
    ))  # fmt: skip
    for name, some in (("both", items), ("varying", items[1:])):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"item": some}), tmp_path / name / "run.parquet")
    with fresh_store() as store:
        with pytest.raises(ExchangeError, match="obs/x is"):
            store.import_table("t", tmp_path / "both", format="rllib")
        table = store.import_table("u", tmp_path / "both", format="rllib", schema=told, window=windows.Transition())
        batch = table.rows(keys_of(table)[[0, 1, 3, 4]])
        assert [row.tolist() for row in batch["next_obs/x"]] == [[0, 1], [0, 1], [0, 1, 2], [0]]
        assert list(batch["obs/say"]) == ["éé", "éé", "", "ééé"]
        untold = store.import_table("v", tmp_path / "varying", format="rllib")
        assert untold.schema.column("obs/x").shape == (None,)


def test_minari_reads_text_and_refuses_the_rest(tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    with fresh_store("64MiB") as store:
        table = filled(store, TEXTS)
        table.export(tmp_path / "mine-v0", "minari")
        expected = windows_in(table)
        for episode in minari.MinariDataset(tmp_path / "mine-v0" / "data").iterate_episodes():
            for at, place in enumerate(episode.observations["place"][:-1].tolist()):
                known = dict(expected[place])
                assert (episode.observations["text"][at], episode.actions[at]) == (known["obs/text"], known["action"])
        with pytest.raises(ConfigError, match="no other rows that vary in length, as of obs/tokens, obs/frames, act"):
            filled(store, EVERY, "every").export(tmp_path / "every", "minari")
        with table.writer() as writer:
            step = {"obs/text": "a\0b", "obs/place": 0, "action": "", "reward": 0, "note": None}
            writer.append(**step, terminated=True, truncated=False)
            writer.end({"text": "", "place": 0})
        with pytest.raises(ExchangeError, match="zero characters"):
            table.export(tmp_path / "zero", "minari")
        assert not (tmp_path / "zero").exists()


def test_minari_text_of_others(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    space = spaces.Dict({"mission": spaces.Text(20), "at": spaces.Discrete(9)})
    storage = MinariStorage.new(
        tmp_path / "data", observation_space=space, action_space=spaces.Discrete(3), data_format="hdf5"
    )
    storage.update_episodes([
        EpisodeBuffer(
            observations={"mission": [f"go {i}" for i in range(4)], "at": np.arange(4)}, actions=[0, 1, 2],
            rewards=[0.0] * 3, terminations=[False, False, True], truncations=[False] * 3,
        )
    ])  # fmt: skip
    with fresh_store() as store:
        table = store.import_table("t", tmp_path, window=windows.Transition())
        batch = table.sample(50)
        assert table.schema.column("obs/mission").text == "string"
        assert list(batch["next_obs/mission"]) == [f"go {at + 1}" for at in batch["obs/at"]]
