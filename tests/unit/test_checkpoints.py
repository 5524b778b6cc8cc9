"""Checkpoints: what the files are, what is written again, what a restore takes back, and what it refuses."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit import (
    CheckpointBusy,
    CheckpointDamaged,
    CheckpointError,
    CheckpointNotFound,
    Column,
    ConduitError,
    ConfigError,
    NameTaken,
    ReadOnlyStore,
    Schema,
    StaleKey,
    Store,
    checkpoints,
    limiters,
    removers,
    samplers,
    windows,
)
from conduit.checkpoints import Changes
from conduit_store.native import native
from tests.checkpoint_support import digest, filled, restored
from tests.queue_support import put, queue_in, rest, taken
from tests.store_support import (
    EPISODIC,
    PLAIN,
    column_of,
    contents,
    counts,
    episode,
    episodes,
    fresh_store,
    keys_of,
    plain_table,
    prioritized,
    scalar_writer,
    schema,
    step,
    windows_of,
)

# ---- files


def read_parts(folder: Path, pattern: str = "t-*-[0-9][0-9][0-9][0-9].arrow") -> pa.Table:
    """What any Arrow tool makes of the files."""
    return pa.concat_tables(pa.ipc.open_file(path).read_all() for path in sorted(folder.glob(pattern)))


def test_files_are_arrow(tmp_path: Path) -> None:
    kinds = schema(x="i8", image=("u1", (3, 2)), flag="?", when="M8[ns]")
    with fresh_store() as store:
        table = store.create_table("t", kinds, 100, sampler=prioritized(), max_writers=1)
        n = 60
        table.extend(
            {
                "x": np.arange(n),
                "image": np.arange(n * 6, dtype="u1").reshape(n, 3, 2),
                "flag": np.arange(n) % 3 == 0,
                "when": np.arange(n).astype("M8[ns]"),
            },
            priorities=np.arange(n) + 1.0,
        )
        store.checkpoint(tmp_path)
        keys = keys_of(table)
    rows = read_parts(tmp_path)
    assert rows.schema.names == ["keys", "x", "image", "flag", "when"]
    assert np.array_equal(rows["keys"].to_numpy(), keys)
    assert np.array_equal(rows["x"].to_numpy(), np.arange(n))
    images = np.concatenate([chunk.to_numpy_ndarray() for chunk in rows["image"].chunks])
    assert images.tolist() == np.arange(n * 6, dtype="u1").reshape(n, 3, 2).tolist()
    index = read_parts(tmp_path, "t-*-rows.arrow")
    assert np.array_equal(index["keys"].to_numpy(), keys)
    assert np.array_equal(index["priority:default"].to_numpy(), np.arange(n) + 1.0)


def test_the_checksum_is_crc32c() -> None:
    assert native.crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    data = np.random.default_rng(1).integers(0, 256, 100_003, np.uint8)
    whole = native.crc32c(data)
    for split in (1, 7, 8, 4096, 12_288, 50_001):
        assert native.crc32c(data[split:], native.crc32c(data[:split])) == whole
    slow = 0xFFFFFFFF
    for byte in data[:20_000].tolist():
        slow ^= byte
        for _ in range(8):
            slow = slow >> 1 ^ (0x82F63B78 if slow & 1 else 0)
    assert native.crc32c(data[:20_000]) == slow ^ 0xFFFFFFFF


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    wide = schema(x="i8", image=("u1", (4096,)))

    def append(table: Any, first: int, n: int) -> None:
        table.extend({"x": np.arange(first, first + n), "image": np.full((n, 4096), first % 251, "u1")})

    with fresh_store("256MiB") as store:
        table = store.create_table("t", wide, 24_000, max_writers=1)
        append(table, 0, 20_000)
        full = store.checkpoint(tmp_path)
        assert full.written == full.bytes > 80e6
        again = store.checkpoint(tmp_path)
        assert again.written < 0.2 * full.bytes, "the last file may hold a block that goes on"
        append(table, 20_000, 1_000)
        more = store.checkpoint(tmp_path)
        assert more.written < 0.5 * full.bytes
        append(table, 21_000, 12_000)  # some of the first file's rows are gone
        store.checkpoint(tmp_path)
        checkpoints.verify(tmp_path)
        with Store.restore(tmp_path, "again", "256MiB") as other:
            assert contents(other["t"]) == contents(table)
            assert counts(other["t"])["rows"] == 24_000
            # A store of another life shares nothing with these files, whatever its keys.
            assert (written := other.checkpoint(tmp_path)).written == written.bytes


def test_older_ones_are_kept_as_asked(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = filled(store, 10)
        for n in range(1, 6):
            assert store.checkpoint(tmp_path, keep=3).number == n
            table.extend({"x": np.arange(5)})
        assert sorted(p.name for p in tmp_path.glob("*.json")) == [f"checkpoint-00000{n}.json" for n in (3, 4, 5)]
        for number, rows in ((3, 20), (4, 25), (5, 30)):
            with restored(tmp_path, number=number) as again:
                assert len(again["t"]) == rows
        with pytest.raises(CheckpointNotFound, match=r"\[3, 4, 5\]"):
            Store.restore(tmp_path, "x", number=1)
        store.checkpoint(tmp_path)
        assert len(list(tmp_path.glob("*.json"))) == 1
        named = checkpoints.verify(tmp_path).files
        assert {p.name for p in tmp_path.iterdir()} == named | {"checkpoint-000006.json"}


def test_what_is_being_read_stays(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = filled(store, 50)
        store.checkpoint(tmp_path)
        table.extend({"x": np.arange(50, 70)})

        def save(done: int, total: int) -> None:
            store.checkpoint(tmp_path)
            assert len(list(tmp_path.glob("*.json"))) == 2

        with Store.restore(tmp_path, "again", "16MiB", progress=save) as again:
            assert len(again["t"]) == 50
        store.checkpoint(tmp_path)
        assert len(list(tmp_path.glob("*.json"))) == 1
        with restored(tmp_path) as again:
            assert len(again["t"]) == 70


def test_progress_ends_at_all(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with fresh_store() as store:
        filled(store, 500)
        info = store.checkpoint(tmp_path, progress=lambda done, total: seen.append((done, total)))
        assert seen[-1] == (info.written, info.written)
        assert all(0 <= done <= total for done, total in seen)
        assert (info.tables, info.rows) == (1, 500)
        seen.clear()
        with restored(tmp_path, progress=lambda done, total: seen.append((done, total))):
            assert seen[-1][0] == seen[-1][1] > 0


# ---- one at a time, and what fails


def test_one_at_a_time(tmp_path: Path) -> None:
    with fresh_store() as store:
        filled(store, 10)
        inside, go_on = threading.Event(), threading.Event()

        def wait(done: int, total: int) -> None:
            inside.set()
            go_on.wait(30)

        thread = threading.Thread(target=store.checkpoint, args=(tmp_path / "a",), kwargs={"progress": wait})
        thread.start()
        assert inside.wait(30)
        with pytest.raises(CheckpointBusy, match=str(os.getpid())):
            store.checkpoint(tmp_path / "b")
        with fresh_store() as other:
            filled(other, 10)
            with pytest.raises(CheckpointBusy, match="wait until it is done"):
                other.checkpoint(tmp_path / "a")
        go_on.set()
        thread.join()
        store.checkpoint(tmp_path / "b")
        assert checkpoints.verify(tmp_path / "a").number == 1


def test_ctrl_c_takes_nothing_away(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with fresh_store() as store:
        table = filled(store, 10)
        store.checkpoint(tmp_path)
        before = digest(tmp_path)
        table.extend({"x": np.arange(10)})
        with pytest.raises(KeyboardInterrupt):
            store.checkpoint(tmp_path, progress=interrupt)
        assert digest(tmp_path) == before
        assert store.checkpoint(tmp_path).rows == 20


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound):
        Store.restore(tmp_path / "nothing")
    with pytest.raises(CheckpointNotFound, match="holds no checkpoint"):
        checkpoints.verify(tmp_path)
    with fresh_store() as store:
        filled(store, 10)
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="file"):
            store.checkpoint(tmp_path / "file")
        with pytest.raises(ConfigError, match="keep"):
            store.checkpoint(tmp_path / "c", keep=0)
        store.checkpoint(tmp_path / "c")
        with Store.attach(store.name, read_only=True) as reader, pytest.raises(ReadOnlyStore):
            reader.checkpoint(tmp_path / "d")
        with pytest.raises(NameTaken):
            Store.restore(tmp_path / "c")
        with pytest.raises(ConfigError, match=r"no table 'replay' to change; it has t\."):
            Store.restore(tmp_path / "c", "x", tables={"replay": Changes()})


def test_an_empty_store(tmp_path: Path) -> None:
    with fresh_store() as store:
        assert store.checkpoint(tmp_path / "a").tables == 0
        plain_table(store, 10)
        queue_in(store)
        store.checkpoint(tmp_path / "b")
    with fresh_store(), restored(tmp_path / "a") as again:
        assert again.tables() == []
    with fresh_store(), restored(tmp_path / "b") as again:
        again["t"].extend({"x": np.arange(3)})
        put(again.queue("q"), 1)
        assert (len(again["t"]), taken(again.queue("q"), 1)) == (3, [1])


# ---- damage


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    with fresh_store() as store:
        table = store.create_table("t", EPISODIC, 12, max_writers=1, sampler=prioritized())
        with scalar_writer(table) as writer:
            episode(writer, [1, 2, 3], [0, 0, 1], "terminated", 4)
        store.checkpoint(folder)
    return folder


def outcome(folder: Path) -> str:
    try:
        with restored(folder) as again:
            return contents(again["t"])
    except CheckpointDamaged:
        return "damaged"
    except CheckpointNotFound:
        return "none"


def test_cut_at_every_byte(small: Path) -> None:
    """Of the files that hold something; a cut is noticed before anything is made of them."""
    with fresh_store():
        right = outcome(small)
        assert len(right) == 64
        for path in sorted(small.iterdir()):
            text = path.read_bytes()
            for size in range(len(text)):
                path.write_bytes(text[:size])
                with pytest.raises(CheckpointDamaged, match=path.name):
                    checkpoints.verify(small)
            path.unlink()
            with pytest.raises((CheckpointDamaged, CheckpointNotFound)):
                checkpoints.verify(small)
            path.write_bytes(text)
        assert outcome(small) == right


def test_flipped_bytes(small: Path) -> None:
    chance = np.random.default_rng(5)
    with fresh_store():
        right = outcome(small)
        for path in sorted(small.iterdir()):
            text = path.read_bytes()
            for place in chance.permutation(len(text))[:60].tolist():
                changed = bytearray(text)
                changed[place] ^= 1 << int(chance.integers(8))
                path.write_bytes(changed)
                assert outcome(small) == "damaged", (path.name, place)
            path.write_bytes(text)
        assert outcome(small) == right


def forged(folder: Path, change: Any) -> None:
    """Changes what the manifest says, with the right checksum."""
    import json

    (path,) = folder.glob("*.json")
    body = json.loads(path.read_bytes())["manifest"]
    change(body)
    text = json.dumps(body).encode()
    path.write_bytes(b'{"crc32c": "%08x", "manifest": %b}\n' % (native.crc32c(text), text))


FORGERIES: dict[str, Any] = {
    "format": lambda m: m.update(format="2"),
    "no format": lambda m: m.update(format=0),
    "a format without what it has": lambda m: m.pop("build"),
    "another number": lambda m: m.update(number=7),
    "name of a file": lambda m: m["tables"][0]["blocks"].update(file="../../etc/passwd"),
    "no table name": lambda m: m["tables"][0]["spec"].pop("name"),
    "unknown sampler": lambda m: m["tables"][0]["spec"].update(sampler={"kind": "Dice"}),
    "two of a name": lambda m: m["tables"].append(m["tables"][0]),
    "rows": lambda m: m["tables"][0].update(rows=3),
    "negative": lambda m: m["tables"][0].update(rows=-3),
    "blocks": lambda m: m["tables"][0].update(n_blocks=2),
    "many blocks": lambda m: m["tables"][0].update(n_blocks=1 << 40),
    "buffers": lambda m: m["tables"][0]["parts"][0]["batches"][0].update(buffers=[[0, 8]]),
    "outside": lambda m: m["tables"][0]["parts"][0]["batches"][0]["buffers"][1].__setitem__(0, 1 << 60),
    "other rows": lambda m: m["tables"][0]["parts"][0]["batches"][0].update(key=5),
    "no file": lambda m: m["tables"][0].update(parts=[]),
    "a file twice": lambda m: m["tables"][0]["parts"].append(m["tables"][0]["parts"][0]),
    "state": lambda m: m["tables"][0]["state"].pop("counts"),
    "kind of number": lambda m: m["tables"][0]["state"]["counts"].update(births="many"),
    "huge number": lambda m: m["tables"][0]["state"]["counts"].update(births=1 << 80),
    "negative count": lambda m: m["tables"][0]["state"]["counts"].update(births=-1),
    "fewer births": lambda m: m["tables"][0]["state"]["counts"].update(births=0),
    "fewer steps": lambda m: m["tables"][0]["state"]["counts"].update(steps_folded=1),
    "windows": lambda m: m["tables"][0]["state"].update(views=[]),
    "columns": lambda m: m["tables"][0].update(columns=["flags", "flags", "priority:default"]),
    "unknown column": lambda m: m["tables"][0].update(columns=["flags", "previous", "luck:default"]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_manifest_is_not_believed(small: Path, forgery: str) -> None:
    forged(small, FORGERIES[forgery])
    with fresh_store(), pytest.raises(CheckpointDamaged):
        Store.restore(small, "x", "16MiB").close()


# ---- what comes back


def test_a_new_writer_goes_on_in_the_same_block(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, max_writers=2)
        writers = [scalar_writer(table) for _ in range(2)]
        for writer, values in zip(writers, ([1, 2, 3], [4, 5]), strict=True):
            for value in values:
                writer.append(x=value)
        store.checkpoint(tmp_path)
        with restored(tmp_path) as again:
            other = again["t"]
            assert other.info().open_writers == 0
            with scalar_writer(other) as first, scalar_writer(other) as second, scalar_writer(other) as third:
                for writer, value in ((first, 10), (second, 11), (third, 12)):
                    writer.append(x=value)
                writers[0].append(x=10)
                writers[1].append(x=11)
                with scalar_writer(table) as new:
                    new.append(x=12)
                    assert keys_of(other).tolist() == keys_of(table).tolist()
                    assert column_of(other).tolist() == column_of(table).tolist() == [1, 2, 3, 10, 4, 5, 11, 12]
            other.verify()
        for writer in writers:
            writer.close()


def test_blocks_that_nobody_goes_on_with_hold_up_nobody(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 64, max_writers=2)
        writers = [scalar_writer(table) for _ in range(6)]
        for writer in writers:
            writer.append(x=1)
        store.checkpoint(tmp_path)
        for writer in writers:
            writer.close()
    with fresh_store(), restored(tmp_path) as again:
        table = again["t"]
        for n in range(30):
            table.extend({"x": np.full(20, n)}, timeout=0)
        table.verify()
        assert 1 not in column_of(table)


def test_an_open_episode_ends_where_it_was(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = episodes(store, 64, n=2)
        with scalar_writer(table) as writer:
            for obs in range(5):
                step(writer, obs, 1.0)
            assert sorted(windows_of(table)) == [0, 1, 2]
            store.checkpoint(tmp_path)
            step(writer, 5, 1.0)
    with fresh_store(), restored(tmp_path) as again:
        table = again["t"]
        found = windows_of(table)
        assert sorted(found) == [0, 1, 2, 3], "the last step has no successor"
        assert (found[3]["next_obs"], found[3]["terminated"]) == (4, False)
        with scalar_writer(table) as writer:
            episode(writer, [10, 11], [0, 0], "terminated", 12)
        assert sorted(windows_of(table)) == [0, 1, 2, 3, 10, 11]
        table.verify()


def test_old_keys_name_their_rows_or_nothing(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 32, sampler=prioritized(), max_writers=1)
        old: list[int] = []
        for n in range(20):
            table.extend({"x": np.arange(8) + 8 * n})
            old += keys_of(table).tolist()
        store.checkpoint(tmp_path)
        live = dict(zip(keys_of(table).tolist(), column_of(table).tolist(), strict=True))
        later: list[int] = []
        for _ in range(3):
            table.extend({"x": np.full(8, -1)})
            later += keys_of(table).tolist()
    with fresh_store(), restored(tmp_path) as again:
        table = again["t"]
        for key in set(old):
            if key in live:
                assert table.rows(np.array([key], np.uint64))["x"].tolist() == [live[key]]
            else:
                with pytest.raises(StaleKey):
                    table.rows(np.array([key], np.uint64))
        result = table.update_priorities(np.array(sorted(set(old)), np.uint64), np.ones(len(set(old))))
        assert result == (len(live), len(set(old)) - len(live))


def test_settings_in_force_come_back(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(
            store, 100, sampler=prioritized(), limiter=limiters.SampleToInsertRatio(2, min_size=2, error_buffer=50)
        )
        table.extend({"x": np.arange(10)}, priorities=np.arange(10) + 1.0)
        table.reconfigure(alpha=0.5, beta=0.25, min_size=4, samples_per_insert=3, error_buffer=60)
        table.sample(5)
        store.checkpoint(tmp_path)
        expected = table.sample(20)
        before = table.info()
        with restored(tmp_path) as again:
            batch = again["t"].sample(20)
            assert batch.weights.tolist() == expected.weights.tolist()
            assert batch.keys.tolist() == expected.keys.tolist()
            now = again["t"].info()
            assert (now.limiter_cursor, now.limiter_samples) == (before.limiter_cursor, before.limiter_samples)


def test_without_replacement_an_epoch_goes_on(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, sampler=samplers.WithoutReplacement())
        table.extend({"x": np.arange(100)})
        first = table.sample(60)["x"].tolist()
        store.checkpoint(tmp_path)
    with fresh_store(), restored(tmp_path) as again:
        rest_of_it = again["t"].sample(40)["x"].tolist()
        assert sorted(first + rest_of_it) == list(range(100))


def test_queues(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = queue_in(store, 64, consumers=("a", "b"), max_staleness=2)
        queue.policy_version = 3
        queue.extend({"x": np.arange(20), "policy_version": np.full(20, 3)})
        queue.sample(5, consumer="a").ack()
        held = queue.sample(5, consumer="a")
        queue.sample(2, consumer="b").ack()
        store.checkpoint(tmp_path)
        held.ack()
    with fresh_store(), restored(tmp_path) as again:
        queue = again.queue("q")
        assert (len(queue), queue.policy_version) == (18, 3)
        assert rest(queue, consumer="a") == list(range(5, 20)), "acknowledged rows never come back, others do"
        assert rest(queue, consumer="b") == list(range(2, 20))
        assert len(queue) == 0
        queue.extend({"x": np.arange(3), "policy_version": np.full(3, 3)})
        queue.end()
        again.checkpoint(tmp_path)
    with fresh_store(), restored(tmp_path) as third:
        assert third.queue("q").ended
        assert rest(third.queue("q"), consumer="a") == [0, 1, 2]


def test_nobody_attaches_before_all_is_there(tmp_path: Path) -> None:
    with fresh_store() as store:
        filled(store, 500)
        store.checkpoint(tmp_path)
        seen: list[int] = []

        def attach() -> None:
            with Store.attach("late") as other:
                seen.append(len(other["t"]))

        waiting: list[threading.Thread] = []

        def progress(done: int, total: int) -> None:
            waiting.append(threading.Thread(target=attach))
            waiting[-1].start()

        with Store.restore(tmp_path, "late", "16MiB", progress=progress) as again:
            for thread in waiting:
                thread.join()
            assert seen == [500] * len(waiting)
            assert len(again["t"]) == 500


# ---- into another shape


@pytest.mark.parametrize("max_size", [10, 64, 500])
def test_another_capacity(tmp_path: Path, max_size: int) -> None:
    with fresh_store() as store:
        table = episodes(store, 64, n=2, sampler=prioritized(), max_writers=1)
        with scalar_writer(table) as writer:
            for first in range(0, 100, 10):
                episode(writer, range(first, first + 9), [1.0] * 9, "terminated", first + 9)
        table.update_priorities(keys_of(table), np.arange(len(keys_of(table))) + 1.0)
        old_keys = keys_of(table)
        old = windows_of(table)
        raw = dict(zip(column_of(table, "obs").tolist(), table.priorities(old_keys).tolist(), strict=True))
        store.checkpoint(tmp_path)
    with fresh_store(), restored(tmp_path, tables={"t": Changes(max_size=max_size)}) as again:
        table = again["t"]
        now = windows_of(table)
        assert len(table) == min(max_size, 64)
        assert set(now) == set(sorted(old)[-len(now) :]), "the newest stay"
        assert all(now[obs] == old[obs] for obs in now)
        assert len(now) >= len(table) - 1
        found = table.priorities(keys_of(table))
        for obs, priority in zip(column_of(table, "obs").tolist(), found.tolist(), strict=True):
            assert priority == raw[obs] or np.isnan(priority)
        if max_size != 64:
            assert not set(keys_of(table).tolist()) & set(old_keys.tolist())
            assert table.update_priorities(old_keys, np.ones(len(old_keys))).applied == 0
        with scalar_writer(table) as writer:
            episode(writer, range(1000, 1020), [1.0] * 20, "terminated", 1020)
        table.verify()


def test_another_limiter(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 100, limiter=limiters.SampleToInsertRatio(2, min_size=2))
        table.extend({"x": np.arange(10)})
        table.sample(7)
        store.checkpoint(tmp_path)
    ratio = {"t": Changes(limiter=limiters.SampleToInsertRatio(4, min_size=5, error_buffer=100))}
    with fresh_store(), restored(tmp_path, tables=ratio) as again:
        info = again["t"].info()
        assert (info.limiter_inserts, info.limiter_samples, info.limiter_cursor) == (10, 7, 13.0)
        again["t"].extend({"x": np.arange(1)})
        assert again["t"].info().limiter_cursor == 17.0
    with fresh_store(), restored(tmp_path, tables={"t": Changes(limiter=limiters.MinSize(11))}) as again:
        assert not again["t"].can_sample(1)
        again["t"].extend({"x": np.arange(1)})
        assert again["t"].can_sample(1)


@pytest.mark.parametrize("remover", [removers.Fifo(), removers.Lifo()], ids=["blocks", "single rows"])
def test_columns_come_go_and_widen(tmp_path: Path, remover: removers.Remover) -> None:
    before = schema(x="i4", y="f4", gone=("u1", (3,)))
    after = schema(y="f8", new=("f4", (2,)), x="i8")
    with fresh_store() as store:
        table = store.create_table("t", before, 100, remover=remover)
        y = np.arange(50, dtype="f4") / 3
        table.extend({"x": np.arange(50, dtype="i4"), "y": y, "gone": np.zeros((50, 3), "u1")})
        store.checkpoint(tmp_path)
    changes = {"t": Changes(schema=after, defaults={"new": [1.5, 2.5]})}
    with fresh_store(), restored(tmp_path, tables=changes) as again:
        assert again["t"].schema == after
        batch = again["t"].sample(500)
        assert set(batch["x"].tolist()) == set(range(50))
        assert np.array_equal(batch["y"], (batch["x"].astype("f4") / np.float32(3)).astype("f8"))
        assert (batch["new"] == [1.5, 2.5]).all()
    for wrong, match in (
        (Changes(schema=after), "'new' is not in the checkpoint"),
        (Changes(schema=schema(x="i2", y="f4")), "int32 .* cannot become int16"),
        (Changes(schema=schema(x=("i4", (2,)))), "cannot become"),
        (Changes(schema=schema(x="i8"), defaults={"z": 1}), r"\['z'\] .* name no column"),
        (Changes(defaults={"z": 1}), "go with a schema"),
        (Changes(max_size=0), "max_size"),
    ):
        with fresh_store(), pytest.raises(ConfigError, match=match):
            Store.restore(tmp_path, "x", "16MiB", tables={"t": wrong})


def test_a_queue_gives_up_nothing(tmp_path: Path) -> None:
    with fresh_store() as store:
        queue = queue_in(store, 64)
        put(queue, *range(20))
        taken(queue, 4)
        store.checkpoint(tmp_path)
    with fresh_store(), pytest.raises(CheckpointError, match="16 rows that nobody has acknowledged"):
        Store.restore(tmp_path, "x", "16MiB", tables={"q": Changes(max_size=10)})
    with fresh_store(), restored(tmp_path, tables={"q": Changes(max_size=200)}) as again:
        assert rest(again.queue("q")) == list(range(4, 20))


def test_single_rows_in_another_capacity(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = store.create_table("t", PLAIN, 40, remover=removers.LowestPriority(), sampler=prioritized())
        table.extend({"x": np.arange(30)}, priorities=np.arange(30)[::-1] + 1.0)
        table.extend({"x": np.arange(30, 60)}, priorities=np.arange(30) + 100.0)
        store.checkpoint(tmp_path)
        stay = set(table.sample(2_000)["x"].tolist())
    with fresh_store(), restored(tmp_path, tables={"t": Changes(max_size=80)}) as again:
        table = again["t"]
        assert len(table) == 40
        assert set(table.sample(4_000)["x"].tolist()) == stay
        table.extend({"x": np.arange(60, 120)}, priorities=np.full(60, 1000.0))
        assert len(table) == 80
        table.verify()


def test_windows_of_one_step_longer_are_refused_by_the_spec(tmp_path: Path) -> None:
    with fresh_store() as store:
        store.create_table("t", EPISODIC, 20, window=windows.NStep(2, gamma=0.9))
        store.checkpoint(tmp_path)
    with fresh_store(), pytest.raises(ConduitError, match="follows episodes"):
        Store.restore(tmp_path, "x", "16MiB", tables={"t": Changes(schema=PLAIN, defaults={"x": 1})})


def test_a_copy_of_the_folder_is_as_good(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = filled(store, 100)
        store.checkpoint(tmp_path / "a")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        shutil.rmtree(tmp_path / "a")
        with restored(tmp_path / "b") as again:
            assert contents(again["t"]) == contents(table)


def test_a_queue_that_is_drained_and_has_rows_of_any_length(tmp_path: Path) -> None:
    """Of its newest block no row is left."""
    texts = Schema((Column("text", "string", mean_length=4),))
    with fresh_store() as store:
        queue = store.create_queue("q", texts, 64)
        queue.extend({"text": ["a", "bb", "ccc"]})
        queue.sample(3).ack()
        store.checkpoint(tmp_path)
    with Store.restore(tmp_path, "drained") as again:
        queue = again.queue("q")
        assert len(queue) == 0
        queue.extend({"text": ["d"]})
        assert list(queue.sample(1)["text"]) == ["d"]
        queue.verify()
