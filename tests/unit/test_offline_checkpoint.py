"""Training from a checkpoint without a store: the rows and windows that the restored table has, each once."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conduit.offline
from conduit import (
    CheckpointDamaged,
    CheckpointNotFound,
    Column,
    ConfigError,
    Schema,
    Store,
    Table,
    UnknownTable,
    removers,
    samplers,
    windows,
)
from conduit.histogram import scan_keys
from tests.checkpoint_support import digest, restored
from tests.queue_support import put, queue_in, taken
from tests.store_support import fresh_store, keys_of, plain_table, prioritized, schema

WIDE = schema(obs=("f4", (3,)), action="i8", reward="f4", terminated="?", truncated="?", serial="i8")
Window = windows.Transition | windows.NStep


def chains(store: Store, window: Window, rows: int, max_size: int, environments: int = 3, seed: int = 0) -> Table:
    """Episodes of several environments that step at their own pace, written through the memory several times."""
    table = store.create_table("t", WIDE, max_size, window=window, sampler=samplers.WithoutReplacement(), max_writers=2)
    chance = np.random.default_rng(seed)
    count = itertools.count()
    with table.writer(num_envs=environments, autoreset="same_step") as writer, table.writer() as other:

        def step(last: bool) -> dict[str, Any]:
            serial = next(count)
            return {
                "obs": np.full(3, serial, "f4"), "action": serial * 2, "serial": serial,
                "reward": np.float32(chance.normal()),
                "terminated": last and serial % 2 == 0, "truncated": last and serial % 2 == 1,
            }  # fmt: skip

        for n in range(rows // (environments + 1)):
            steps = [step(bool(chance.random() < 0.1)) for _ in range(environments)]
            columns = {name: np.stack([np.asarray(s[name]) for s in steps]) for name in steps[0]}
            ended = columns["terminated"] | columns["truncated"]
            writer.append(**columns, final_obs=np.full((environments, 3), -n, "f4"))
            if n % 5 < 3:
                one = step(n % 7 == 0)
                other.append(**one)
                if one["terminated"] or one["truncated"]:
                    other.end(np.full(3, -one["serial"], "f4"))
            del ended
    return table


def in_store(table: Table) -> dict[int, tuple[Any, ...]]:
    """All windows that a table without replacement draws in an epoch, by the serial number of their first step."""
    found: dict[int, tuple[Any, ...]] = {}
    n = table.info().ready_rows
    while len(found) < n:
        collect(table.sample(1), found)
    return found


def on_disk(data: conduit.offline.Dataset) -> dict[int, tuple[Any, ...]]:
    found: dict[int, tuple[Any, ...]] = {}
    with data.loader(7) as loader:
        for batch in loader:
            collect(batch, found)
    return found


def collect(batch: Any, found: dict[int, tuple[Any, ...]]) -> None:
    for row in range(len(batch)):
        serial = int(batch["serial"][row])
        assert serial not in found
        found[serial] = tuple((name, batch[name][row].tobytes()) for name in sorted(batch.names))


@pytest.mark.parametrize("window", [windows.Transition(gamma=0.9), windows.NStep(3, gamma=0.9), windows.NStep(40)])
@pytest.mark.parametrize("max_size", [5_000, 150])
def test_windows_are_those_of_the_restored_table(tmp_path: Path, window: Window, max_size: int) -> None:
    """To the bit, also across blocks: of a table that nothing has left, and of one that has wrapped."""
    with fresh_store("64MiB") as store:
        chains(store, window, 600, max_size)
        store.checkpoint(tmp_path)
    with restored(tmp_path) as again:
        expected = in_store(again["t"])
    data = conduit.offline.open(tmp_path, window=window)
    assert len(expected) > 50
    assert on_disk(data) == expected
    assert [column.name for column in data.batch_schema] == sorted_as(data, expected)


def sorted_as(data: conduit.offline.Dataset, expected: dict[int, tuple[Any, ...]]) -> list[str]:
    names = {name for name, _ in next(iter(expected.values()))}
    assert names == {column.name for column in data.batch_schema}
    return [column.name for column in data.batch_schema]


def test_incremental_checkpoints(tmp_path: Path) -> None:
    """Files of earlier ones hold rows that have left."""
    wide = Schema((Column("x", np.dtype("i8")), Column("image", np.dtype("u1"), (4096,))))
    with fresh_store("256MiB") as store:
        table = store.create_table("t", wide, 12_000, max_writers=1)
        for first in range(0, 20_000, 2_000):
            x = np.arange(first, first + 2_000)
            table.extend({"x": x, "image": np.repeat((x % 251).astype("u1")[:, None], 4096, axis=1)})
            if first % 6_000 == 0:
                store.checkpoint(tmp_path)
        store.checkpoint(tmp_path)
        rows = sorted(table.rows(keys_of(table))["x"].tolist())
    assert len({path.name.split("-")[1] for path in tmp_path.glob("t-*-0*.arrow")}) > 1
    data = conduit.offline.open(tmp_path)
    with data.loader(500) as loader:
        batches = list(loader)
    assert sorted(np.concatenate([batch["x"] for batch in batches]).tolist()) == rows
    assert all((batch["image"] == (batch["x"] % 251).astype("u1")[:, None]).all() for batch in batches)


def plain(store: Store) -> None:
    table = plain_table(store, 100, sampler=prioritized())
    for first in range(0, 130, 65):
        table.extend({"x": np.arange(first, first + 65)})


def slots(store: Store) -> None:
    table = plain_table(store, 100, sampler=prioritized(), remover=removers.LowestPriority())
    for first in range(0, 160, 80):
        table.extend({"x": np.arange(first, first + 80)}, priorities=np.arange(first, first + 80) % 37 + 1.0)


def used_up(store: Store) -> None:
    table = plain_table(store, 100, max_times_sampled=2)
    table.extend({"x": np.arange(100)})
    for _ in range(12):
        table.sample(10)


@pytest.mark.parametrize("fill", [plain, slots, used_up])
def test_rows_are_those_of_the_restored_table(tmp_path: Path, fill: Callable[[Store], None]) -> None:
    with fresh_store() as store:
        fill(store)
        store.checkpoint(tmp_path)
    with restored(tmp_path) as again:
        table = again["t"]
        keys = scan_keys(table._native)
        live = np.frombuffer(table._native.links(keys, len(keys))[0], np.uint8) != 0
        expected = sorted(table.rows(keys[live])["x"].tolist())
        assert len(expected) == len(table)
    data = conduit.offline.open(tmp_path)
    assert len(data) == len(expected)
    with data.loader(16) as loader:
        assert sorted(itertools.chain(*(batch["x"].tolist() for batch in loader))) == expected


def test_numbers_that_were_rewritten(tmp_path: Path) -> None:
    kinds = Schema((Column("x", np.dtype("i8")), Column("reward", np.dtype("f4"), mutable=True)))
    with fresh_store() as store:
        table = store.create_table("t", kinds, 100, max_writers=1)
        table.extend({"x": np.arange(100), "reward": np.zeros(100, "f4")})
        store.checkpoint(tmp_path)
        table.update(keys_of(table), reward=np.arange(100, dtype="f4"))
        store.checkpoint(tmp_path)  # the same files of rows
    with conduit.offline.open(tmp_path).loader(100) as loader:
        (batch,) = loader
    assert np.array_equal(batch["reward"], batch["x"].astype("f4"))


def test_a_queue_has_the_rows_that_somebody_has_yet_to_take(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = queue_in(store, 64)
        put(queue, *range(30))
        taken(queue, 12)
        store.checkpoint(tmp_path)
    data = conduit.offline.open(tmp_path)
    with data.loader(64) as loader:
        (batch,) = loader
    assert sorted(batch["x"].tolist()) == list(range(12, 30))


def test_what_is_asked_for(tmp_path: Path) -> None:
    with fresh_store() as store:
        plain_table(store, 10).extend({"x": np.arange(5)})
        store.checkpoint(tmp_path, keep=2)
        store.create_table("other", schema(y="i8"), 10).extend({"y": np.arange(7)})
        store.checkpoint(tmp_path, keep=2)
    with pytest.raises(ConfigError, match="has t, other: say which"):
        conduit.offline.open(tmp_path)
    with pytest.raises(UnknownTable, match="has t, other"):
        conduit.offline.open(tmp_path, table="others")
    assert len(conduit.offline.open(tmp_path, table="other")) == 7
    assert len(conduit.offline.open(tmp_path, number=1)) == 5
    with pytest.raises(CheckpointNotFound):
        conduit.offline.open(tmp_path, number=3)
    with pytest.raises(ConfigError, match="window"):
        conduit.offline.open(tmp_path, table="t", window=windows.NStep(3))
    with pytest.raises(ConfigError, match="Give no schema"):
        conduit.offline.open(tmp_path, table="t", rename={"x": "y"})


def test_files_stay_while_they_are_read(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 50, max_writers=1)
        table.extend({"x": np.arange(50)})
        store.checkpoint(tmp_path)
        data = conduit.offline.open(tmp_path)
        for _ in range(3):
            table.extend({"x": np.arange(50, 100)})
            store.checkpoint(tmp_path)
        again = pickle.loads(pickle.dumps(data))
        for each in (data, again):
            with each.loader(50) as loader:
                assert sorted(next(loader)["x"].tolist()) == list(range(50))
        del data, again, each
        store.checkpoint(tmp_path)
        assert len(list(tmp_path.glob("*.json"))) == 1


def test_damage_is_named(tmp_path: Path) -> None:
    with fresh_store() as store:
        plain_table(store, 50).extend({"x": np.arange(50)})
        store.checkpoint(tmp_path)
    before = digest(tmp_path)
    (rows,) = tmp_path.glob("t-*-rows.arrow")
    text = rows.read_bytes()
    rows.write_bytes(text[:-1] + b"x")
    with pytest.raises(CheckpointDamaged, match=rows.name):
        conduit.offline.open(tmp_path)
    rows.write_bytes(text)
    assert digest(tmp_path) == before
    data = conduit.offline.open(tmp_path)
    (part,) = tmp_path.glob("t-*-0000.arrow")
    part.write_bytes(part.read_bytes()[:64])
    with data.loader(10) as loader, pytest.raises(CheckpointDamaged, match=part.name):
        next(loader)
