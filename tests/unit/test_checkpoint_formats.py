"""Checkpoints of every format that there was are restored for ever; those of later ones are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import conduit.offline
from conduit import CheckpointNewer, Store, checkpoints, windows
from conduit.checkpoints import manifest as manifests
from conduit.checkpoints import migrations
from conduit.histogram import scan_keys
from conduit_store.native import native
from tests.checkpoint_support import digest, filled, restored
from tests.queue_support import rest
from tests.store_support import fresh_store

DATA = Path(__file__).resolve().parents[1] / "data"


def test_there_is_one_of_each_older_format() -> None:
    kept = sorted(int(path.name.rpartition("-")[2]) for path in DATA.glob("checkpoint-format-*"))
    assert kept == list(range(1, migrations.FORMAT)), "before FORMAT is raised, keep a checkpoint of the one before"


def test_format_1() -> None:
    """Steps with a queue, rows that vary in length, and rows that leave one by one."""
    folder = DATA / "checkpoint-format-1"
    before = digest(folder)
    manifest = checkpoints.verify(folder)
    assert (manifest.store, manifest.build) == ("kept", "unknown")
    with restored(folder) as store:
        steps = store["steps"]
        blocks = steps.blocks()
        keys = np.concatenate([block.keys for block in blocks])
        first = 268_435_459
        assert keys.tolist() == list(range(first, first + len(keys)))
        unknown = float("nan")
        expected = [1.0, 1.0, unknown, 6.0, 1.0, 1.0, 1.0, 1.0, 5.0, unknown, 4.0, 1.0, 1.0, unknown]
        assert np.array_equal(steps.priorities(keys), np.array(expected, "f4"), equal_nan=True)
        rows = pa.Table.from_batches([block.to_arrow() for block in blocks])
        del blocks
        assert rows["action"].to_pylist() == [3, 4, 0, 5, 6, 7, 8, 9, 10, 0, 11, 12, 13, 14]
        assert rows["reward"].to_pylist() == [3, 4, 0, 5, 6, 7, 8, 9, 10, 0, 11, 12, 70, 71]
        draws = [steps.sample(4).keys - np.uint64(first) for _ in range(2)]
        assert [keys.tolist() for keys in draws] == [[1, 3, 7, 7], [3, 8, 12, 8]]
        queue = store.queue("queue")
        assert (rest(queue, consumer="a"), rest(queue, consumer="b")) == ([2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
        varying = store["varying"]
        texts = [value for view in varying.blocks() for value in view.to_arrow()["text"].to_pylist()]
        assert texts == ["", "one", "zwölf", "x"]
        drawn = [len(row) for row in varying.sample(2)["tokens"]]
        assert len(drawn) == 2
        slots = store["slots"]
        keys = scan_keys(slots._native)
        found = dict(zip(slots.rows(keys)["x"].tolist(), slots.priorities(keys).tolist(), strict=True))
        assert found == {0: 3.0, 2: 2.0, 3: 5.0, 4: 9.0}
    data = conduit.offline.open(folder, table="steps", window=windows.NStep(2, gamma=0.5))
    assert len(data) == 12
    assert digest(folder) == before


def test_a_later_format_is_refused_by_name(tmp_path: Path) -> None:
    with fresh_store() as store:
        filled(store, 10)
        store.checkpoint(tmp_path)
        path = manifests.path_of(tmp_path, 1)
        body = json.loads(path.read_bytes())["manifest"]
        body.update(format=migrations.FORMAT + 3, build="7.1.0", tables="in other words")
        text = json.dumps(body).encode()
        path.write_bytes(b'{"crc32c": "%08x", "manifest": %b}\n' % (native.crc32c(text), text))
        known = migrations.FORMAT
        said = rf"format {known + 3}, written by conduit-edp 7\.1\.0; .* reads formats 1 to {known}"
        for read in (Store.restore, checkpoints.verify, conduit.offline.open):
            with pytest.raises(CheckpointNewer, match=said):
                read(tmp_path)
        assert store.checkpoint(tmp_path, keep=2).number == 2, "another one goes beside it"
        assert checkpoints.verify(tmp_path).build == conduit.__version__
        assert path.exists()


def test_a_manifest_says_which_build_wrote_it(tmp_path: Path) -> None:
    with fresh_store() as store:
        filled(store, 10)
        store.checkpoint(tmp_path)
    said = json.loads(manifests.path_of(tmp_path, 1).read_bytes())["manifest"]
    assert (said["format"], said["build"]) == (migrations.FORMAT, conduit.__version__)
