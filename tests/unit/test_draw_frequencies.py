"""A million draws of each sampler against theory, at 5 sigma, while another process appends and rows are evicted.

Rows carry one of ten labels in turn, so that any window of 1,000 consecutive rows has each label 100 times: what is
live changes all the time, and the chance of a label never does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from conduit import Batch, Store, Table, samplers
from tests.store_support import fresh_store, in_sigma, plain_table
from tests.waiting import until
from tests.worker import worker

LABELS = 10
ROWS = 1_000
DRAWS = 1_000_000
BATCH = 1_000
P = np.arange(1.0, LABELS + 1) ** 2


def feed(store_name: str) -> int:
    """Append a row of each label at a time until a row is in the table "stop"."""
    with Store.attach(store_name) as store:
        table, stop = store.table("t"), store.table("stop")
        first = ROWS
        while len(stop) == 0:
            append(table, first, LABELS)
            first += LABELS
        return first


def append(table: Table, first: int, n: int) -> None:
    serial = np.arange(first, first + n)
    table.extend({"x": serial}, priorities=P[serial % LABELS] if table.spec.prioritized else None)


@contextmanager
def fed(sampler: samplers.Sampler) -> Iterator[Table]:
    """A full table into which another process appends."""
    with fresh_store() as store, worker() as other:
        plain_table(store, 1, name="stop")
        table = plain_table(store, ROWS, sampler=sampler, seed=11)
        append(table, 0, ROWS)
        other.start(feed, store.name)
        until(lambda: table.info().evicted > 0)
        try:
            yield table
        finally:
            store.table("stop").extend({"x": [0]})
            appended = other.result()
        assert table.info().evicted == appended - ROWS > ROWS  # all rows were replaced meanwhile, at least once
        table.verify()


CHANCES = {
    "uniform": (samplers.Uniform(), np.ones(LABELS)),
    "uniform, stratified": (samplers.Uniform(stratified=True), np.ones(LABELS)),
    "by batch": (samplers.Prioritized(0.5, 0.4), P**0.5),
    "by table": (samplers.Prioritized(0.5, 0.4, normaliser="table"), P**0.5),
    "stratified": (samplers.Prioritized(0.5, 0.4, stratified=True), P**0.5),
}


@pytest.mark.parametrize("kind", CHANCES)
def test_draws_by_mass(kind: str) -> None:
    sampler, mass = CHANCES[kind]
    chance = mass / mass.sum()
    counts = np.zeros(LABELS, np.int64)
    with fed(sampler) as table:
        for _ in range(DRAWS // BATCH):
            batch = table.sample(BATCH)
            label = batch["x"] % LABELS
            counts += np.bincount(label, minlength=LABELS)
            np.testing.assert_allclose(batch.probabilities, chance[label] * LABELS / ROWS, rtol=1e-9)
            if isinstance(sampler, samplers.Prioritized):
                least = chance[label].min() if sampler.normaliser == "batch" else chance.min()
                np.testing.assert_allclose(batch.weights, (least / chance[label]) ** 0.4, rtol=1e-6)
    for count, p in zip(counts, chance, strict=True):
        assert in_sigma(count, DRAWS, p), (counts, chance)


def test_draws_without_replacement() -> None:
    """Each row at most once an epoch, exactly once if it was there all the while; labels as often as they are there."""
    counts = np.zeros(LABELS, np.int64)
    epochs: dict[int, list[int]] = {}  # rows of batches that lie within one
    bounds: dict[int, tuple[int, int]] = {}  # appended: when its first batch had begun, before its last one
    crossing: dict[int, set[int]] = {}  # rows of the batch that reached into an epoch, by the epoch
    with fed(samplers.WithoutReplacement()) as table:
        n = 100
        before = table.info()
        for _ in range(DRAWS // n):
            batch = table.sample(n)
            after = table.info()
            rows = batch["x"].tolist()
            assert len(set(rows)) == n
            counts += np.bincount(batch["x"] % LABELS, minlength=LABELS)
            if after.epoch == before.epoch:
                epochs.setdefault(after.epoch, []).extend(rows)
                low, _ = bounds.get(after.epoch, (after.appended, 0))
                bounds[after.epoch] = low, before.appended
            else:
                crossing[after.epoch] = set(rows)
            before = after
    whole = 0
    for epoch, rows in epochs.items():
        assert len(set(rows)) == len(rows)
        if epoch in crossing and epoch + 1 in crossing:
            whole += 1
            low, high = bounds[epoch]
            always = set(range(high - ROWS, low))  # in before the epoch's second batch, evicted after its last but one
            assert always <= set(rows) | crossing[epoch] | crossing[epoch + 1]
    assert whole > 100
    share = counts / DRAWS
    assert np.abs(share - 1 / LABELS).max() < 5 * np.sqrt(0.1 * 0.9 / DRAWS), share


@pytest.mark.parametrize("sampler", [samplers.Fifo(), samplers.Lifo()])
def test_draws_in_order(sampler: samplers.Sampler) -> None:
    step = 1 if isinstance(sampler, samplers.Fifo) else -1

    def check(batch: Batch, before: int, after: int) -> None:
        first = int(batch["x"][0])
        assert (batch["x"] == first + step * np.arange(BATCH // 2)).all()
        end = first + ROWS if step == 1 else first + 1  # what had been appended at the draw
        assert before <= end <= after

    with fed(sampler) as table:
        before = table.info().appended
        for _ in range(DRAWS // (BATCH // 2)):
            batch = table.sample(BATCH // 2)
            after = table.info().appended
            check(batch, before, after)
            before = after
