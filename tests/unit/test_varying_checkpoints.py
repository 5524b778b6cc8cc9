"""Checkpoints of tables and queues whose rows vary in length."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import (
    CheckpointDamaged,
    CheckpointError,
    Column,
    ConfigError,
    Schema,
    StaleKey,
    Store,
    Table,
    checkpoints,
    limiters,
    windows,
)
from tests.checkpoint_support import restored
from tests.store_support import EPISODIC, fresh_store, keys_of, prioritized, scalar_writer
from tests.varying import SCHEMA, columns, faults, row


def filled(store: Store, rows: int = 90, max_size: int = 60) -> Table:
    """A table that has been through its memory once, with rows of no element and rows above a block."""
    table = store.create_table("t", SCHEMA, max_size, max_writers=2, sampler=prioritized())
    chance = np.random.default_rng(4)
    with scalar_writer(table) as writer:
        for serial in range(rows):
            length = 600 if serial % 40 == 7 else 0 if serial % 5 == 0 else int(chance.integers(0, 40))
            if serial % 3:
                writer.append(**row(serial, length), priority=1.0 + serial)
            else:
                table.extend(columns([serial], [length]), priorities=[1.0 + serial])
    return table


def contents(table: Table) -> list[tuple[int, int, int, float]]:
    """Key, serial, length and priority of each row, in eviction order; each is whole."""
    found: list[tuple[int, int, int, float]] = []
    for view in table.blocks():
        batch = table.rows(view.keys)
        assert faults(batch) == []
        lengths, raw = batch["tokens"].lengths.tolist(), table.priorities(view.keys).tolist()
        found += zip(view.keys.tolist(), batch["serial"].tolist(), lengths, raw, strict=True)
    return found


def test_every_row_comes_back_under_its_key(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = filled(store)
        before = contents(table)
        assert any(length == 600 for _, _, length, _ in before)
        store.checkpoint(tmp_path)
        expected = [table.sample(8, stream=5)["serial"].tolist() for _ in range(3)]
        table.extend(columns(range(500, 560), [20] * 60))
    with restored(tmp_path) as again:
        table = again["t"]
        assert contents(table) == before
        assert [table.sample(8, stream=5)["serial"].tolist() for _ in range(3)] == expected
        table.extend(columns([1_000, 1_001], [3, 700]))
        for first in range(1_100, 1_400, 30):
            table.extend(columns(range(first, first + 30), [20] * 30))
        table.verify()
        assert {serial for _, serial, _, _ in contents(table)} <= set(range(1_000, 1_400))
        again.checkpoint(tmp_path)
    with restored(tmp_path) as third:
        assert len(third["t"]) > 40
        contents(third["t"])


def test_only_new_blocks_are_written_again(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = filled(store, rows=40, max_size=400)
        first = store.checkpoint(tmp_path)
        table.extend(columns(range(100, 140), [10] * 40))
        before = contents(table)
        second, again = store.checkpoint(tmp_path, keep=4), store.checkpoint(tmp_path, keep=4)
        assert again.written < again.bytes - 80 * SCHEMA.row_bytes // 2
        assert (first.rows, second.rows, again.rows) == (40, 80, 80)
        table.extend(columns(range(200, 600), [20] * 400))
        last = contents(table)
        store.checkpoint(tmp_path, keep=4)
    for number, expected in ((2, before), (3, before), (4, last)):
        with restored(tmp_path, number=number) as other:
            assert contents(other["t"]) == expected


def test_a_queue_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", SCHEMA, 100, max_writers=1)
        queue.extend(columns(range(10), [5, 0, 30, 400, 1, 2, 3, 4, 5, 6]))
        queue.sample(2).ack()
        out = queue.sample(3)
        store.checkpoint(tmp_path)
        out.ack()
    with restored(tmp_path) as again:
        queue = again.queue("q")
        batch = queue.sample(8)
        assert faults(batch) == []
        assert batch["serial"].tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
        batch.ack()
        queue.extend(columns([20, 21], [7, 300]))
        assert faults(queue.sample(2)) == []


def test_the_files_are_read_by_arrow(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = filled(store)
        expected = contents(table)
        store.checkpoint(tmp_path)
    parts = sorted(tmp_path.glob("t-*-[0-9]*.arrow"))
    rows = pa.concat_tables(pa.ipc.open_file(path).read_all() for path in parts)
    rows.validate(full=True)
    assert rows.column("keys").to_pylist() == [key for key, _, _, _ in expected]
    lists: dict[str, Any] = {name: rows.column(name).to_pylist() for name in SCHEMA.names}
    assert [len(tokens) for tokens in lists["tokens"]] == [length for _, _, length, _ in expected]
    for name in ("tokens", "frames"):
        column = SCHEMA.column(name)
        lists[name] = [np.array(value, column.dtype).reshape(-1, *column.shape[1:]) for value in lists[name]]
    assert faults(lists) == []
    assert checkpoints.verify(tmp_path).number == 1


def test_other_settings(tmp_path: Path) -> None:
    with fresh_store() as store:
        before = contents(filled(store))
        store.checkpoint(tmp_path)
    with restored(tmp_path, tables={"t": checkpoints.Changes(limiter=limiters.MinSize(5))}) as again:
        assert contents(again["t"]) == before


@pytest.mark.parametrize("max_size", [5, 40, 61, 1_000])
def test_another_capacity(tmp_path: Path, max_size: int) -> None:
    """The newest rows, as many as there is room for, with their priorities; what comes after goes on."""
    with fresh_store() as store:
        before = contents(filled(store))
        store.checkpoint(tmp_path)
    with restored(tmp_path, tables={"t": checkpoints.Changes(max_size=max_size)}) as again:
        table = again["t"]
        found = contents(table)
        assert [row[1:] for row in found] == [row[1:] for row in before[-len(found) :]]
        # Rows of 600 take what was planned for several.
        assert len(found) == len(before) if max_size == 1_000 else max_size // 3 < len(found) <= max_size
        assert table.sample(8)["serial"].tolist()
        for first in range(1_000, 1_400, 5):
            table.extend(columns(range(first, first + 5), [first % 30] * 5))
        table.verify()
        assert contents(table)[-1][1] == 1_399
        again.checkpoint(tmp_path / "again")
        after = contents(table)
    with restored(tmp_path / "again") as again:
        assert contents(again["t"]) == after


def test_episodes_keep_their_links_in_another_capacity(tmp_path: Path) -> None:
    """Rows that vary in length leave gaps between blocks: a row's place says nothing of how many come before it."""
    given = Schema((*EPISODIC.columns, Column("tokens", "int32", (None,), mean_length=4)))
    with fresh_store() as store:
        table = store.create_table("t", given, 40, window=windows.NStep(1, 0.9), mean_episode_length=4)
        with scalar_writer(table) as writer:
            for obs in range(30):
                ends, tokens = obs % 5 == 4, np.full(obs % 7, obs, np.int32)
                writer.append(obs=obs, action=obs, reward=1.0, terminated=ends, truncated=False, tokens=tokens)
                if ends:
                    writer.end(1_000 + obs)
        store.checkpoint(tmp_path)
    with restored(tmp_path, tables={"t": checkpoints.Changes(max_size=80)}) as again:
        table, found = again["t"], {}
        for key in keys_of(table):
            with contextlib.suppress(StaleKey):  # final observations
                window = table.rows(np.array([key]))
                found[int(window["obs"][0])] = int(window["next_obs"][0]), window["tokens"][0].tolist()
    expected = {obs: (1_000 + obs if obs % 5 == 4 else obs + 1, [obs] * (obs % 7)) for obs in range(30)}
    assert found == expected


