"""C50: forked samplers all drew the same rows."""

from __future__ import annotations

import itertools

import numpy as np

from tests.store_support import fresh_store, plain_table
from tests.worker import forked

ROWS = 1_000_000


def run(streams: bool) -> list[list[int]]:
    with fresh_store("64MiB") as store:
        table = plain_table(store, ROWS, seed=7)
        table.extend({"x": np.arange(ROWS)})
        table.sample(1)  # the sampler is made, and has drawn, before the forks
        return [
            forked(lambda rank=rank: table.sample(32, stream=rank if streams else None)["x"].tolist())  # type: ignore[misc]
            for rank in range(4)
        ]


def test_forked_samplers_draw_different_rows() -> None:
    for a, b in itertools.combinations(run(streams=False), 2):
        assert a != b


def test_a_workers_own_stream_repeats_from_run_to_run() -> None:
    first = run(streams=True)
    assert first == run(streams=True)
    for a, b in itertools.combinations(first, 2):
        assert a != b
