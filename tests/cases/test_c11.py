"""C11: empty tables, totals of zero and tables smaller than a batch crashed or looped.

Policy: an empty table and a total of zero time out, saying which; draws are with replacement, so a batch may be
larger than the table; a batch of no rows is a ValueError. By samplers that draw each row once a batch larger than what
there is waits for rows and then times out, saying how many there are.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from conduit import CapacityError, SampleTimeout, samplers
from tests.store_support import fresh_store, keys_of, plain_table, prioritized


def test_an_empty_table_times_out_and_says_what_it_lacks() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        began = time.monotonic()
        with pytest.raises(SampleTimeout, match=r"'t'.* 0\.5 s.*MinSize\(1\) lacks 1 rows?, 0 are there"):
            table.sample(4, timeout=0.5)
        assert time.monotonic() - began >= 0.5


def test_a_total_of_zero_times_out_and_says_so() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8, sampler=prioritized())
        table.extend({"x": np.arange(4)}, priorities=np.zeros(4))
        with pytest.raises(SampleTimeout, match="4 rows are there, and their priorities add up to 0"):
            table.sample(2, timeout=0.01)
        table.update_priorities(keys_of(table)[2:3], [1e-30])
        batch = table.sample(16, timeout=10)
        assert (batch["x"] == 2).all()
        assert (batch.weights == 1.0).all()
        assert (batch.probabilities == 1.0).all()


def test_a_batch_may_be_larger_than_the_table() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        batch = table.sample(8)
        assert batch["x"].shape == (8,)
        assert set(batch["x"]) <= {0, 1, 2}


@pytest.mark.parametrize("sampler", [samplers.WithoutReplacement(), samplers.Fifo(), samplers.Lifo()])
def test_without_replacement_a_batch_is_no_larger_than_the_table(sampler: samplers.Sampler) -> None:
    with fresh_store() as store:
        table = plain_table(store, 8, sampler=sampler)
        table.extend({"x": np.arange(3)})
        began = time.monotonic()
        with pytest.raises(SampleTimeout, match=r"8 rows, each once.*3 rows can be drawn"):
            table.sample(8, timeout=0.1)
        assert time.monotonic() - began >= 0.1
        assert sorted(table.sample(3)["x"].tolist()) == [0, 1, 2]
        with pytest.raises(CapacityError):
            table.sample(9, timeout=None)


def test_a_batch_of_nothing_is_refused() -> None:
    with fresh_store() as store:
        table = plain_table(store, 8)
        table.extend({"x": np.arange(3)})
        for n in (0, -1):
            with pytest.raises(ValueError, match=f"sample\\({n}\\).*from 1 to"):
                table.sample(n)
