"""C75: a restored table still pointed into the file that it came from."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.checkpoint_support import digest, filled, restored
from tests.store_support import column_of, fresh_store


def test_the_files_are_left_alone_and_not_needed(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with fresh_store() as store:
        filled(store, 100, max_size=100)
        store.checkpoint(folder)
    before = digest(folder)
    with fresh_store(), restored(folder) as first:
        first["t"].extend({"x": np.arange(100, 110)})
        assert digest(folder) == before
        with restored(folder) as second:
            assert column_of(second["t"]).tolist() == list(range(100))
        shutil.rmtree(folder)
        assert set(first["t"].sample(2_000)["x"].tolist()) == set(range(10, 110))
