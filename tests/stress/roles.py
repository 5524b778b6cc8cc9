"""What the processes of the stress test do with one table, a given number of times. Each reports what it saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from conduit import AppendTimeout, Store, Table
from conduit_store.arrow import to_numpy
from tests.store_support import schema

ROWS = schema(
    obs=("i8", (16,)), action="i8", reward="f4", terminated="?", truncated="?", check="u8", number="i8"
)  # fmt: skip
Array = npt.NDArray[Any]
SALT = np.uint64(0x9E3779B97F4A7C15)


def observations(source: Any, step: Any) -> Array:
    """What `source` observes at `step`, in every element different: shape (..., 16)."""
    base = np.asarray(source, np.int64) << 40 | np.asarray(step, np.int64) << 4
    return base[..., None] + np.arange(16)


def checksum(obs: Array, number: Any) -> Array:
    """A sum over a row that half of another row does not have."""
    with np.errstate(over="ignore"):
        mixed = (obs.astype(np.uint64) ^ np.asarray(number).astype(np.uint64)[..., None]) * SALT
        mixed ^= mixed >> np.uint64(29)
        return np.asarray(np.bitwise_xor.reduce(mixed, axis=-1))


def step_of(source: Any, step: Any) -> dict[str, Any]:
    obs = observations(source, step)
    number = np.asarray(step, np.int64)
    return {
        "obs": obs, "action": np.asarray(source, np.int64), "reward": number.astype(np.float32),
        "check": checksum(obs, number), "number": number,
    }  # fmt: skip


def check_rows(obs: Array, number: Array, check: Array) -> None:
    np.testing.assert_array_equal(checksum(obs, number), check, "torn rows")


def check_batch(batch: Any) -> None:
    """Rows are whole; windows are of one source and follow on; probabilities are."""
    check_rows(batch["obs"], batch["number"], batch["check"])
    steps = batch["n_step"].astype(np.int64)
    source = batch["action"]
    np.testing.assert_array_equal(batch["obs"], observations(source, batch["number"]))
    np.testing.assert_array_equal(batch["next_obs"], observations(source, batch["number"] + steps), "broken windows")
    assert ((steps >= 1) & (steps <= 3)).all()
    first, m = batch["number"].astype(float), steps.astype(float)
    np.testing.assert_allclose(batch["reward"], m * first + m * (m - 1) / 2, rtol=1e-5)
    assert ((batch.probabilities > 0) & (batch.probabilities <= 1)).all()
    assert ((batch.weights > 0) & (batch.weights <= 1)).all()


def attached(name: str) -> Table:
    return Store.attach(name)["stress"]


def write_steps(name: str, source: int, operations: int) -> int:
    """Step by step; episodes of 1 to 60 steps; a new writer now and then."""
    rng = np.random.default_rng(source)
    table, step = attached(name), 0
    while step < operations:
        with table.writer(timeout=60) as writer:
            for _ in range(int(rng.integers(1, 2_000))):
                ended = bool(rng.random() < 0.03)
                writer.append(**step_of(source, step), terminated=ended, truncated=False, priority=rng.random())
                step += 1
                if ended:
                    writer.end(observations(source, step))
                if step == operations:
                    break
    table._store.close()
    return step


def write_vectors(name: str, source: int, operations: int) -> int:
    """Four environments that step together, in the mode where end() is called."""
    rng = np.random.default_rng(source)
    table, sources = attached(name), source + np.arange(4)
    rounds = operations // 16
    with table.writer(4, autoreset="disabled", timeout=60) as writer:
        for step in range(rounds):
            ended = rng.random(4) < 0.03
            writer.append(**step_of(sources, np.full(4, step)), terminated=ended, truncated=np.zeros(4, bool))
            if ended.any():
                writer.end(observations(sources, np.full(4, step + 1)), ended)
    table._store.close()
    return 4 * rounds


def extend(name: str, source: int, operations: int) -> int:
    """Whole arrays of 1 to 150 steps."""
    rng = np.random.default_rng(source)
    table, step = attached(name), 0
    for _ in range(operations // 50):
        n = int(rng.integers(1, 150))
        numbers = step + np.arange(n)
        columns = step_of(np.full(n, source), numbers)
        columns["next_obs"] = observations(np.full(n, source), numbers + 1)
        ended = rng.random(n) < 0.03
        try:
            table.extend(
                {**columns, "terminated": ended, "truncated": np.zeros(n, bool)}, priorities=rng.random(n), timeout=60
            )
        except AppendTimeout as error:  # with what holds the memory, for whoever reads the failure
            raise AssertionError(str(error)) from error
        step += n
    table._store.close()
    return step


def sample(name: str, source: int, operations: int) -> int:
    """Batches of all sizes, checked to the last byte."""
    rng = np.random.default_rng(source)
    table = attached(name)
    rows = 0
    for _ in range(operations // 10):
        n = int(rng.choice([1, 7, 64, 512]))
        batch = table.sample(n, timeout=60)
        check_batch(batch)
        rows += n
    table._store.close()
    return rows


def update(name: str, source: int, operations: int) -> int:
    """Samples, sets priorities, now and then alpha; keys of rows that went away among them."""
    rng = np.random.default_rng(source)
    table = attached(name)
    updates = 0
    old = np.empty(0, np.uint64)
    for round_ in range(operations // 10):
        batch = table.sample(64, timeout=60)
        check_batch(batch)
        keys = np.concatenate([batch.keys, old])
        result = table.update_priorities(keys, rng.random(len(keys)) + 1e-3)
        assert result.applied + result.stale == len(keys)
        updates += result.applied + result.stale
        old = batch.keys
        if round_ % 100 == 50:
            table.reconfigure(alpha=float(rng.choice([0.4, 0.6, 1.0])))
    table._store.close()
    return updates


def look(name: str, source: int, operations: int) -> int:
    """Holds views of a few blocks for a while; what they show must not change."""
    rng = np.random.default_rng(source)
    table = attached(name)
    seen = 0
    for _ in range(operations // 50):
        views = table.blocks()
        chosen = [views[i] for i in rng.integers(0, len(views), 3)] if views else []
        del views
        batches = [view.to_arrow() for view in chosen]
        copies = [to_numpy("obs", batch["obs"]).copy() for batch in batches]
        table.sample(64, timeout=60)
        for batch, copy in zip(batches, copies, strict=True):
            obs, check, number = (to_numpy(name, batch[name]) for name in ("obs", "check", "number"))
            np.testing.assert_array_equal(obs, copy, "a view has changed")
            steps = check != 0  # final observations have nothing else
            check_rows(obs[steps], number[steps], check[steps])
            seen += len(obs)
    table._store.close()
    return seen
