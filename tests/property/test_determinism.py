"""The same operations and seed give the same batches, in this process and in another; powers are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conduit import Table
from tests.store_support import column_of, episodes, fresh_store, keys_of, plain_table, prioritized, scalar_writer, step
from tests.worker import worker

QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)  # fmt: skip
Operation = tuple[str, int]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "extend", "update", "configure", "draw", "clear"]), st.integers(0, 2**32)),
    min_size=1, max_size=30,
)  # fmt: skip


def play(operations: list[Operation], seed: int, episodic: bool) -> list[Any]:
    """Every batch that these operations give on a new table."""
    batches: list[Any] = []
    with fresh_store(max_processes=2) as store:
        made = episodes if episodic else plain_table
        table: Table = made(store, 40, sampler=prioritized(0.6, 0.5), seed=seed, max_writers=60)
        with scalar_writer(table) as writer:
            for number, (operation, drawn) in enumerate(operations):
                rng = np.random.default_rng(drawn)
                if operation == "append":
                    for i in range(3):
                        if episodic:
                            step(writer, 10 * number + i, rng.random(), priority=rng.random())
                        else:
                            writer.append(x=10 * number + i, priority=rng.random())
                elif operation == "extend":
                    n = int(rng.integers(1, 30))
                    x, zeros = np.arange(n) + 10 * number, np.zeros(n, bool)
                    steps = {"obs": x, "action": x, "reward": rng.random(n), "terminated": zeros, "truncated": zeros}
                    steps["reward"] = steps["reward"].astype(np.float32)
                    table.extend(steps if episodic else {"x": x}, priorities=rng.random(n))
                elif operation == "update" and len(keys := keys_of(table)):
                    table.update_priorities(rng.choice(keys, 8), rng.random(8))
                elif operation == "configure":
                    table.reconfigure(alpha=rng.random(), eps=rng.random())
                elif operation == "clear" and drawn % 4 == 0:
                    table.clear()
                elif table.info().ready_rows:
                    batch = table.sample(int(rng.integers(1, 100)), stream=drawn % 3)
                    columns = {name: column.tobytes() for name, column in batch.items()}
                    batches.append((columns, batch.keys.tolist(), batch.probabilities.tolist(), batch.weights.tolist()))
    return batches


@QUICK
@given(OPERATIONS, st.integers(0, 2**63), st.booleans())
def test_the_same_operations_give_the_same_batches(operations: list[Operation], seed: int, episodic: bool) -> None:
    assert play(operations, seed, episodic) == play(operations, seed, episodic)


def test_another_process_and_another_seed() -> None:
    rng = np.random.default_rng(0)
    kinds = ["append", "extend", "update", "configure", "draw", "draw", "draw"]
    operations = [(kinds[int(rng.integers(len(kinds)))], int(rng.integers(2**32))) for _ in range(200)]
    with worker() as other:
        for episodic in (False, True):
            here = play(operations, 11, episodic)
            assert len(here) > 50
            assert other.call(play, operations, 11, episodic) == here
            assert play(operations, 12, episodic) != here


@QUICK
@given(st.floats(0, 4), st.floats(0, 10), st.integers(0, 2**32), st.sampled_from([1, 3, 64, 257]))
def test_probabilities_are_numpys_powers(alpha: float, eps: float, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    raw = (10.0 ** rng.uniform(-6, 6, n)).astype(np.float32)
    raw[rng.random(n) < 0.1] = 0
    raw[0] = 1
    mass = np.power(raw.astype(float) + eps, alpha)
    if eps == 0:
        mass[raw == 0] = 0
    expected = mass / mass.sum()
    with fresh_store(max_processes=2) as store:
        table = plain_table(store, n, sampler=prioritized(alpha, 0.5, eps))
        table.extend({"x": np.arange(n)}, priorities=raw)
        batch = table.sample(1000)
        np.testing.assert_allclose(batch.probabilities, expected[batch["x"]], rtol=1e-12)
        np.testing.assert_allclose(table.info().total_priority, mass.sum(), rtol=1e-12)
        table.reconfigure(alpha=1.0, eps=0.0)
        table.reconfigure(alpha=alpha, eps=eps)
        np.testing.assert_allclose(table.info().total_priority, mass.sum(), rtol=1e-12)
        table.verify()


def philox_draws(seed: int, stream: int, batch: int, n: int) -> Any:
    """n uniform numbers of Philox4x32-10, from its definition (J. K. Salmon et al., SC 2011)."""
    half, low, count = np.uint64(32), np.uint64(0xFFFFFFFF), -(-n // 2)
    own = 1 << 31  # a caller's streams are apart from those that processes get
    c = [np.arange(count, dtype=np.uint64)]
    c += [np.full(count, word, np.uint64) for word in (batch & 0xFFFFFFFF, batch >> 32, own | stream)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [b >> half ^ c[1] ^ np.uint64(key[0]), b & low, a >> half ^ c[3] ^ np.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    pairs = np.stack([c[0] << half | c[1], c[2] << half | c[3]], axis=1)
    return (pairs.ravel()[:n] >> np.uint64(11)).astype(np.float64) * 2.0**-53


@QUICK
@given(
    seed=st.integers(0, 2**64 - 1), stream=st.integers(0, 2**31 - 1),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4), weighted=st.booleans(),
)  # fmt: skip
def test_draws_are_of_philox(seed: int, stream: int, sizes: list[int], weighted: bool) -> None:
    """Whatever the processor: vector units or not, all sizes of batches, both ways down the tree."""
    from conduit import samplers

    rows = 700
    with fresh_store(max_processes=2) as store:
        sampler: Any = prioritized(0.6, 0.5) if weighted else samplers.Uniform()
        table = plain_table(store, 1_000, sampler=sampler, seed=seed)
        table.extend({"x": np.arange(rows)})  # all as likely
        in_place = column_of(table)[np.argsort(keys_of(table) & np.uint64(0xFFFFFFFF))]  # in the order of their slots
        for batch, n in enumerate(sizes):
            drawn = table.sample(n, stream=stream)["x"]
            places = np.floor(philox_draws(seed, stream, batch, n) * rows).astype(int)
            np.testing.assert_array_equal(drawn, in_place[places])