def test_rows_that_are_longer_than_planned_leave_first(tmp_path: Path) -> None:
    """Memory is planned for rows of the mean length."""
    kinds = Schema((Column("serial", "i8"), Column("tokens", "i4", (None,), mean_length=1_000)))
    with fresh_store() as store:
        table = store.create_table("t", kinds, 100, max_writers=1)
        table.extend({"serial": np.arange(60), "tokens": [np.arange(n, n + 1_000, dtype="i4") for n in range(60)]})
        store.checkpoint(tmp_path)
    short = Schema((Column("serial", "i8"), Column("tokens", "i4", (None,), mean_length=100)))
    with restored(tmp_path, tables={"t": checkpoints.Changes(schema=short)}) as again:
        table = again["t"]
        serials = [row for view in table.blocks() for row in view.to_arrow()["serial"].to_pylist()]
        assert 5 <= len(serials) < 60
        assert serials == list(range(60 - len(serials), 60))
        for view in table.blocks():
            batch = table.rows(view.keys)
            for n, tokens in zip(batch["serial"], batch["tokens"], strict=True):
                assert tokens.tolist() == list(range(n, n + 1_000))


def test_other_columns(tmp_path: Path) -> None:
    with fresh_store() as store:
        before = contents(filled(store))
        store.checkpoint(tmp_path)
    kinds = Schema(
        (
            Column("tokens", "i8", (None,), mean_length=20),
            Column("mask", "?", (None, 2), mean_length=3),
            Column("text", "string", mean_length=8),
            Column("serial", "f8"),
            Column("note", "string", mean_length=8),
        )
    )
    defaults = {"mask": [[True, False], [False, False]], "note": "né"}
    changes = checkpoints.Changes(max_size=200, schema=kinds, defaults=defaults)
    with restored(tmp_path, tables={"t": changes}) as again:
        table = again["t"]
        seen: list[tuple[int, int]] = []
        for view in table.blocks():
            batch = table.rows(view.keys)
            for at, serial in enumerate(batch["serial"].tolist()):
                tokens = batch["tokens"][at]
                assert tokens.dtype == np.int64
                assert tokens.tolist() == list(range(int(serial), int(serial) + len(tokens)))
                assert batch["mask"][at].tolist() == defaults["mask"]
                assert (batch["note"][at], batch["text"][at]) == ("né", row(int(serial), len(tokens))["text"])
                seen.append((int(serial), len(tokens)))
        assert seen == [(serial, length) for _, serial, length, _ in before]
    refused = Schema((Column("tokens", "i2", (None,), mean_length=20), Column("serial", "i8")))
    with pytest.raises(ConfigError, match="without loss"):
        Store.restore(tmp_path, "x", "16MiB", tables={"t": checkpoints.Changes(schema=refused)})
    refused = Schema((Column("text", "binary", mean_length=20), Column("serial", "i8")))
    with pytest.raises(ConfigError, match="without loss"):
        Store.restore(tmp_path, "x", "16MiB", tables={"t": checkpoints.Changes(schema=refused)})


