"""Columns that are rewritten after their rows came in: `table.update`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import conduit
import conduit.checkpoints
from conduit import Column, Schema, samplers, windows
from tests.store_support import fresh_store, schema

LATE = Schema(
    (
        Column("x", "int64"),
        Column("reward", "float32", mutable=True),
        Column("score", "float64", mutable=True),
        Column("passed", "bool", mutable=True),
        Column("level", "int16", mutable=True),
    )
)


def plain(n: int, first: int = 0) -> dict[str, Any]:
    x = np.arange(first, first + n)
    return {
        "x": x, "reward": np.zeros(n, np.float32), "score": np.zeros(n), "passed": np.zeros(n, bool),
        "level": np.zeros(n, np.int16),
    }  # fmt: skip


def test_every_way_out_shows_the_new_numbers() -> None:
    with fresh_store() as store:
        table = store.create_table("t", LATE, 100)
        keys = table.extend(plain(10), return_keys=True)
        before = table.blocks()[0].to_arrow()
        x = table.rows(keys)["x"]
        rewards, levels = (x * 0.5).astype(np.float32), (-x).astype(np.int16)
        result = table.update(keys, reward=rewards, score=x * 1e300, passed=x % 2 == 1, level=levels)
        assert result == (10, 0)
        for batch in (table.sample(50), table.rows(keys), next(iter(table.loader(20, prefetch=0)))):
            x = batch["x"]
            assert (batch["reward"] == x * 0.5).all()
            assert (batch["score"] == x * 1e300).all()
            assert (batch["passed"] == (x % 2 == 1)).all()
            assert (batch["level"] == -x).all()
        arrow = pa.Table.from_batches([block.to_arrow() for block in table.blocks()])
        assert arrow.column("reward").to_pylist() == [i * 0.5 for i in range(10)]
        assert arrow.column("level").to_pylist() == [-i for i in range(10)]
        assert set(before.column("reward").to_pylist()) == {0.0}, "a view does not change while somebody holds it"
        assert table.histogram("level").counts.sum() == 10


def test_keys_of_rows_that_are_gone_change_nothing() -> None:
    with fresh_store() as store:
        table = store.create_table("t", LATE, 8)
        old = table.extend(plain(8), return_keys=True)
        new = table.extend(plain(8, 8), return_keys=True)
        assert table.update(np.concatenate([old[:3], new[:2]]), reward=np.full(5, 7.0, np.float32)) == (2, 3)
        batch = table.rows(new)
        assert batch["reward"].tolist() == [7.0, 7.0, 0, 0, 0, 0, 0, 0]
        assert table.update([], reward=[]) == (0, 0)
        table.clear()
        assert table.update(new, level=np.ones(8, np.int16)) == (0, 8)


def test_the_last_of_equal_keys_wins() -> None:
    with fresh_store() as store:
        table = store.create_table("t", LATE, 8)
        keys = table.extend(plain(2), return_keys=True)
        assert table.update(keys[[0, 1, 0]], reward=[1.0, 2.0, 3.0]) == (3, 0)
        assert table.rows(keys)["reward"].tolist() == [3.0, 2.0]


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"x": [1, 2]}, conduit.ConfigError, "'x' of table 't' is not mutable; reward, score, passed, level can be"),
        ({"rewart": [1, 2]}, conduit.UnknownColumn, "no column 'rewart'.*reward"),
        ({"reward": [1.0]}, conduit.ShapeMismatch, "column 'reward'"),
        ({"reward": 1.0}, conduit.ShapeMismatch, "column 'reward'"),
        ({"level": [40_000, 1]}, conduit.ValueOutOfRange, "column 'level'"),
        ({"level": [0.5, 1.0]}, conduit.DtypeMismatch, "column 'level'"),
        ({}, conduit.ConfigError, "got no columns"),
    ],
)
def test_what_is_refused_changes_nothing(given: dict[str, Any], kind: type[Exception], said: str) -> None:
    with fresh_store() as store:
        table = store.create_table("t", LATE, 8)
        keys = table.extend(plain(2), return_keys=True)
        with pytest.raises(kind, match=said):
            table.update(keys, {"score": np.ones(2)} if given else {}, **given)
        assert table.rows(keys)["score"].tolist() == [0.0, 0.0]


def test_columns_that_cannot_be_mutable() -> None:
    for column in (("a", "f4", (2,)), ("a", "int32", (None,)), ("a", "string", ())):
        with pytest.raises(conduit.SchemaError, match="only one number a row"):
            Column(column[0], column[1], column[2], mutable=True)  # type: ignore[arg-type]
    with pytest.raises(conduit.SchemaError, match="mutable is 1"):
        Column("a", "f4", mutable=1)  # type: ignore[arg-type]
    episodic = schema(obs="f4", reward="f4", truncated="?")
    with fresh_store() as store:
        ends = Schema((*episodic.columns, Column("terminated", "bool", mutable=True)))
        with pytest.raises(conduit.ConfigError, match="column terminated is mutable"):
            store.create_table("t", ends, 10)
        queued = Schema((Column("x", "i8"), Column("policy_version", "int64", mutable=True)))
        with pytest.raises(conduit.ConfigError, match="mutable: policy versions are int64"):
            store.create_queue("q", queued, 10, max_staleness=1)


def test_schemas_keep_it() -> None:
    assert Schema.from_json(LATE.to_json()) == LATE
    assert pickle.loads(pickle.dumps(LATE)) == LATE
    assert Schema.from_json(LATE.to_json()).column("level").mutable
    assert Column("a", "f4") != Column("a", "f4", mutable=True)


@pytest.mark.parametrize("n", [1, 3])
def test_late_rewards_of_steps(n: int) -> None:
    """Writers say which rows they wrote; n-step returns are of the numbers that are there when a batch is drawn."""
    steps = Schema(
        (
            Column("obs", "float32"), Column("reward", "float32", mutable=True),
            Column("terminated", "bool"), Column("truncated", "bool"),
        )
    )  # fmt: skip
    with fresh_store() as store:
        table = store.create_table("t", steps, 64, window=windows.NStep(n, 0.5))
        keys = []
        with table.writer() as writer:
            assert writer.keys.shape == (0,)
            for i in range(10):
                writer.append(obs=np.float32(i), reward=0.0, terminated=i == 9, truncated=False)
                assert writer.keys.shape == (1,)
                keys.append(writer.keys[0])
            writer.end(np.float32(10))
        table.update(np.array(keys), reward=np.arange(10, dtype=np.float32))
        batch = table.rows(keys)
        right = [sum(0.5**k * (i + k) for k in range(n) if i + k < 10) for i in range(10)]
        assert batch["reward"].tolist() == right
        assert batch["obs"].tolist() == list(range(10))


def test_keys_of_a_vector_step_are_in_the_order_of_the_environments() -> None:
    steps = schema(obs="f4", reward="f4", terminated="?", truncated="?")
    with fresh_store() as store:
        table = store.create_table("e", steps, 64)
        with table.writer(num_envs=3, autoreset="same_step") as writer:
            keys = writer.keys
            for i in range(6):
                ends = np.array([False, i == 2, False])
                obs = np.array([i, 10 + i, 20 + i], np.float32)
                final = obs + 100 if ends.any() else None
                writer.append(obs=obs, reward=obs, terminated=ends, truncated=np.zeros(3, bool), final_obs=final)
                if i < 5:
                    keys = writer.keys
                    assert keys.shape == (3,)
            batch = table.rows(keys)
            assert batch["obs"].tolist() == [4, 14, 24]


def test_keys_across_blocks_and_episodes() -> None:
    steps = schema(obs="i8", reward="f4", terminated="?", truncated="?")
    with fresh_store() as store:
        table = store.create_table("t", steps, 500)
        n = 100
        ends = np.arange(n) % 7 == 6
        ends[-1] = True
        obs = np.arange(n)
        keys = table.extend(
            {"obs": obs, "reward": np.ones(n, np.float32), "terminated": ends, "truncated": ~ends & False,
             "next_obs": obs + 1}, return_keys=True,
        )  # fmt: skip
        assert len(table.blocks()) > 1
        assert len(np.unique(keys)) == n
        batch = table.rows(keys)
        assert (batch["obs"] == obs).all()
        assert (batch["next_obs"] == obs + 1).all()


def test_rows_of_a_queue_are_rewritten_until_every_group_has_acknowledged_them() -> None:
    """One group computes what the next one needs, as stages of an LLM trainer do."""
    with fresh_store() as store:
        queue = store.create_queue("q", LATE, 100, consumers=("critic", "learner"))
        keys = queue.extend(plain(8), return_keys=True)
        first = queue.sample(8, consumer="critic")
        assert (first.keys == keys).all()
        assert queue.update(first.keys, score=first["x"] * 2.0) == (8, 0)
        first.ack()
        second = queue.sample(8, consumer="learner")
        assert (second["score"] == second["x"] * 2.0).all()
        second.ack()
        assert queue.update(keys, score=np.ones(8)) == (0, 8)


def test_groups_are_not_by_a_mutable_column() -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", LATE, 100)
        queue.extend(plain(8))
        with pytest.raises(conduit.ConfigError, match="group_by is 'level', which is mutable"):
            queue.sample(4, group_by="level", group_size=2)


def test_tables_whose_rows_leave_one_by_one() -> None:
    with fresh_store() as store:
        table = store.create_table(
            "t", LATE, 6, remover=conduit.removers.LowestPriority(), sampler=samplers.Prioritized(1.0, 0.0)
        )
        keys = table.extend(plain(6), priorities=np.arange(1, 7), return_keys=True)
        table.extend(plain(2, 6), priorities=np.array([9.0, 9.0]))
        assert table.update(keys, reward=(keys % 3).astype(np.float32)) == (4, 2)
        assert table.rows(keys[2:])["reward"].tolist() == (keys[2:] % 3).tolist()


def test_a_reader_cannot_write() -> None:
    with fresh_store() as store:
        table = store.create_table("t", LATE, 8)
        keys = table.extend(plain(2), return_keys=True)
        with conduit.Store.attach(store.name, read_only=True) as other, pytest.raises(conduit.ReadOnlyStore):
            other.table("t").update(keys, reward=[1.0, 2.0])


def test_checkpoints_have_the_numbers_of_the_cut(tmp_path: Path) -> None:
    """Rows that an earlier checkpoint has are not written again: their numbers are, each time."""
    with fresh_store() as store:
        table = store.create_table("t", LATE, 40)
        table.extend(plain(10))
        keys = table.extend(plain(40, 10), return_keys=True)
        numbers = np.arange(40, dtype=np.float32)
        table.update(keys, reward=numbers, passed=numbers % 2 == 1)
        first = store.checkpoint(tmp_path, keep=2)
        table.update(keys[:20], reward=numbers[:20] + 100, level=np.ones(20, np.int16))
        second = store.checkpoint(tmp_path, keep=2)
        assert second.written < first.written
        table.update(keys, score=numbers + 1.0)
    conduit.checkpoints.verify(tmp_path)
    for number, added in ((first.number, 0), (second.number, 100)):
        with conduit.Store.restore(tmp_path, f"r{number}", number=number) as restored:
            table = restored.table("t")
            batch = table.rows(keys)
            right = numbers + added * (np.arange(40) < 20)
            assert (batch["reward"] == right).all()
            assert (batch["passed"] == (numbers % 2 == 1)).all()
            assert (batch["score"] == 0).all()
            assert batch["level"].sum() == 20 * (added > 0)
            assert table.update(keys, level=np.full(40, 3, np.int16)) == (40, 0)
            assert (table.sample(10)["level"] == 3).all()


def test_numbers_of_a_checkpoint_go_into_tables_of_another_shape(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", LATE, 40)
        table.update(table.extend(plain(40), return_keys=True), reward=np.arange(40, dtype=np.float32))
        store.checkpoint(tmp_path)
    columns = [Column("x", "int64"), Column("reward", "float64"), Column("score", "float64", mutable=True)]
    smaller = conduit.checkpoints.Changes(max_size=16, schema=Schema(tuple(columns)))
    with conduit.Store.restore(tmp_path, "smaller", tables={"t": smaller}) as restored:
        batch = restored.table("t").sample(100)
        assert batch["x"].min() >= 24
        assert (batch["reward"] == batch["x"]).all()


def test_numbers_are_whole_while_others_rewrite_them() -> None:
    """Every value read is one that somebody wrote, and a draw made after an update has returned shows it."""
    import threading

    with fresh_store() as store:
        table = store.create_table("t", schema_of_pairs(), 64)
        keys = table.extend({"x": np.arange(32), "score": np.zeros(32)}, return_keys=True)
        done = threading.Event()
        newest = [0.0]

        def rewrite() -> None:
            for k in range(1, 2000):
                number = float(np.frombuffer(np.array([k, k], np.uint32).tobytes(), np.float64)[0])
                table.update(keys, score=np.full(32, number))
                newest[0] = k
            done.set()

        thread = threading.Thread(target=rewrite)
        thread.start()
        while not done.is_set():
            known = newest[0]
            halves = np.ascontiguousarray(table.sample(64)["score"]).view(np.uint32).reshape(-1, 2)
            assert (halves[:, 0] == halves[:, 1]).all(), "half of one number and half of another"
            assert (halves[:, 0] >= known).all(), "older than what was written before the draw"
        thread.join()


def schema_of_pairs() -> Schema:
    return Schema((Column("x", "int64"), Column("score", "float64", mutable=True)))
