"""Columns of categories: few distinct strings, kept as numbers that mean the same everywhere."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import conduit
import conduit.offline
from conduit import Column, Schema, Store, windows
from conduit.checkpoints import Changes
from tests.checkpoint_support import restored
from tests.exchange_support import STEPS
from tests.queue_support import queue_in
from tests.store_support import fresh_store

SCHEMA = Schema(
    (
        Column("x", "int64"),
        Column("env", "category", max_values=8),
        Column("task", "category", values=("run", "jump"), nullable=True),
    )
)
ENVS = ["ant", "hopper", "ant", "é"]
TASKS = ["jump", None, "swim", None]
ROWS = {"x": [0, 1, 2, 3], "env": ENVS, "task": TASKS}


def test_a_column_says_what_it_has_room_for() -> None:
    column = SCHEMA.column("env")
    assert (column.dtype, column.dtype_name, column.shape) == (np.int32, "category", ())
    assert (column.max_values, column.max_bytes) == (8, 512)
    assert Column("a", "category").max_values == 1024
    copied = pickle.loads(pickle.dumps(SCHEMA))
    assert copied == SCHEMA == Schema.from_json(SCHEMA.to_json())
    assert copied.column("task").values == Schema.from_json(SCHEMA.to_json()).column("task").values == ("run", "jump")
    assert Column("a", "category") != Column("a", "int32")
    assert SCHEMA.to_arrow().field("env").type == pa.dictionary(pa.int32(), pa.string())
    assert Schema.from_arrow(SCHEMA.to_arrow()).column("env").dtype_name == "category"


@pytest.mark.parametrize(
    "options",
    [
        {"max_values": 0},
        {"max_values": 2.0},
        {"max_bytes": 0},
        {"values": "ab"},
        {"values": ("a", "a")},
        {"values": (1,)},
        {"values": ("a", "b"), "max_values": 1},
        {"values": ("abc",), "max_bytes": 2},
        {"values": ("\ud800",)},
        {"dtype": "int32", "max_values": None, "values": ("a",)},
        {"dtype": "int64", "max_values": 5},
    ],
)
def test_columns_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(conduit.SchemaError):
        Column("a", options.pop("dtype", "category"), **options)


def test_rows_have_numbers_that_stand_for_strings() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100)
        keys = table.extend(ROWS, return_keys=True)
        batch = table.rows(keys)
        assert batch["env"].dtype == np.int32
        assert batch["env"].tolist() == [0, 1, 0, 2]
        assert batch.decode("env").tolist() == ENVS
        assert batch["task"].tolist() == [1, 0, 2, 0]
        assert batch.decode("task").tolist() == TASKS
        assert table.categories("env") == ("ant", "hopper", "é")
        assert table.categories("task") == ("run", "jump", "swim")
        expected = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
        for arrow in (batch.to_arrow(), table.blocks()[0].to_arrow(), table.to_arrow().read_all()):
            arrow.validate(full=True)
            assert arrow.to_pylist() == expected
            assert pa.types.is_dictionary(arrow.schema.field("env").type)
        assert batch.torch()["env"].tolist() == [0, 1, 0, 2]
        with pytest.raises(conduit.ConfigError, match="no categories"):
            batch.decode("x")
        with pytest.raises(conduit.UnknownColumn):
            batch.decode("nothing")
        with pytest.raises(conduit.ConfigError, match="no categories"):
            table.categories("x")


def test_one_row_at_a_time() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100)
        with table.writer() as writer:
            for x in range(12):
                writer.append(x=x, env=ENVS[x % 4], task=TASKS[x % 4])
            for wrong in ({"env": 1}, {"env": None}, {"env": b"ant"}, {"env": "\ud800"}, {"env": ["ant"]}):
                with pytest.raises(conduit.SchemaError):
                    writer.append(**{"x": 0, "env": "ant", "task": None, **wrong})
        rows = table.to_arrow().read_all()
        assert rows.column("env").to_pylist() == ENVS * 3
        assert rows.column("task").to_pylist() == TASKS * 3


@pytest.mark.parametrize(
    "kind", ["list", "array", "objects", "pandas", "categorical", "polars", "arrow", "dictionary", "chunked"]
)
def test_strings_of_every_kind(kind: str) -> None:
    import pandas as pd
    import polars as pl

    words = ["b", "a", "b", "c"]
    given: dict[str, Any] = {
        "list": words, "array": np.array(words), "objects": np.array(words, object), "pandas": pd.Series(words),
        "categorical": pd.Series(words, dtype="category"), "polars": pl.Series(words), "arrow": pa.array(words),
        "dictionary": pa.array(["zz", *words]).dictionary_encode().slice(1),
        "chunked": pa.chunked_array([pa.array(words[:1]).dictionary_encode(), pa.array(words[1:]).dictionary_encode()]),
    }  # fmt: skip
    with fresh_store() as store:
        table = store.create_table("t", Schema((Column("w", "category"),)), 10)
        table.extend({"w": given[kind]})
        assert table.to_arrow().read_all().column("w").to_pylist() == words
        assert set(table.categories("w")) == {"a", "b", "c"}


def test_no_room_is_told_with_both_numbers_and_nothing_is_added() -> None:
    with fresh_store() as store:
        of = Schema((Column("w", "category", max_values=3, max_bytes=8),))
        table = store.create_table("t", of, 100)
        table.extend({"w": ["a", "bb"]})
        for words, match in ((["c", "d"], "2 categories of 3"), (["c" * 6], "3 bytes of 8")):
            with pytest.raises(conduit.CapacityError, match=match):
                table.extend({"w": words})
        assert table.categories("w") == ("a", "bb")
        table.extend({"w": ["c" * 5, "a"]})
        with table.writer() as writer, pytest.raises(conduit.CapacityError, match="3 categories of 3"):
            writer.append(w="d")
        assert len(table) == 4


def test_processes_agree_on_the_numbers() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 1_000)
        with Store.attach(store.name) as other:
            same = other["t"]
            table.extend(ROWS)
            same.extend({"x": [4, 5], "env": ["walker", "hopper"], "task": ["swim", "run"]})
            assert same.categories("env") == table.categories("env") == ("ant", "hopper", "é", "walker")
            assert sorted(set(table.sample(200).decode("env"))) == ["ant", "hopper", "walker", "é"]
        with Store.attach(store.name, read_only=True) as other:
            assert set(other["t"].sample(200).decode("env")) == {"ant", "hopper", "é", "walker"}


def test_threads_and_attaches_that_meet_new_words_at_once() -> None:
    of = Schema((Column("x", "int64"), Column("w", "category", max_values=300)))
    with fresh_store() as store:
        store.create_table("t", of, 10_000)
        with Store.attach(store.name) as other:
            tables = [store["t"], other["t"]]
            failed: list[BaseException] = []

            def work(number: int) -> None:
                try:
                    words = np.random.default_rng(number).permutation(200).tolist()
                    for at in range(0, 200, 10):
                        chosen = words[at : at + 10]
                        tables[number % 2].extend({"x": chosen, "w": [f"word {x}" for x in chosen]})
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failed == []
            assert len(set(tables[0].categories("w"))) == len(tables[0].categories("w")) == 200
            rows = tables[1].to_arrow().read_all()
            assert rows.column("w").to_pylist() == [f"word {x}" for x in rows.column("x").to_pylist()]


@pytest.mark.parametrize("format", ["parquet", "arrow", "arrow-stream"])
def test_files_and_back(tmp_path: Path, format: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 1_000)
        table.extend(ROWS)
        table.export(tmp_path / "x", format)
        again = store.import_table("again", tmp_path / "x", format=format)
        assert again.schema == SCHEMA
        assert again.categories("env") == table.categories("env")
        assert again.to_arrow().read_all().equals(table.to_arrow().read_all())
        into = store.create_table("into", SCHEMA, 100)
        into.extend({"x": [9], "env": ["é"], "task": [None]})  # where the same words have other numbers
        into.import_from(tmp_path / "x", format)
        assert into.to_arrow().read_all().column("env").to_pylist() == ["é", *ENVS]


def test_dictionaries_of_others_become_categories(tmp_path: Path) -> None:
    import duckdb
    import pandas as pd

    frame = pd.DataFrame({"x": [1, 2, 3], "env": pd.Categorical(["b", "a", "b"])})
    with fresh_store() as store:
        table = store.import_table("t", frame)
        assert table.schema.column("env").dtype_name == "category"
        rows = table.to_arrow().read_all()
        counted = duckdb.from_arrow(rows).aggregate("env, count(*)").order("env").fetchall()
        assert counted == [("a", 1), ("b", 2)]


def test_steps_of_episodes_and_windows() -> None:
    of = Schema((*(c for c in STEPS if c.name != "mask"), Column("task", "category")))
    views: dict[str, Any] = {"n": windows.NStep(2, 0.9), "seq": windows.Sequence(3)}
    with fresh_store() as store:
        table = store.create_table("t", of, 100, window=views)
        flags = np.arange(9) == 8
        words = [f"task {i // 3}" for i in range(9)]
        table.extend({
            "obs": np.zeros((9, 3), "f4"), "action": np.arange(9), "reward": np.ones(9, "f4"), "terminated": flags,
            "truncated": flags & False, "task": words, "next_obs": np.ones((9, 3), "f4"),
        })  # fmt: skip
        batch = table.sample(20, window="n")
        assert batch.decode("task").tolist() == [words[a] for a in batch["action"].tolist()]
        batch = table.sample(20, window="seq")
        decoded = batch.decode("task")
        assert decoded.shape == (20, 3)
        assert decoded[0].tolist() == [words[a] for a in batch["action"][0].tolist()]
        arrow = batch.to_arrow()
        assert arrow.column("task").to_pylist() == decoded.tolist()  # null behind the end: 0 would be a word


def test_observations_may_be_categories() -> None:
    of = Schema(
        (
            Column("obs/goal", "category"), Column("obs/at", "f4"), Column("reward", "f4"),
            Column("terminated", "bool"), Column("truncated", "bool"),
        )
    )  # fmt: skip
    with fresh_store() as store:
        table = store.create_table("t", of, 100, window=windows.Transition())
        with table.writer() as writer:
            for i in range(4):
                writer.append(obs={"goal": f"g{i}", "at": i}, reward=0.0, terminated=i == 3, truncated=False)
            writer.end({"goal": "end", "at": 4})
        batch = table.sample(30)
        after = [f"g{int(at) + 1}" if at < 3 else "end" for at in batch["obs/at"]]
        assert batch.decode("next_obs/goal").tolist() == after
        with table.writer(num_envs=2, autoreset="same_step") as vector:
            vector.append(obs={"goal": ["a", "b"], "at": [9, 9]}, reward=[0, 0], terminated=[False, True],
                          truncated=[False, False], final_obs={"goal": ["-", "done"], "at": [0, 10]})  # fmt: skip
        table.extend({"obs/goal": ["p", "q"], "obs/at": [20, 21], "reward": [0, 0], "terminated": [False, True],
                      "truncated": [False, False], "next_obs/goal": ["q", "r"], "next_obs/at": [21, 22]})  # fmt: skip
        rows = table.to_arrow().read_all()
        again = store.create_table("again", of, 100, window=windows.Transition())
        again.import_from(rows)
        assert again.to_arrow().read_all().to_pylist() == rows.to_pylist()
        assert [word for word in rows.column("final_obs/goal").to_pylist() if word] == ["end", "done", "r"]


def test_checkpoints_keep_the_numbers(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100)
        keys = table.extend(ROWS, return_keys=True)
        expected = table.to_arrow().read_all()
        store.checkpoint(tmp_path)
    with restored(tmp_path) as again:
        assert again["t"].to_arrow().read_all().equals(expected)
        assert again["t"].rows(keys)["env"].tolist() == [0, 1, 0, 2]
        again["t"].extend({"x": [4], "env": ["new"], "task": ["new"]})
        again.checkpoint(tmp_path)
    after = Schema((Column("env", "category", values=("first",)), SCHEMA.column("task"), Column("added", "category")))
    changes = Changes(schema=after, defaults={"added": "old"})
    with restored(tmp_path, tables={"t": changes}) as again:
        assert again["t"].to_arrow().read_all().to_pylist() == [
            {"env": env, "task": task, "added": "old"}
            for env, task in zip([*ENVS, "new"], [*TASKS, "new"], strict=True)
        ]
        assert again["t"].categories("env") == ("ant", "hopper", "é", "new", "first")
    for wrong in (Column("env", "int32"), Column("x", "category")):
        with (
            pytest.raises(conduit.ConfigError, match="cannot become"),
            restored(tmp_path, tables={"t": Changes(schema=Schema((wrong,)))}),
        ):
            pass


def test_a_spec_of_a_store_has_what_it_was_created_with() -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100)
        table.extend(ROWS)
        columns = json.loads(table.spec.to_json())["schema"]["columns"]
        assert [column.get("values") for column in columns if column["dtype"] == "category"] == [None, ["run", "jump"]]
        assert store["t"].schema.column("env").values == ()


def test_queues_and_their_groups() -> None:
    with fresh_store() as store:
        queue = queue_in(store, 100, schema=SCHEMA)
        queue.extend(ROWS)
        batch = queue.sample(2, group_by="env", group_size=2, timeout=1.0)
        assert batch.decode("env").tolist() == ["ant", "ant"]
        batch.ack()
        rest = queue.drain()
        assert rest.decode("task").tolist() == [None, None]


def test_labels_that_come_late() -> None:
    of = Schema((Column("x", "int64"), Column("label", "category", mutable=True, nullable=True)))
    with fresh_store() as store:
        table = store.create_table("t", of, 100)
        keys = table.extend({"x": [0, 1, 2], "label": [None, None, "bad"]}, return_keys=True)
        table.update(keys[:2], label=["good", "bad"])
        assert table.rows(keys).decode("label").tolist() == ["good", "bad", "bad"]


@pytest.mark.parametrize("format", ["parquet", "arrow", "numpy", "minari", "rllib"])
def test_steps_to_files_and_back(tmp_path: Path, format: str) -> None:
    of = Schema((*STEPS.columns, Column("task", "category", nullable=True), Column("env", "category", values=("z",))))
    with fresh_store() as store:
        table = store.create_table("t", of, 100, window=windows.Transition())
        with table.writer() as writer:
            for i in range(20):
                step = {"obs": np.zeros(3, "f4"), "action": i, "reward": 0.0, "mask": np.zeros((2, 2), bool)}
                task, env = None if i % 3 else f"task {i}", f"env {i // 7}"
                writer.append(**step, terminated=i % 5 == 4, truncated=False, task=task, env=env)
                if i % 5 == 4:
                    writer.end(np.ones(3, "f4"))
        table.export(tmp_path / "x", format)
        again = store.create_table("again", of, 100, window=windows.Transition())
        again.import_from(tmp_path / "x", format)
        rows, expected = again.to_arrow().read_all(), table.to_arrow().read_all()
        for name in ("task", "env", "action"):
            assert rows.column(name).to_pylist() == expected.column(name).to_pylist()
        assert again.categories("env") == ("z", "env 0", "env 1", "env 2")


def test_a_tensordict_has_no_categories(tmp_path: Path) -> None:
    of = Schema((*STEPS.columns, Column("task", "category")))
    with fresh_store() as store:
        table = store.create_table("t", of, 100, window=windows.Transition())
        with pytest.raises(conduit.ConfigError, match="no categories"):
            table.export(tmp_path / "x", "tensordict")


@pytest.mark.parametrize("window", [windows.Row(), windows.NStep(2, 0.9)])
def test_offline_batches_have_categories_of_all_files(tmp_path: Path, window: Any) -> None:
    import pyarrow.parquet as pq

    of = Schema((*STEPS.columns, Column("task", "category", nullable=True)))
    (tmp_path / "x").mkdir()
    for part in range(2):
        with fresh_store() as store:
            table = store.create_table("t", of, 100, window=windows.Transition())
            with table.writer() as writer:
                for i in range(20):
                    step = {"obs": np.zeros(3, "f4"), "action": i, "reward": 0.0, "mask": np.zeros((2, 2), bool)}
                    task = None if i % 3 else f"task {i + part}"
                    writer.append(**step, terminated=i % 5 == 4, truncated=False, task=task)
                    if i % 5 == 4:
                        writer.end(np.ones(3, "f4"))
            table.export(tmp_path / "x" / f"{part}.parquet")
    words: list[list[tuple[int, str | None]]] = []
    for path in (tmp_path / "x", tmp_path / "y"):
        with conduit.offline.open(path, window=window, buffer="1MiB", schema=of).loader(7) as loader:
            words.append([])
            for batch in loader:
                assert batch["task"].dtype == np.int32
                words[-1] += zip(batch["action"].tolist(), batch.decode("task").tolist(), strict=True)
        if path.name == "x":  # the same without what Conduit has written about them
            (tmp_path / "y").mkdir()
            for file in sorted(path.iterdir()):
                pq.write_table(pq.read_table(file).replace_schema_metadata(None), tmp_path / "y" / file.name)
    assert len(words[0]) == 40
    assert sorted(words[0], key=str) == sorted(words[1], key=str)
    assert {word for action, word in words[0] if action == 18} == {"task 18", "task 19"}


def test_a_batch_travels_as_a_copy() -> None:
    of = Schema(
        (*SCHEMA.columns, Column("tokens", "int32", (None,), mean_length=2), Column("text", "string", mean_length=3))
    )
    with fresh_store() as store:
        table = store.create_table("t", of, 100)
        table.extend({**ROWS, "tokens": [[1], [], [2, 3], [4]], "text": ["a", "", "é", "b"]})
        batch = table.sample(16)
        again = pickle.loads(pickle.dumps(batch))
        for name in batch.names:
            same = list(again[name]) if name == "text" else [np.asarray(row).tolist() for row in again[name]]
            assert same == (list(batch[name]) if name == "text" else [np.asarray(row).tolist() for row in batch[name]])
        assert (again.keys == batch.keys).all()
        assert (again.probabilities == batch.probabilities).all()
        assert (again.weights == batch.weights).all()
        assert again.decode("env").tolist() == batch.decode("env").tolist()
        assert again.to_arrow().equals(batch.to_arrow())
        assert again.torch()["tokens"].tolist() == batch.torch()["tokens"].tolist()
        again["x"][:] = -1
        assert (batch["x"] >= 0).all()
        queue = queue_in(store, 10)
        queue.extend({"x": [1]})
        delivered = queue.sample(1)
        with pytest.raises(conduit.ConfigError, match="leased to this process"):
            pickle.dumps(delivered)


def test_rows_of_a_checkpoint_offline(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", SCHEMA, 100)
        table.extend(ROWS)
        store.checkpoint(tmp_path)
    found: list[tuple[int, str, str | None]] = []
    with conduit.offline.open(tmp_path, buffer="1MiB").loader(2) as loader:
        for batch in loader:
            found += zip(batch["x"].tolist(), batch.decode("env"), batch.decode("task"), strict=True)
    assert sorted(found) == list(zip(ROWS["x"], ENVS, TASKS, strict=True))