def test_nulls_and_an_added_column_of_them(tmp_path: Path) -> None:
    goal, tokens = Column("goal", "f4", nullable=True), Column("tokens", "i4", (None,), mean_length=4)
    note = Column("note", "string", mean_length=4, nullable=True)
    goals = [None if n % 3 == 0 else float(n) for n in range(30)]
    with fresh_store() as store:
        table = store.create_table("t", Schema((Column("x", "i8"), goal, tokens)), 40, max_writers=1)
        lists = [np.arange(n % 6, dtype="i4") for n in range(30)]
        table.extend({"x": np.arange(30), "goal": goals, "tokens": lists})
        store.checkpoint(tmp_path)
    kinds = Schema((Column("x", "i8"), goal, tokens, note))
    changes = checkpoints.Changes(max_size=90, schema=kinds, defaults={"note": None})
    with restored(tmp_path, tables={"t": changes}) as again:
        rows = [row for view in again["t"].blocks() for row in view.to_arrow().to_pylist()]
    assert [row["goal"] for row in rows] == goals
    assert [row["tokens"] for row in rows] == [list(range(n % 6)) for n in range(30)]
    assert {row["note"] for row in rows} == {None}


def test_a_queue_of_another_capacity(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = store.create_queue("q", SCHEMA, 60, consumers=("a", "b"))
        queue.extend(columns(range(50), range(50)))
        queue.sample(20, consumer="a").ack()
        store.checkpoint(tmp_path)
    with restored(tmp_path, tables={"q": checkpoints.Changes(max_size=500)}) as again:
        queue = again.queue("q")
        for consumer, first in (("a", 20), ("b", 0)):
            batch = queue.drain(consumer=consumer)
            assert batch["serial"].tolist() == list(range(first, 50))
            assert faults(batch) == []
            batch.ack()
        queue.extend(columns(range(50, 60), [3] * 10))
        assert queue.sample(10, consumer="a")["serial"].tolist() == list(range(50, 60))
    with pytest.raises(CheckpointError, match="nothing of a queue is dropped"):
        Store.restore(tmp_path, "x", "16MiB", tables={"q": checkpoints.Changes(max_size=20)})


def test_a_cut_file_is_damage(tmp_path: Path) -> None:
    with fresh_store() as store:
        filled(store)
        store.checkpoint(tmp_path)
    part = sorted(tmp_path.glob("t-*-[0-9]*.arrow"))[0]
    data = part.read_bytes()
    for wrong in (data[:-100], data[: len(data) // 2] + b"\xff" + data[len(data) // 2 + 1 :]):
        part.write_bytes(wrong)
        with pytest.raises(CheckpointDamaged, match=part.name), restored(tmp_path):
            pass
        with pytest.raises(CheckpointDamaged, match=part.name):
            checkpoints.verify(tmp_path)
