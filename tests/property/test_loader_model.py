"""Two equal tables, one read through loaders and the other by plain calls, stay equal.

While a loader lives its table does not change; between two of them it does. Whatever a loader has drawn beyond what it
handed over is as if never drawn, and the same batches come afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit import CapacityError, ConfigError, SampleTimeout
from tests.property.test_checkpoints import TABLES, Hand
from tests.store_support import fresh_store

STREAM = 5
CHANGES = st.lists(st.tuples(st.sampled_from(["extend", "update"]), st.integers(1, 25)), max_size=3)
LOADS = st.tuples(
    st.integers(1, 6), st.integers(0, 5), st.sampled_from([0, 1, 3, "auto"]), st.sampled_from(["close", "raise"])
)  # fmt: skip
# Draws beyond what was handed over stay counted there: always, or where an epoch ended among them.
COUNTED = ("times", "times, steps", "without replacement", "two windows")
REFUSED = (SampleTimeout, CapacityError, ConfigError)


class _Stop(Exception):
    """What a training loop may raise in the middle."""


def counted(hand: Hand) -> dict[str, Any]:
    info = hand.table.info()
    names = ("rows", "ready_rows", "limiter_samples", "limiter_reserved", "limiter_cursor", "sampled_out", "evicted")
    return {name: getattr(info, name) for name in names}


def plain(hand: Hand, window: str, n: int, batches: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(batches):
        try:
            found.append(seen(hand.table.sample(n, window=window, stream=STREAM, timeout=0)))
        except REFUSED:
            break
    return found


def loaded(hand: Hand, window: str, n: int, batches: int, prefetch: Any, then: str) -> list[Any]:
    found: list[Any] = []
    try:
        loader = hand.table.loader(n, window=window, prefetch=prefetch, stream=STREAM, timeout=0.1)
    except REFUSED:
        return []
    try:
        with loader:
            for _ in range(batches):
                try:
                    found.append(seen(loader.next()))
                except REFUSED:
                    break
            if then == "raise":
                raise _Stop
    except _Stop:
        pass
    return found


def seen(batch: Any) -> list[Any]:
    columns = [array.tolist() for _, array in batch.items()]
    return [*columns, batch.keys.tolist(), batch.probabilities.tolist(), batch.weights.tolist()]


@pytest.mark.parametrize("kind", TABLES)
@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(CHANGES, LOADS), min_size=1, max_size=4))
def test_a_loader_leaves_a_table_as_plain_calls_do(kind: str, turns: list[tuple[Any, Any]]) -> None:
    with fresh_store() as store, fresh_store() as other:
        one, two = Hand(TABLES[kind](store)), Hand(TABLES[kind](other))
        for hand in (one, two):
            hand.extend(12)
        for changes, (n, batches, prefetch, then) in turns[:1] if kind in COUNTED else turns:
            for op in changes:
                assert one.do(*op) == two.do(*op)
            for window in one.table.batch_schemas:
                assert loaded(two, window, n, batches, prefetch, then) == plain(one, window, n, batches)
            assert kind in COUNTED or counted(one) == counted(two)
            two.table.verify()
