"""Six processes and this one do everything at once to one table; every row and window they see is checked."""

from __future__ import annotations

import pytest

from conduit import windows
from tests.store_support import fresh_store, prioritized
from tests.stress import roles
from tests.worker import workers

CAST = [
    (roles.write_steps, 100), (roles.write_vectors, 200), (roles.extend, 300),
    (roles.sample, 400), (roles.update, 500), (roles.look, 600),
]  # fmt: skip
OPERATIONS = [pytest.param(2_000, id="short"), pytest.param(200_000, id="long", marks=pytest.mark.slow)]


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("capacity", [200, 5_000])
@pytest.mark.parametrize("operations", OPERATIONS)
def test_many_processes_do_everything_at_once(operations: int, capacity: int) -> None:
    with fresh_store("64MiB") as store, workers(len(CAST)) as processes:
        table = store.create_table(
            "stress", roles.ROWS, capacity, window=windows.NStep(3, gamma=1.0), sampler=prioritized(0.6, 0.5), seed=1
        )
        level = store.metrics().reserved_bytes
        for process, (role, source) in zip(processes, CAST, strict=True):
            process.start(role, store.name, source, operations)
        results = [process.result(1500) for process in processes]
        table.verify()
        info = table.info()
        assert info.appended == sum(results[:3])
        assert info.appended - info.evicted == info.rows == len(table)
        assert info.rows <= capacity
        assert info.sampled >= results[3]
        assert info.updated + info.stale_updates == results[4]
        assert results[5] > 0
        assert (info.recoveries, info.blocks_pinned, info.open_writers) == (0, 0, 0)
        metrics = store.metrics()
        assert (metrics.processes, metrics.reserved_bytes) == (1, level)
        for _ in range(50):
            roles.check_batch(table.sample(256))
