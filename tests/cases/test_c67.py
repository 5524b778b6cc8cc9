"""C67: batches after a restore differed from those of the run that was not interrupted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conduit import Store, samplers
from tests.checkpoint_support import two_draws
from tests.store_support import fresh_store, plain_table
from tests.worker import worker


@pytest.mark.parametrize("sampler", [samplers.Uniform(), samplers.Prioritized(0.6, 0.4)], ids=["even", "prioritized"])
@pytest.mark.parametrize("prefetch", [None, 0, 4], ids=["sample", "loader", "loader, 4 ahead"])
def test_the_next_two_batches_are_the_same(tmp_path: Path, sampler: samplers.Sampler, prefetch: int | None) -> None:
    with fresh_store() as store:
        table = plain_table(store, 1_000, seed=3, sampler=sampler)
        table.extend({"x": np.arange(500)})
        if prefetch is None:
            for _ in range(3):
                table.sample(4)
            store.checkpoint(tmp_path)
            expected = [table.sample(4)["x"].tolist() for _ in range(2)]
        else:
            with table.loader(4, prefetch=prefetch) as loader:
                for _ in range(3):
                    loader.next()
                store.checkpoint(tmp_path)
                expected = [loader.next()["x"].tolist() for _ in range(2)]
    with worker() as other:
        assert other.call(two_draws, str(tmp_path), prefetch) == expected


def test_streams_go_on_each_by_itself(tmp_path: Path) -> None:
    with fresh_store() as store:
        table = plain_table(store, 1_000, seed=3)
        table.extend({"x": np.arange(500)})
        for stream, batches in ((0, 2), (1, 5)):
            for _ in range(batches):
                table.sample(4, stream=stream)
        store.checkpoint(tmp_path)
        expected = [table.sample(4, stream=stream)["x"].tolist() for stream in (0, 1, 2)]
    with fresh_store(), Store.restore(tmp_path, "again", "16MiB") as again:
        assert [again["t"].sample(4, stream=stream)["x"].tolist() for stream in (0, 1, 2)] == expected
